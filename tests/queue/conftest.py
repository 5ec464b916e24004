"""What the operation suite needs of threads, locks and times."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue import queue
from gnlqueue.models import Job, JobStatus
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.transactions import alias_of

#: A time for tests that give `now=`: none of them waits for a clock.
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def after(**length: float) -> datetime:
    """A time later than noon."""
    return NOON + timedelta(**length)


def claimed(*, now: datetime = NOON, lease: float = 60, **options: Any) -> ClaimedJob:
    """A job that worker w1 has just claimed."""
    queue.enqueue("demo", now=now, **options)
    job = queue.claim(worker_id="w1", lease=lease, now=now)
    assert job is not None
    return job


def dead(**options: Any) -> Job:
    """A job that failed for good."""
    return queue.fail(claimed(**options), "no use", final=True, now=NOON)


def crash(job: ClaimedJob, *, now: datetime) -> ClaimedJob:
    """Let the job's worker die, and claim the job again a day later."""
    again = queue.claim(worker_id="w1", now=now + timedelta(days=1)) or queue.claim(
        worker_id="w1", now=now + timedelta(days=2)
    )
    assert again is not None
    assert again.id == job.id
    return again


def count(status: JobStatus) -> int:
    """How many jobs have this status."""
    return Job.objects.using(queue_alias()).filter(status=status).count()


def queue_alias() -> str:
    """The alias of the database under test."""
    return alias_of(None)


def row(job: Any) -> dict[str, Any]:
    """All that the database holds of a job."""
    return Job.objects.using(queue_alias()).values().get(pk=getattr(job, "id", job))


@pytest.fixture
def in_thread(alias: str) -> Iterator[Callable[..., Future[Any]]]:
    """``in_thread(fn, *args)`` starts fn in a thread with connections of its own; the future of its result."""
    with ThreadPoolExecutor(8) as pool:

        def body(fn: Callable[..., Any], *args: Any) -> Any:
            try:
                return fn(*args)
            finally:
                connections.close_all()

        yield lambda fn, *args: pool.submit(body, fn, *args)


@pytest.fixture
def rows_locked(alias: str, in_thread: Callable[..., Future[Any]]) -> Callable[..., Any]:
    """``with rows_locked(job, …):`` another connection holds the rows' locks; skips SQLite, which has none."""
    if connections[alias].vendor == "sqlite":
        pytest.skip("SQLite locks the file, not rows")

    @contextmanager
    def locked(*jobs: Any) -> Iterator[None]:
        ready, done = threading.Event(), threading.Event()

        def hold() -> None:
            with transaction.atomic(alias):
                list(Job.objects.using(alias).select_for_update().filter(pk__in=[job.id for job in jobs]))
                ready.set()
                done.wait(20)

        holder = in_thread(hold)
        assert ready.wait(10)
        try:
            yield
        finally:
            done.set()
            holder.result(10)

    return locked


@pytest.fixture
def until_blocked(alias: str) -> Callable[[], None]:
    """``until_blocked()`` returns once another connection waits for a lock (at once on SQLite, which can't tell)."""

    def wait() -> None:
        spy = connections[alias].copy()  # outside the test's transaction, in which PostgreSQL's view is frozen
        deadline = time.monotonic() + 10
        try:
            while not _waits_for_lock(spy):
                assert time.monotonic() < deadline, "nobody waits for a lock"
                time.sleep(0.01)  # the servers have no event to wait for
        finally:
            spy.close()

    return wait


def _waits_for_lock(spy: BaseDatabaseWrapper) -> bool:
    if spy.vendor == "sqlite":
        return True
    with spy.cursor() as cursor:
        if spy.vendor == "postgresql":
            cursor.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            return cursor.fetchone() is not None
        # Not information_schema.innodb_trx: it shows the past for as long as it is asked ten times a second.
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database()")
        ours = {row[0] for row in cursor.fetchall()}
        cursor.execute("SHOW ENGINE INNODB STATUS")
        waiting = re.findall(r"LOCK WAIT.*?thread id (\d+)", cursor.fetchone()[2], re.DOTALL)
        return not ours.isdisjoint(map(int, waiting))
