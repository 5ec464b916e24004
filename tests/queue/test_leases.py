"""Renewing leases: one by its holder, many at once by the heartbeat."""

from datetime import timedelta
from typing import Any

from gnlqueue import queue
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


def test_a_heartbeat_renews_what_is_held_and_tells_what_is_lost(alias: str) -> None:
    held, lost = claimed(), claimed()
    queue.complete(lost)

    assert renew([held.pair, lost.pair, (0, 1)], timedelta(hours=1), alias=alias) == (
        {held.pair},
        {lost.pair, (0, 1)},
    )


def test_a_heartbeat_of_a_stale_holder_renews_nothing(alias: str) -> None:
    stale = claimed()
    crash(stale, now=NOON)
    before = row(stale)
    assert renew([stale.pair], timedelta(hours=1), alias=alias) == (set(), {stale.pair})
    assert row(stale) == before


def test_a_heartbeat_neither_waits_for_a_locked_row_nor_takes_it_for_lost(alias: str, rows_locked: Any) -> None:
    locked, free = claimed(), claimed()
    with rows_locked(locked):
        assert renew([locked.pair, free.pair], timedelta(hours=1), alias=alias) == ({free.pair}, set())


def test_a_heartbeat_of_nothing_asks_nothing() -> None:
    assert renew([], timedelta(hours=1), alias="no such alias") == (set(), set())
