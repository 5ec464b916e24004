"""An attempt that runs longer than its timeout ends, and fails; one that cannot be ended costs its worker process."""

import json
import threading
import time
from collections.abc import Callable

import pytest

from gnlqueue.exceptions import JobTimedOut
from gnlqueue.models import JobAttempt, JobStatus
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.timeouts import Timeouts
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker.conftest import drain, on_sqlite, row, until_status, until_told
from tests.worker.processes import RunWorker, until

Run = Callable[..., RunWorker]

SHORT_GRACE = json.dumps({"gnlqueue.worker.timeouts.GRACE": 0.1})


@pytest.mark.parametrize("task", [tasks.loop_for_ever, tasks.await_for_ever], ids=["def", "async def"])
def test_attempt_is_interrupted(alias: str, task: tasks.gnlqueue.Task) -> None:
    job = task.enqueue()

    drain()

    assert row(job).status == JobStatus.DEAD
    assert row(job).last_error.startswith("gnlqueue.exceptions.JobTimedOut: It ran longer than 0.1 s.")
    assert JobAttempt.objects.using(alias).get().exception_class == "gnlqueue.exceptions.JobTimedOut"
    assert (told() == []) == (task is tasks.loop_for_ever)  # the other one saw its cancellation


def test_timeout_of_a_call_goes_before_the_tasks_own(alias: str) -> None:
    job = tasks.loop_for_ever.using(timeout=0.05).enqueue()

    drain()

    assert "longer than 0.05 s" in row(job).last_error


@pytest.mark.parametrize("task", [tasks.sleep_in_c, tasks.block_event_loop], ids=["def", "async def"])
def test_attempt_that_cannot_be_interrupted_costs_its_process(
    alias: str, runworker: Run, task: tasks.gnlqueue.Task
) -> None:
    neighbour = tasks.wait.enqueue()
    run = runworker("--shutdown-timeout", "0.2", GNLQUEUE_TEST_SET=SHORT_GRACE)
    first = until_told("began")
    overdue = task.enqueue()

    dead = until_status(overdue, JobStatus.DEAD)
    again = until_told("began", 2)
    open_gate("go")
    done = until_status(neighbour, JobStatus.DONE)

    assert "could not be interrupted" in dead.last_error
    assert dead.crashes == 0
    # The neighbour is given back: neither an attempt nor a crash is its.
    assert again["pid"] != first["pid"]
    assert (done.attempts, done.crashes, done.lease_token) == (1, 0, 2)
    assert [attempt.job_id for attempt in JobAttempt.objects.using(alias).all()] == [overdue.pk]
    run.says("overdue")
    assert "next one starts" not in run.says("restart")


@on_sqlite
def test_draining_worker_that_ended_because_of_one_job_is_replaced(alias: str, runworker: Run) -> None:
    overdue = tasks.sleep_in_c.using(priority=1).enqueue()
    waiting = tasks.nothing.enqueue()

    run = runworker("--drain", "--concurrency", "1", "--shutdown-timeout", "0.1", GNLQUEUE_TEST_SET=SHORT_GRACE)

    assert run.ends() == 0, run.log
    assert row(overdue).status == JobStatus.DEAD
    assert row(waiting).status == JobStatus.DONE


@on_sqlite
def test_run_once_has_timeouts_too(alias: str) -> None:
    tasks.loop_for_ever.enqueue()

    job = Worker().run_once()

    assert job is not None
    assert (job.status, job.last_error) == (
        JobStatus.DEAD,
        "gnlqueue.exceptions.JobTimedOut: It ran longer than 0.1 s.",
    )


def test_no_interrupt_reaches_a_thread_after_its_task() -> None:
    """The interrupt is sent at the very moment at which the task ends, again and again."""
    timeouts = Timeouts()
    claimed = type("Claimed", (), {"pair": (1, 1)})()
    ends = time.monotonic() + 0.5
    interrupts = 0
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.is_set():
            timeouts.interrupt_overdue()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        while time.monotonic() < ends:
            try:
                try:
                    timeouts.enter(claimed, 0)
                finally:
                    timeouts.leave(claimed)
            except JobTimedOut:
                interrupts += 1
                timeouts.leave(claimed)
            # From here on nothing may come.
            sum(range(10))
    finally:
        stop.set()
        interrupter.join()

    assert timeouts.interrupt_overdue() == []
    assert timeouts.seconds_left() is None


@on_sqlite
def test_wait_for_a_timeout_is_not_a_busy_loop(alias: str, in_thread: Callable[..., object]) -> None:
    tasks.wait.using(timeout=60).enqueue()
    turns = 0
    worker = Worker(poll_interval=30, concurrency=1)
    turn = worker._turn

    def counted() -> float:
        nonlocal turns
        turns += 1
        return turn()

    worker._turn = counted  # type: ignore[method-assign]
    in_thread(worker)
    until_told("began")
    until(lambda: turns, "a turn")

    assert turns < 20
    open_gate("go")
    until_told("ended")
