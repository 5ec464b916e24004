"""SIGTERM at any moment strands nothing and burns no attempt."""

import json
import os
import random
import signal
from collections.abc import Callable

import pytest

import gnlqueue
from gnlqueue.models import Job, JobAttempt, JobStatus, WorkerProcess
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker.conftest import count, on_sqlite, row, until_told
from tests.worker.processes import RunWorker, until

Run = Callable[..., RunWorker]


@pytest.mark.parametrize("seed", range(3))
def test_sigterm_while_short_jobs_flow(alias: str, runworker: Run, seed: int) -> None:
    jobs = 200
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(jobs))
    stop_at = random.Random(seed).randrange(5, 120)

    run = runworker("--lease", "60", "--concurrency", "2", "--processes", "2")
    until(lambda: count(status=JobStatus.DONE) >= stop_at, f"{stop_at} done")
    run.signal(signal.SIGTERM)

    assert run.ends() == 0, run.log
    rows = list(Job.objects.using(alias).values_list("status", "attempts"))
    assert len(rows) == jobs
    assert set(rows) <= {("done", 1), ("ready", 0)}
    assert not JobAttempt.objects.using(alias).exists()
    assert not WorkerProcess.objects.using(alias).exists()


@on_sqlite
@pytest.mark.parametrize("seed", range(6))
def test_sigterm_at_any_moment_of_the_start(alias: str, runworker: Run, seed: int) -> None:
    """At the start there are forks that could miss the signal."""
    job = tasks.tell.enqueue()
    run = runworker("--processes", "3")
    run.says("gnlqueue .* on")  # the handlers come right after this
    run.says("tasks ")
    for _ in range(random.Random(seed).randrange(20_000)):
        pass

    run.signal(signal.SIGTERM)

    assert run.ends() in {0, -signal.SIGTERM}  # the latter: before there was anything to end
    assert row(job).status in {JobStatus.READY, JobStatus.DONE}
    assert row(job).attempts == len([each for each in told() if each["what"] == "ran"])


@pytest.mark.parametrize(
    ("number", "group"),
    [
        pytest.param(signal.SIGTERM, False, id="SIGTERM"),
        pytest.param(signal.SIGTERM, True, id="SIGTERM to all, as systemd does"),
        pytest.param(signal.SIGINT, True, id="Ctrl-C"),
    ],
)
def test_what_runs_may_finish(alias: str, runworker: Run, number: signal.Signals, group: bool) -> None:
    running = [tasks.wait.enqueue(), tasks.await_gate.enqueue()]
    # Prefetched or not, these have not begun when the signal comes.
    waiting = [tasks.tell.enqueue() for _ in range(5)]
    run = runworker("--lease", "2", "--concurrency", "2")
    until_told("began", 2)

    run.signal(number, group=group)
    run.says("stopping .*what runs may finish")
    open_gate("go")

    assert run.ends() == 0, run.log
    assert "at once" not in run.log.split("what runs may finish")[1].replace("again to stop at once", "")
    assert [(row(job).status, row(job).attempts) for job in running] == [(JobStatus.DONE, 1)] * 2
    assert [(row(job).status, row(job).attempts) for job in waiting] == [(JobStatus.READY, 0)] * 5


@pytest.mark.parametrize("task", [tasks.wait, tasks.await_gate], ids=["def", "async def"])
def test_what_does_not_finish_in_time_is_released(alias: str, runworker: Run, task: gnlqueue.Task) -> None:
    job = task.enqueue()
    run = runworker("--shutdown-timeout", "0.1")
    until_told("began")

    run.signal(signal.SIGTERM)

    assert run.ends() == 0, run.log
    released = row(job)
    assert (released.status, released.attempts, released.lease_expires_at) == (JobStatus.READY, 0, None)
    assert not JobAttempt.objects.using(alias).exists()
    run.says(f"stopping .*without job {job.pk}, which did not finish in time")
    run.says(f"released .*job {job.pk}, held by .*, which ended; no attempt counted")
    assert run.log.count("released ") == 1  # by whoever did it


def test_second_signal_ends_at_once(alias: str, runworker: Run) -> None:
    job = tasks.wait.enqueue()
    # What comes within half a second of the first signal belongs to it; the test need not wait so long.
    run = runworker(GNLQUEUE_TEST_SET=json.dumps({"gnlqueue.worker.supervisor.ONE_SIGNAL": 0}))
    until_told("began")

    run.signal(signal.SIGTERM)
    run.says("stopping .*what runs may finish")
    run.signal(signal.SIGTERM)
    run.says("stopping .*at once")

    assert run.ends() == 0, run.log
    assert (row(job).status, row(job).attempts) == (JobStatus.READY, 0)


@on_sqlite
def test_stopped_worker_is_told_too(alias: str, runworker: Run) -> None:
    run = runworker()
    (worker,) = run.workers()
    os.kill(worker, signal.SIGSTOP)
    run.signal(signal.SIGTERM)

    assert run.ends() == 0, run.log


@on_sqlite
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_single_process_without_a_supervisor(alias: str, runworker: Run, number: signal.Signals) -> None:
    """``--no-heartbeat`` runs in one process, which is to end just as well."""
    job = tasks.wait.enqueue()
    run = runworker("--no-heartbeat", "--shutdown-timeout", "0.1")
    until_told("began")

    run.signal(number)

    assert run.ends() == 0, run.log
    assert (row(job).status, row(job).attempts) == (JobStatus.READY, 0)
