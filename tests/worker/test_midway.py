"""What is done in groups is killed in its middle: it is done or not done as a whole, and no job pays for it."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper

import gnlqueue
from gnlqueue import dialects, queue
from gnlqueue.models import Job, JobAttempt, JobStatus, RunJournalEntry, TaskMinute
from gnlqueue.worker.loop import Worker
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.app.faults import SET
from tests.worker.conftest import count, drain, dying, row, until_all, until_status, until_told
from tests.worker.processes import RunWorker, until

Manage = Callable[..., RunWorker]


def setting(**values: Any) -> dict[str, str]:
    """The environment of processes in which attributes of `gnlqueue`'s modules have these values; __ is a dot."""
    return {SET: json.dumps({f"gnlqueue.{name.replace('__', '.')}": value for name, value in values.items()})}


# --- claims and outcomes ----------------------------------------------------------------------------------------------


def test_what_was_prefetched_goes_back_uncounted(alias: str, manage: Manage) -> None:
    """One job has begun, and others wait behind it in the worker that dies: only the one is to blame."""
    gnlqueue.enqueue_many(tasks.nothing.using(priority=2).bind() for _ in range(30))
    begun = tasks.wait.using(priority=1).enqueue()
    others = Job.objects.using(alias).filter(pk__in=gnlqueue.enqueue_many(tasks.tell.bind() for _ in range(20)))
    run = manage("runworker", "--lease", "60", "--concurrency", "1", **setting(worker__loop__PATIENCE=60))
    victim = until_told("began")["pid"]
    until(lambda: count(status=JobStatus.DONE) == 30 and others.filter(lease_token=1).exists(), "jobs behind it")

    os.kill(victim, signal.SIGKILL)
    run.says("released .*, which ended; no attempt counted")
    open_gate("go")

    until_all(JobStatus.DONE)
    assert (row(begun).attempts, row(begun).lease_token) == (2, 2)
    assert set(others.values_list("attempts", flat=True)) == {1}
    assert others.filter(lease_token=2).exists()
    assert list(JobAttempt.objects.using(alias).values_list("job_id", flat=True)) == [begun.pk]
    assert set(Counter(each["job"] for each in told() if each["what"] == "ran").values()) == {1}


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
@pytest.mark.parametrize(
    "function",
    [
        pytest.param("gnlqueue.dialects.mysql._without_suspects", id="rows locked"),
        pytest.param("gnlqueue.dialects.mysql.MySQLDialect.row", id="rows changed"),
    ],
)
def test_claim_that_is_not_committed(alias: str, manage: Manage, function: str) -> None:
    """Elsewhere a claim is one statement."""
    ids = gnlqueue.enqueue_many(tasks.tell.using(max_attempts=1).bind() for _ in range(4))

    manage("runworker", "--lease", "60", **dying(function, "after"))
    until_all(JobStatus.DONE)

    assert [each["what"] for each in told()].count("dying") == 1
    jobs = Job.objects.using(alias).filter(pk__in=ids)
    assert set(jobs.values_list("attempts", "lease_token")) == {(1, 1)}


def test_late_claim_of_a_worker_that_is_full(alias: str, in_thread: Callable[[Worker], Any]) -> None:
    """It claims nothing for as long as its job runs, and beats: nobody else would give back what it never heard of."""
    worker = Worker(["default"], concurrency=1)
    tasks.wait.enqueue()
    in_thread(worker)
    until_told("began")

    worker._intake._unheard_until = time.monotonic() + 60
    job = tasks.nothing.enqueue()
    assert queue.claim(worker_id=worker.worker_id) is not None

    until_status(job, JobStatus.READY)
    open_gate("go")
    assert until_status(job, JobStatus.DONE).attempts == 1


def test_group_of_outcomes_that_is_not_committed(alias: str, manage: Manage) -> None:
    """With results, of which each takes a statement: PostgreSQL's too, where they are large."""
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(3))
    consumer = manage(
        "shell",
        "-c",
        "from gnlqueue import queue; from gnlqueue.queue import transitions\n"
        "batch = queue.claim_many(worker_id='w1', limit=3)\n"
        "transitions.complete_many([(job, 'x' * 20_000) for job in batch])",
        **dying("gnlqueue.dialects.base.Dialect._complete", "after", 2),
    )

    assert consumer.ends() == -signal.SIGKILL, consumer.log
    assert count(status=JobStatus.IN_PROGRESS, result__isnull=True) == 3


def test_steps_of_a_job_whose_outcome_was_not_written(alias: str, manage: Manage) -> None:
    job = tasks.tell_in_a_step.enqueue()

    manage("runworker", "--lease", "60", **dying("gnlqueue.worker.outcomes.write", "before"))

    assert until_status(job, JobStatus.DONE).attempts == 2
    assert [each["what"] for each in told()] == ["ran", "dying"]


@pytest.mark.parametrize("alias", ["postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("what", ["claim", "complete"])
def test_connection_that_breaks_right_after_the_commit(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """The server ends the worker's session: what the drivers make of that, and what a new connection finds."""
    dialect = type(dialects.of(alias))
    function = getattr(dialect, what)
    lost: list[Any] = []

    def unheard(self: Any, connection: BaseDatabaseWrapper, *args: Any, **kwargs: Any) -> Any:
        result = function(self, connection, *args, **kwargs)
        if result and not lost:
            lost.append(result)
            end_session(connection)
        return result

    monkeypatch.setattr(dialect, what, unheard)
    ids = gnlqueue.enqueue_many(tasks.tell.bind() for _ in range(3))

    drain(concurrency=3)

    assert len(lost) == 1
    assert set(Job.objects.using(alias).filter(pk__in=ids).values_list("status", "attempts")) == {(JobStatus.DONE, 1)}
    assert sorted(each["job"] for each in told()) == ids
    assert not JobAttempt.objects.using(alias).exists()
    assert not [each for each in caplog.messages if each.startswith("lost ")]


def end_session(connection: BaseDatabaseWrapper) -> None:
    """Have the server end this connection's session, and raise what its next statement raises."""
    ends = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}
    with connection.cursor() as cursor:
        cursor.execute(ends[connection.vendor])
        cursor.execute("SELECT 1")
    pytest.fail("the session goes on")


# --- enqueueing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "call", "stored"),
    [
        pytest.param("gnlqueue.queue.enqueueing._execute_insert", 2, 0, id="between two batches"),
        pytest.param("gnlqueue.queue.enqueueing._insert_all", 1, 6, id="after the commit"),
    ],
)
def test_enqueue_many_stores_all_or_none(alias: str, manage: Manage, function: str, call: int, stored: int) -> None:
    code = "import gnlqueue; from tests.app import tasks; gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(6))"
    producer = manage("shell", "-c", code, **dying(function, "after", call), **setting(queue__enqueueing__BATCH=2))

    assert producer.ends() == -signal.SIGKILL, producer.log
    assert Job.objects.using(alias).count() == stored


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_job_whose_notification_was_never_sent_is_found_by_polling(
    alias: str, manage: Manage, in_thread: Callable[[Worker], Any]
) -> None:
    in_thread(Worker(["default"], poll_interval=0.02, max_poll_interval=0.05))
    code = (
        "from django.db import transaction; from tests.app import tasks\n"
        f"with transaction.atomic({alias!r}): tasks.tell.enqueue()"
    )
    producer = manage("shell", "-c", code, **dying("gnlqueue.queue.wakeups._notify", "before"))

    assert producer.ends() == -signal.SIGKILL, producer.log
    until_told("ran")


# --- upkeep -----------------------------------------------------------------------------------------------------------


def test_counts_that_are_not_committed_are_lost_and_no_job_with_them(alias: str, manage: Manage) -> None:
    """Of two rows one was inserted."""
    tasks.tell.enqueue()
    tasks.nothing.enqueue()
    code = "from gnlqueue.worker import Worker; Worker(['default'], drain=True).run()"

    worker = manage("shell", "-c", code, **dying("gnlqueue.metrics.counting._counts", "before", 2))

    assert worker.ends() == -signal.SIGKILL, worker.log
    assert count(status=JobStatus.DONE, attempts=1) == 2
    assert not TaskMinute.objects.using(alias).exists()


def test_lot_of_jobs_that_is_half_pruned(alias: str, manage: Manage) -> None:
    """Its journal and its attempts are deleted, and the jobs not yet; the lot before it is gone."""
    jobs = [tasks.tell_in_a_step.enqueue() for _ in range(4)]
    for job in jobs:
        claimed = queue.claim(worker_id="w1")
        assert claimed is not None
        queue.fail(claimed, "no use", final=True)
        RunJournalEntry.objects.using(alias).create(
            run_id=job.run_id,
            position=1,
            key="tell",
            key_hash=job.run_id,
            kind="step",
            status="done",
            lease_token=1,
            started_at=claimed.last_attempted_at,
        )
    command = "gnlqueue", "prune", "--days", "0", "--dead", "--database", alias
    dies = dying("django.db.models.query.QuerySet._raw_delete", "after", 3)

    pruner = manage(*command, **dies, **setting(queue__pruning__BATCH=2, queue__pruning__PAUSE=0))

    assert pruner.ends() == -signal.SIGKILL, pruner.log
    left = [job.pk for job in jobs[2:]]
    assert list(Job.objects.using(alias).order_by("id").values_list("id", flat=True)) == left
    assert list(JobAttempt.objects.using(alias).order_by("job_id").values_list("job_id", flat=True)) == left
    assert RunJournalEntry.objects.using(alias).count() == 2


# --- the heartbeat ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_heartbeat_that_dies_while_it_gives_back(alias: str, manage: Manage, when: str) -> None:
    """Its successor finds in the table what the dead worker held, and blames nobody twice."""
    job = tasks.wait.enqueue()
    run = manage("runworker", "--lease", "60", **dying("gnlqueue.queue.crashes.end_crashed", when))
    victim = until_told("began")["pid"]

    os.kill(victim, signal.SIGKILL)
    run.says("restart .*heartbeat process was killed by SIGKILL")
    until_told("began", 2)
    open_gate("go")

    done = until_status(job, JobStatus.DONE)
    assert (done.attempts, done.lease_token) == (2, 2)
    assert JobAttempt.objects.using(alias).count() == 1
