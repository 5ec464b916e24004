"""``GNLQUEUE["INLINE"]``: jobs run in the process that enqueues them, right after the commit."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

import gnlqueue
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
def test_jobs_that_enqueue_jobs_do_not_nest(alias: str) -> None:
    """Each runs after the one that enqueued it, not inside of it, however long the chain is."""
    tasks.enqueue_next.enqueue(3)

    assert Job.objects.using(alias).filter(status=JobStatus.DONE).count() == 4
    assert len({each["depth"] for each in told()}) == 1
