"""Renewing leases: one by its holder, many at once by the heartbeat."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from gnlqueue import queue
from gnlqueue.models import JobStatus, WorkerProcess
from gnlqueue.queue import claiming
from gnlqueue.queue.leases import renew
from tests.queue.conftest import NOON, after, claimed, crash, row


def test_extend_renews_the_lease_from_now(alias: str) -> None:
    job = claimed(lease=60)
    extended = queue.extend(job, 100, now=after(seconds=50))
    assert extended == job._replace(lease_expires_at=after(seconds=150))
    assert row(job)["lease_expires_at"] == after(seconds=150)


def test_a_renewed_job_is_not_rescued(alias: str) -> None:
    job = claimed(lease=60)
    queue.extend(job, 100, now=after(seconds=50))
    assert queue.claim(worker_id="w2", now=after(seconds=149)) is None


def test_a_heartbeat_renews_what_is_held_and_nothing_else(alias: str) -> None:
    held, lost = claimed(), claimed()
    queue.complete(lost)
    before = row(lost)
    assert renew([held.pair, lost.pair, (0, 1)], timedelta(hours=1), alias=alias) == {held.pair}
    assert row(lost) == before


def test_a_heartbeat_of_a_stale_holder_renews_nothing(alias: str) -> None:
    stale = claimed()
    crash(stale, now=NOON)
    before = row(stale)
    assert renew([stale.pair], timedelta(hours=1), alias=alias) == set()
    assert row(stale) == before


def test_a_heartbeat_does_not_wait_for_a_locked_row(alias: str, rows_locked: Any) -> None:
    locked, free = claimed(), claimed()
    with rows_locked(locked):
        assert renew([locked.pair, free.pair], timedelta(hours=1), alias=alias) == {free.pair}


def test_a_heartbeat_of_nothing_asks_nothing() -> None:
    assert renew([], timedelta(hours=1), alias="no such alias") == set()


def beat_at(time: datetime, alias: str) -> None:
    """Let worker w1 have beaten at this time, for leases of a minute."""
    WorkerProcess.objects.using(alias).create(
        worker_id="w1", hostname="h", pid=1, queues=["default"], concurrency=4, started_at=NOON, heartbeat_at=time
    )


def test_a_job_that_was_locked_for_longer_than_a_lease_stays_with_its_worker_which_lives(alias: str) -> None:
    """Each of its beats has passed over the row; the next one renews it."""
    job = claimed()
    beat_at(after(seconds=80), alias)
    assert claiming.rescue(["default"], alias=alias, now=after(seconds=90)) == []
    assert queue.claim(worker_id="w2", now=after(seconds=90)) is None
    queue.complete(job)
    assert row(job)["status"] == JobStatus.DONE


def test_the_jobs_of_the_living_are_left_however_many_they_are(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "AT_ONCE", 1)
    for _ in range(3):
        claimed()
    queue.enqueue("demo", now=NOON)
    dead = queue.claim(worker_id="w2", now=NOON)
    beat_at(after(seconds=80), alias)
    rescued = claiming.rescue(["default"], alias=alias, now=after(seconds=90))
    assert dead is not None
    assert [each.job_id for each in rescued] == [dead.id]


@pytest.mark.parametrize(
    ("beat", "now"),
    [
        (after(seconds=50), after(seconds=70)),
        (after(seconds=80), after(seconds=150)),
        (after(hours=2), after(hours=2)),
    ],
    ids=["not since the lease ran out", "not of late", "for hours, without renewing it"],
)
def test_a_worker_that_beats_keeps_no_other_job(alias: str, beat: datetime, now: datetime) -> None:
    job = claimed()
    beat_at(beat, alias)
    assert [each.job_id for each in claiming.rescue(["default"], alias=alias, now=now)] == [job.id]
