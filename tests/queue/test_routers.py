"""Every verb names its database: a router that sends reads to a replica changes nothing."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

import gnlqueue
from gnlqueue import queue
from gnlqueue.models import Job
from gnlqueue.queue.claiming import promote, rescue, seconds_until_due
from gnlqueue.queue.leases import renew
from gnlqueue.queue.transactions import alias_of
from gnlqueue.queue.transitions import complete_many
from tests.queue.conftest import NOON, after
from tests.queue.tasks import send_receipt


class ReadsGoToTheReplica:
    """Writes go to the database under test, reads to one without a single table."""

    primary = ""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return self.primary


@pytest.fixture
def primary(alias: str, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The alias to which the router sends writes; every read that names no alias fails."""
    connections.settings["replica"] = {**connections.settings["default"], "NAME": tmp_path / "replica.sqlite3"}
    settings.DATABASE_ROUTERS = [f"{__name__}.ReadsGoToTheReplica"]
    settings.GNLQUEUE = {}
    monkeypatch.setattr(ReadsGoToTheReplica, "primary", alias)
    yield alias
    connections["replica"].close()
    del connections["replica"], connections.settings["replica"]


def test_the_router_says_where_jobs_are_written(primary: str) -> None:
    assert alias_of(None) == primary
    assert send_receipt.enqueue(1)._state.db == primary


def test_the_setting_comes_before_the_router_and_the_argument_before_both(primary: str, settings: Any) -> None:
    settings.GNLQUEUE = {"DATABASE": "default"}
    assert alias_of(None) == "default"
    assert alias_of(primary) == primary


def test_an_option_of_the_call_says_where_its_job_is_written(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {}
    assert send_receipt.using(database=alias).enqueue(1)._state.db == alias
    (id,) = gnlqueue.enqueue_many([send_receipt.using(database=alias).bind(1)])
    assert Job.objects.using(alias).filter(pk=id).exists()


def test_a_claimed_job_knows_its_database(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {}
    queue.enqueue("demo", using=alias)
    job = queue.claim(worker_id="w1", using=alias)
    assert job is not None
    queue.complete(job)
    assert queue.get(job).status == "done"


def claim(**options: Any) -> queue.ClaimedJob:
    job = queue.claim(worker_id="w1", **options)
    assert job is not None
    return job


def test_a_job_s_whole_life_is_on_the_primary(primary: str) -> None:
    job = queue.enqueue("demo", now=NOON)
    assert queue.fail(claim(now=NOON), "x", after=60, now=NOON).status == "scheduled"
    claim(now=after(minutes=2), lease=60)
    queue.release(claim(now=after(minutes=4)))  # rescued
    queue.suspend(claim(now=after(minutes=4)), timedelta(minutes=1), now=after(minutes=4))
    held = queue.extend(claim(now=after(minutes=6)), 60, now=after(minutes=6))
    assert renew([held.pair, (0, 0)], timedelta(days=9999), alias=primary) == {held.pair}
    queue.block(held, "mismatch")
    queue.unblock(job, now=after(minutes=7))
    queue.complete(claim(now=after(minutes=8)), {"a": 1}, now=after(minutes=8))
    assert queue.get(job).result == {"a": 1}
    assert queue.prune(timedelta(hours=1), now=after(days=1)) == 1


def test_what_people_do_is_on_the_primary(primary: str) -> None:
    job = queue.enqueue("demo", idempotency_key="k")
    assert not queue.enqueue("demo", idempotency_key="k").created
    queue.cancel(job), queue.retry(job), queue.reschedule(job, NOON)
    assert queue.enqueue_again(job).job.origin_id == job.pk
    queue.pause("default")
    assert queue.claim(worker_id="w1") is None
    queue.resume("default")
    assert queue.stats()["total"] == 2
    assert queue.dead() == []


def test_a_worker_s_calls_are_on_the_primary(primary: str) -> None:
    gnlqueue.enqueue_many(send_receipt.using(run_after=NOON).bind(number) for number in range(3))
    seconds = seconds_until_due(["default"], alias=primary)
    assert seconds is not None
    assert promote(["default"], alias=primary, now=NOON) == 3
    jobs = queue.claim_many(worker_id="w1", limit=3, lease=1, now=NOON)
    stale = jobs[0]._replace(lease_token=99)
    assert complete_many([(stale, None), (jobs[1], 1), (jobs[2], None)]) == [stale]
    with pytest.raises(gnlqueue.LeaseLost):
        queue.complete(stale)
    assert len(rescue(["default"], alias=primary, now=after(minutes=1))) == 1


def test_a_returned_job_is_read_from_where_it_is(primary: str) -> None:
    job = queue.enqueue("demo")
    assert (job.enqueued_at, job.result, job.last_error) == (queue.get(job).enqueued_at, None, None)
