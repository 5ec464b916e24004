"""``GNLQUEUE["INLINE"]``: jobs run in the process that enqueues them, right after the commit."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

import gnlqueue
from gnlqueue import queue
from gnlqueue.models import Job, JobStatus
from tests.app import tasks
from tests.app.events import told
from tests.worker.conftest import on_sqlite, row


@pytest.fixture(autouse=True)
def inline(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "INLINE": True}


def test_job_runs_at_once(alias: str) -> None:
    job = tasks.give.enqueue("done already")

    assert (row(job).status, row(job).result, row(job).attempts) == (JobStatus.DONE, "done already", 1)


def test_job_runs_after_the_commit(alias: str) -> None:
    with transaction.atomic(alias):
        job = tasks.nothing.enqueue()
        assert row(job).status == JobStatus.READY

    assert row(job).status == JobStatus.DONE


@on_sqlite
def test_job_that_is_rolled_back_never_runs(alias: str) -> None:
    with pytest.raises(RuntimeError), transaction.atomic(alias):  # noqa: PT012  the enqueue belongs in there
        tasks.nothing.enqueue()
        raise RuntimeError

    assert not Job.objects.using(alias).exists()


@on_sqlite
def test_enqueue_many(alias: str) -> None:
    ids = gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(10))

    assert set(Job.objects.using(alias).filter(pk__in=ids).values_list("status", flat=True)) == {JobStatus.DONE}


@on_sqlite
def test_failed_and_later_jobs_wait_for_a_worker(alias: str) -> None:
    failed = tasks.fail.using(backoff=gnlqueue.Backoff(base=60)).enqueue()
    later = tasks.nothing.using(run_after=timedelta(hours=1)).enqueue()

    assert (row(failed).status, row(failed).last_error) == (JobStatus.SCHEDULED, "RuntimeError: no paper")
    assert row(later).status == JobStatus.SCHEDULED


@on_sqlite
@pytest.mark.parametrize("run_after", [timedelta(), datetime(2020, 1, 1, tzinfo=UTC)], ids=["no delay", "long ago"])
def test_a_job_that_is_due_at_once_runs_at_once(alias: str, run_after: Any) -> None:
    assert row(tasks.nothing.using(run_after=run_after).enqueue()).status == JobStatus.DONE


def test_what_waits_already_is_left_alone(alias: str, settings: Any) -> None:
    """Else one request would send all that waits in a copy of a production database."""
    settings.GNLQUEUE = {**settings.GNLQUEUE, "INLINE": False}
    waiting = tasks.nothing.using(priority=10).enqueue()
    due = tasks.nothing.using(run_after=timedelta()).enqueue()
    lost = tasks.nothing.enqueue()
    Job.objects.using(alias).filter(pk=lost.pk).update(status=JobStatus.IN_PROGRESS, lease_expires_at=lost.run_at)
    before = [row(job).status for job in (waiting, due, lost)]
    settings.GNLQUEUE = {**settings.GNLQUEUE, "INLINE": True}

    job = tasks.nothing.enqueue()

    assert row(job).status == JobStatus.DONE
    assert [row(job).status for job in (waiting, due, lost)] == before


def test_a_job_that_a_worker_has_claimed_is_left_alone(alias: str) -> None:
    with transaction.atomic(alias):
        job = tasks.nothing.enqueue()
        claimed = queue.claim(worker_id="w1")

    assert claimed is not None
    assert (row(job).status, row(job).worker_id) == (JobStatus.IN_PROGRESS, "w1")


@on_sqlite
def test_a_job_of_a_paused_queue_waits(alias: str) -> None:
    queue.pause("default")

    assert row(tasks.nothing.enqueue()).status == JobStatus.READY


@on_sqlite
def test_a_job_in_a_manual_transaction_waits_for_a_worker(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    transaction.set_autocommit(False, using=alias)
    job = tasks.nothing.enqueue()
    transaction.commit(using=alias)
    transaction.set_autocommit(True, using=alias)

    assert row(job).status == JobStatus.READY
    assert not caplog.records


@on_sqlite
def test_jobs_that_enqueue_jobs_do_not_nest(alias: str) -> None:
    """Each runs after the one that enqueued it, not inside of it, however long the chain is."""
    tasks.enqueue_next.enqueue(3)

    assert Job.objects.using(alias).filter(status=JobStatus.DONE).count() == 4
    assert len({each["depth"] for each in told()}) == 1
