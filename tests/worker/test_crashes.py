"""Whatever process of a worker is killed at whatever moment, its jobs are done, and the attempts are counted right."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable

import pytest
from django.db import transaction

import gnlqueue
from gnlqueue.models import Job, JobAttempt, JobStatus
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker.conftest import count, dying, on_sqlite, row, until_all, until_status, until_told
from tests.worker.processes import RunWorker, until

Run = Callable[..., RunWorker]


@pytest.mark.parametrize(
    ("when", "function", "runs", "attempts"),
    [
        pytest.param("before", "gnlqueue.queue.claiming.claim_ready", 1, 1, id="before claim"),
        # Claimed, and not begun: the job doesn't pay for it.
        pytest.param("after", "gnlqueue.queue.claiming.claim_ready", 1, 1, id="after claim"),
        pytest.param("before", "gnlqueue.worker.executor.run_sync", 1, 2, id="begun"),
        pytest.param("after", "gnlqueue.worker.executor.run_sync", 2, 2, id="ran"),
        pytest.param("before", "gnlqueue.worker.outcomes.write", 2, 2, id="before its outcome is written"),
    ],
)
def test_worker_that_dies_is_replaced_at_once(
    alias: str, runworker: Run, when: str, function: str, runs: int, attempts: int
) -> None:
    job = tasks.tell.enqueue()

    # A lease that doesn't run out during the test: nobody waits for its end.
    run = runworker("--lease", "60", **dying(function, when))
    done = until_status(job, JobStatus.DONE)

    assert [each["what"] for each in told()].count("dying") == 1
    assert [each["what"] for each in told()].count("ran") == runs
    assert done.attempts == attempts
    assert JobAttempt.objects.using(alias).count() == attempts - 1
    run.says("restart .* was killed by SIGKILL")


@pytest.mark.parametrize(
    ("when", "function", "call"),
    [
        pytest.param("after", "gnlqueue.queue.claiming.claim_ready", 2, id="many claimed"),
        pytest.param("before", "gnlqueue.worker.executor.run_sync", 60, id="some have run"),
        pytest.param("before", "gnlqueue.worker.outcomes.write", 2, id="before a group is written"),
        pytest.param("before", "gnlqueue.worker.outcomes.together", 2, id="after a group is written"),
    ],
)
def test_worker_that_dies_with_many_jobs_in_hand(
    alias: str, runworker: Run, when: str, function: str, call: int
) -> None:
    """Who ran and was not written runs again, and nobody else: not who was written, and not who had not begun."""
    ids = gnlqueue.enqueue_many(tasks.tell.bind() for _ in range(300))

    runworker("--lease", "60", GNLQUEUE_TEST_SET=json.dumps(NO_PAUSES), **dying(function, when, call))
    until_all(JobStatus.DONE)

    assert [each["what"] for each in told()].count("dying") == 1
    runs = Counter(each["job"] for each in told() if each["what"] == "ran")
    again = {job for job, times in runs.items() if times > 1}
    assert set(runs) == set(ids)
    assert max(runs.values()) <= 2
    rescued = set(JobAttempt.objects.using(alias).values_list("job_id", flat=True))
    # One of these may have been about to call its task when its process died.
    assert again <= rescued
    assert len(rescued - again) <= 4
    if function == "gnlqueue.worker.outcomes.write":
        assert again
    others = Job.objects.using(alias).exclude(pk__in=rescued)
    assert set(others.values_list("attempts", flat=True)) <= {1}


def test_of_one_that_runs_and_one_that_has_run_only_the_former_is_to_blame(alias: str, runworker: Run) -> None:
    waiting = tasks.wait.enqueue()
    run = runworker("--lease", "60", **dying("gnlqueue.worker.outcomes.write", "before"))
    until_told("began")
    ran = tasks.tell.enqueue()

    until_told("began", 2)
    open_gate("go")
    until_all(JobStatus.DONE)

    assert [(row(job).attempts, row(job).crashes) for job in (waiting, ran)] == [(2, 0), (1, 0)]
    assert [each["what"] for each in told()].count("ran") == 2
    run.says(f"rescued .*job {waiting.pk}, begun by .*, which died; the attempt counts")
    run.says(f"rescued .*job {ran.pk}, run by .* before it had written what came of it; no attempt counts")


def test_worker_that_dies_while_a_job_runs(alias: str, runworker: Run) -> None:
    job = tasks.wait.enqueue()
    run = runworker("--lease", "60")
    victim = until_told("began")["pid"]

    os.kill(victim, signal.SIGKILL)
    again = until_told("began", 2)
    open_gate("go")

    done = until_status(job, JobStatus.DONE)
    assert (again["attempt"], done.attempts, done.crashes) == (2, 2, 0)
    attempt = JobAttempt.objects.using(alias).get()
    assert attempt.number == 1
    assert "died" in attempt.error
    run.says(f"rescued .*job {job.pk}, begun by .*, which died; the attempt counts")
    assert run.workers(other_than=(victim,)) == [again["pid"]]


@on_sqlite
@pytest.mark.parametrize("status", [0, 3, 4])
def test_task_that_ends_its_process_crashes_it_whatever_the_status(alias: str, runworker: Run, status: int) -> None:
    """Neither does it run for ever, nor is the deployment stopped, nor the drain taken for done."""
    killer = tasks.end_own_process.enqueue(status)
    other = tasks.nothing.enqueue()
    run = runworker("--drain", "--concurrency", "1")

    assert until_status(killer, JobStatus.DEAD).attempts == 2
    assert run.ends() == 0, run.log
    assert row(other).status == JobStatus.DONE
    assert [each["what"] for each in told()].count("ending") == 2
    assert "next one starts in" in run.says(f"restart .* ended with status {status}", 2)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_job_whose_row_is_locked_when_its_worker_dies(alias: str, runworker: Run) -> None:
    """It waits for whoever has the lock, and not for the next beat; nobody waits for it."""
    locked, free = tasks.wait.enqueue(), tasks.wait.enqueue()
    run = runworker("--lease", "60")
    victim = until_told("began", 2)["pid"]

    with transaction.atomic(alias):
        Job.objects.using(alias).select_for_update().get(pk=locked.pk)
        os.kill(victim, signal.SIGKILL)
        run.says(f"rescued .*job {free.pk}, begun by .* nobody knows which did it")
        assert until_told("began", 3)["job"] == free.pk
    assert until_told("began", 4)["job"] == locked.pk

    open_gate("go")
    until_all(JobStatus.DONE)
    assert [row(job).attempts for job in (locked, free)] == [1, 1]


def test_kill_of_the_supervisor_loses_nothing(alias: str, runworker: Run) -> None:
    running = tasks.wait.enqueue()
    run = runworker("--lease", "3")
    until_told("began")

    run.signal(signal.SIGKILL)
    # The worker notices, finishes what it runs, with its lease kept, and ends; so does the heartbeat.
    run.says("stopping .*the supervisor is gone")
    waiting = tasks.nothing.enqueue()
    assert row(running).status == JobStatus.IN_PROGRESS
    open_gate("go")

    run.ends()
    assert (row(running).status, row(running).attempts) == (JobStatus.DONE, 1)
    assert (row(waiting).status, row(waiting).attempts) == (JobStatus.READY, 0)


def test_supervisor_and_worker_killed_together(alias: str, runworker: Run) -> None:
    """The heartbeat is left: it sees that the worker is gone, and gives the job back."""
    job = tasks.wait.enqueue()
    run = runworker("--lease", "60")
    victim = until_told("began")["pid"]
    run.heartbeat()

    run.signal(signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)

    assert until_status(job, JobStatus.READY).attempts == 1
    run.ends()


def test_kill_of_the_heartbeat(alias: str, runworker: Run) -> None:
    job = tasks.wait.enqueue()
    run = runworker("--lease", "2")
    until_told("began")
    heartbeat = run.heartbeat()

    os.kill(heartbeat, signal.SIGKILL)
    killed_at = row(job).lease_expires_at
    run.says("restart .*heartbeat process was killed by SIGKILL")

    # Its successor renews the lease that it never saw begin.
    until(lambda: row(job).lease_expires_at > killed_at, "a renewal")
    assert run.heartbeat() != heartbeat
    open_gate("go")
    assert until_status(job, JobStatus.DONE).attempts == 1


def test_kill_of_all_at_once(alias: str, runworker: Run) -> None:
    job = tasks.wait.enqueue()
    run = runworker("--lease", "1")
    until_told("began")

    run.signal(signal.SIGKILL, group=True)
    run.ends()
    open_gate("go")
    runworker("--lease", "1")

    assert until_status(job, JobStatus.DONE).attempts == 2


@pytest.mark.parametrize(
    ("concurrency", "max_attempts"),
    [pytest.param(1, 1, id="alone"), pytest.param(4, 1, id="four at once"), pytest.param(4, 2, id="two attempts")],
)
def test_one_killer_among_a_hundred(alias: str, runworker: Run, concurrency: int, max_attempts: int) -> None:
    """Those that had begun beside it begin again, and nobody's attempts are used up by it but its own."""
    nothing = tasks.nothing.using(max_attempts=max_attempts)
    killing = tasks.kill_own_process.using(max_attempts=max_attempts)
    ids = gnlqueue.enqueue_many(killing.bind() if number == 50 else nothing.bind() for number in range(101))
    killer = ids.pop(50)

    runworker("--concurrency", str(concurrency), GNLQUEUE_TEST_SET=json.dumps(NO_PAUSES))
    dead = until_status(killer, JobStatus.DEAD)
    until(lambda: count(status=JobStatus.DONE) == 100, "100 jobs done")

    assert dead.attempts == max_attempts
    assert JobAttempt.objects.using(alias).filter(job=killer).count() >= max_attempts
    others = Job.objects.using(alias).filter(pk__in=ids)
    assert set(others.values_list("attempts", flat=True)) == {1}


def test_job_that_crashed_twice_runs_with_nothing_else_in_its_process(alias: str, runworker: Run) -> None:
    suspect = tasks.kill_own_process_if_not_alone.enqueue()
    run = runworker(GNLQUEUE_TEST_SET=json.dumps(NO_PAUSES))
    until(lambda: row(suspect).crashes == 2, "two crashes")
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(50))

    until_all(JobStatus.DONE)

    assert until_told("alone")["held"] == 1
    assert row(suspect).attempts == 3
    run.says("restart", 2)


#: A process that dies young comes back without a pause, for tests of something else.
NO_PAUSES = {"gnlqueue.worker.supervisor.YOUNG": 0}
