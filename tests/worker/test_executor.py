"""What becomes of a job by what its task returns or raises; in an embedded worker, on every database."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

import gnlqueue
from gnlqueue import queue, signals
from gnlqueue.models import Job, JobAttempt, JobStatus
from gnlqueue.queue.transactions import alias_of
from gnlqueue.worker import executor
from gnlqueue.worker.executor import Ending, Terms
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.timeouts import Timeouts
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.app.models import Note
from tests.durable import tasks as durable
from tests.worker.conftest import drain, on_sqlite, row, run, until_status, until_told


@pytest.mark.parametrize("value", [None, 0, "", "naïve ✓", [1, {"a": None}], 2**53 + 1, 1.5, False], ids=repr)
@on_sqlite
def test_result_is_stored(alias: str, value: Any) -> None:
    job = run(tasks.give, value)

    assert (job.status, job.result, job.attempts, job.last_error) == (JobStatus.DONE, value, 1, None)
    assert job.finished_at is not None
    assert job.lease_expires_at is None


@pytest.mark.parametrize("kind", ["step", "nothing", "fails"])
@on_sqlite
def test_outcome_says_whether_there_are_steps(alias: str, kind: str) -> None:
    """As it is then written at once."""

    def handler(context: gnlqueue.JobContext) -> None:
        if kind != "nothing":
            context.idempotent_step("work", int)
        if kind == "fails":
            raise ValueError

    durable.handlers["play"] = handler
    durable.play.enqueue()
    job = queue.claim(worker_id="w1")
    assert job is not None

    outcome = executor.run_sync(job, durable.play, Terms(Timeouts(), timedelta(seconds=60), lambda: False))

    assert outcome.has_steps is (kind != "nothing")
    assert outcome.ending is (Ending.FAILED if kind == "fails" else Ending.DONE)


def test_many_results_at_once(alias: str) -> None:
    values = [None, 1, "two", {"three": [3]}] * 20
    ids = gnlqueue.enqueue_many(tasks.give.bind(value) for value in values)

    drain()

    found = Job.objects.using(alias).in_bulk(ids)
    assert [found[id].result for id in ids] == values
    assert {job.status for job in found.values()} == {JobStatus.DONE}


def test_failure_is_retried_until_the_attempts_are_used_up(alias: str) -> None:
    job = run(tasks.fail)

    assert (job.status, job.attempts) == (JobStatus.DEAD, 2)
    assert job.last_error == "RuntimeError: no paper"
    attempts = JobAttempt.objects.using(alias).order_by("number")
    assert [(each.number, each.exception_class) for each in attempts] == [
        (1, "builtins.RuntimeError"),
        (2, "builtins.RuntimeError"),
    ]
    assert "raise RuntimeError(message)\nRuntimeError: no paper" in attempts[0].error


def test_later_attempt_succeeds(alias: str) -> None:
    job = run(tasks.fail_first, 2)

    assert (job.status, job.attempts, job.result, job.last_error) == (JobStatus.DONE, 3, "attempt 3", None)


@pytest.mark.parametrize(
    ("task", "error"),
    [
        pytest.param(tasks.raise_system_exit.using(max_attempts=1), "SystemExit: 3", id="SystemExit"),
        pytest.param(tasks.raise_keyboard_interrupt, "KeyboardInterrupt", id="KeyboardInterrupt"),
        pytest.param(tasks.araise_keyboard_interrupt, "KeyboardInterrupt", id="KeyboardInterrupt, async def"),
    ],
)
def test_no_exception_of_a_task_ends_the_worker(alias: str, task: gnlqueue.Task, error: str) -> None:
    job = task.enqueue()
    others = [tasks.nothing.enqueue(), tasks.aask_current_context.enqueue()]

    drain()

    assert (row(job).status, row(job).last_error) == (JobStatus.DEAD, error)
    assert [row(each).status for each in others] == [JobStatus.DONE] * 2


@on_sqlite
@pytest.mark.parametrize(
    ("function", "task"),
    [("run_sync", tasks.nothing), ("run_async", tasks.aask_current_context)],
    ids=["def", "async def"],
)
def test_error_of_the_package_itself_fails_the_job(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str, task: gnlqueue.Task
) -> None:
    """Not even a bug may leave a job held for ever."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("our own mistake")

    monkeypatch.setattr(executor, function, broken)

    job = run(task.using(max_attempts=1))

    assert (job.status, job.last_error) == (JobStatus.DEAD, "ZeroDivisionError: our own mistake")
    assert "could not be run" in caplog.text


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (tasks.hidden_async_def, "a coroutine"),
        (tasks.hidden_generator, "a generator"),
        (tasks.hidden_async_generator, "a generator"),
        (tasks.aforget_to_await, "a coroutine"),
    ],
    ids=lambda value: getattr(value, "name", "").rpartition(".")[2],
)
@on_sqlite
@pytest.mark.filterwarnings("error::RuntimeWarning")  # of a coroutine that nobody has awaited
def test_task_that_returns_what_was_not_run_has_failed(alias: str, task: gnlqueue.Task, what: str) -> None:
    job = run(task)

    assert job.status == JobStatus.DEAD
    assert f"{task.name} returned {what}, which nobody runs: none of its work was done" in job.last_error
    assert told() == []


@pytest.mark.parametrize(
    "task", [tasks.return_rest, tasks.return_what_is_gone], ids=["a generator of its own", "a value that raises"]
)
@on_sqlite
def test_task_whose_result_cannot_be_stored_is_done_and_not_run_again(alias: str, task: gnlqueue.Task) -> None:
    job = run(task)

    assert (job.status, job.attempts, job.result) == (JobStatus.DONE, 1, None)
    assert [each["what"] for each in told()] == ["worked"]


@on_sqlite
def test_task_that_was_not_run_is_dead_at_once(alias: str) -> None:
    """The next attempt would return the same."""
    assert run(tasks.hidden_async_def.using(max_attempts=5)).status == JobStatus.DEAD


@pytest.mark.parametrize("after", [-1, -0.5, timedelta(seconds=-1), timedelta(days=-1000)], ids=str)
def test_retry_after_a_time_that_has_passed_is_at_once(after: Any) -> None:
    assert gnlqueue.Retry("now", after=after).after == 0


@pytest.mark.parametrize("after", [float("nan"), float("inf"), 10**12, "5", Decimal(5), True], ids=str)
def test_retry_refuses_what_is_no_delay(after: Any) -> None:
    with pytest.raises(ValueError, match=r"^Retry\(after=\)"):
        gnlqueue.Retry("later", after=after)


def test_retry_and_give_up(alias: str) -> None:
    later = tasks.ask_to_retry.enqueue(3600)
    often = tasks.ask_to_retry.using(max_attempts=2).enqueue(0)
    never = tasks.give_up.enqueue()

    drain()

    assert row(later).status == JobStatus.SCHEDULED
    assert 3590 < (row(later).run_at - row(later).last_attempted_at).total_seconds() < 3610
    assert (row(often).status, row(often).attempts) == (JobStatus.DEAD, 2)
    assert "not yet" in row(often).last_error
    assert (row(never).status, row(never).attempts) == (JobStatus.DEAD, 1)
    assert "the order is gone" in row(never).last_error


@pytest.mark.parametrize(
    ("name", "attempts", "said"),
    [
        ("OSError", 2, "attempt 2 of 2: OSError"),
        ("FileNotFoundError", 1, "attempt 1 of 2, in give_up_on: FileNotFoundError"),
        ("ValueError", 1, "attempt 1 of 2, not in retry_for: ValueError"),
    ],
    ids=["retry_for", "give_up_on goes first", "not in retry_for"],
)
def test_classes_of_exceptions_decide(
    alias: str, caplog: pytest.LogCaptureFixture, name: str, attempts: int, said: str
) -> None:
    job = run(tasks.raise_named, name)

    assert (job.status, job.attempts) == (JobStatus.DEAD, attempts)
    assert said in caplog.text


def test_classes_of_a_call_go_before_the_tasks(alias: str) -> None:
    job = run(tasks.raise_named.using(retry_for=ValueError, give_up_on=()), "ValueError")

    assert job.attempts == 2


def test_unknown_task_is_postponed_uncounted_and_dead_after_the_grace(
    alias: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.enqueue("shop.tasks.new_in_this_release")

    drain()

    postponed = row(job)
    assert (postponed.status, postponed.attempts) == (JobStatus.SCHEDULED, 0)
    assert postponed.unknown_since is not None
    assert "'shop.tasks.new_in_this_release'" in postponed.last_error
    assert "is the deploy complete? (If it was renamed: aliases=.) Next in " in caplog.text

    settings.GNLQUEUE = {**settings.GNLQUEUE, "UNKNOWN_TASK_GRACE_SECONDS": 0}
    queue.reschedule(job, timedelta())
    drain()

    assert (row(job).status, row(job).attempts) == (JobStatus.DEAD, 0)


def test_cancel_while_it_runs(alias: str, in_thread: Any) -> None:
    polite, rude, deaf = (
        tasks.check_in_loop.enqueue(),
        tasks.check_in_loop.enqueue(swallow=True),
        tasks.wait.enqueue(),
    )
    in_thread(Worker())
    until_told("began", 3)

    assert queue.cancel(deaf).status == JobStatus.IN_PROGRESS
    for job in (polite, rude):
        queue.cancel(job)  # which may have stopped before this returns

    assert until_status(polite, JobStatus.CANCELLED).finished_at is not None
    # What caught the interrupt has not undone it.
    assert until_status(rude, JobStatus.CANCELLED).result is None
    open_gate("go")
    # And a handler that finishes first is done.
    until_status(deaf, JobStatus.DONE)
    assert [each["by"] for each in told() if each["what"] == "interrupted"] == ["JobCancelled"] * 2


def test_check_notices_that_the_lease_is_lost(alias: str, in_thread: Any, caplog: pytest.LogCaptureFixture) -> None:
    job = tasks.check_in_loop.enqueue()
    in_thread(Worker(heartbeat=False, lease=60))
    until_told("began")

    Job.objects.using(alias).filter(pk=job.pk).update(status=JobStatus.READY, queue_name="elsewhere")

    assert until_told("interrupted")["by"] == "JobPreempted"


@pytest.mark.parametrize("task", [tasks.ask_current_context, tasks.aask_current_context], ids=["def", "async def"])
def test_current_context(alias: str, task: gnlqueue.Task) -> None:
    job = run(task)

    expected = [job.pk, 1, f"job:{job.pk}", "tests.app.tasks.ask_current_context"]
    assert job.result == expected[: len(job.result)]
    with pytest.raises(LookupError):
        gnlqueue.current_context()


def test_signals(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []
    receivers = {
        signals.job_started: lambda job, **_: heard.append(("started", job.id, job.attempts)),
        signals.job_attempt_failed: lambda job, error, **_: heard.append(("failed", job.id, type(error).__name__)),
        signals.job_finished: lambda job_id, status, task_name, **_: heard.append(("finished", job_id, str(status))),
    }

    def broken(**_: Any) -> None:
        raise ValueError("a receiver's own problem")

    try:
        for signal, receiver in receivers.items():
            signal.connect(receiver)
        signals.job_finished.connect(broken)
        good, bad, later = tasks.nothing.enqueue(), tasks.fail.enqueue(), tasks.aask_current_context.enqueue()
        drain(concurrency=1)
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
        signals.job_finished.disconnect(broken)

    assert [each for each in heard if each[1] == good.pk] == [("started", good.pk, 1), ("finished", good.pk, "done")]
    assert [each for each in heard if each[1] == bad.pk] == [
        ("started", bad.pk, 1),
        ("failed", bad.pk, "RuntimeError"),
        ("started", bad.pk, 2),
        ("finished", bad.pk, "dead"),
        ("failed", bad.pk, "RuntimeError"),
    ]
    assert ("started", later.pk, 1) in heard
    assert row(good).status == JobStatus.DONE
    assert "a receiver's own problem" in caplog.text


def test_on_error(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def on_error(claimed: gnlqueue.ClaimedJob, error: BaseException) -> None:
        # After the failure is recorded, not before.
        seen.append((claimed.id, str(error), JobAttempt.objects.using(alias_of(None)).count()))
        raise ValueError("a hook's own problem")

    job = run(tasks.fail, on_error=on_error)

    assert seen == [(job.pk, "no paper", 1), (job.pk, "no paper", 2)]
    assert job.status == JobStatus.DEAD
    assert "a hook's own problem" in caplog.text


@on_sqlite
def test_job_whose_attempts_were_used_up_by_crashes_is_not_run(alias: str) -> None:
    """Rescued by a process that did not know the task, and so not its limit."""
    job = tasks.tell.using(max_attempts=2).enqueue()
    Job.objects.using(alias).filter(pk=job.pk).update(attempts=2)

    drain()

    assert row(job).status == JobStatus.DEAD
    assert told() == []


@on_sqlite
def test_system_exit_in_an_asyncio_task_of_a_job_ends_no_other_job(alias: str) -> None:
    """asyncio lets it out of the event loop, on which the other jobs run too."""
    exiting = tasks.aexit_in_a_task.using(max_attempts=1).enqueue()
    gnlqueue.enqueue_many(tasks.awrite_note.bind(str(number)) for number in range(3))

    drain(concurrency=1)

    assert row(exiting).status == JobStatus.DEAD
    assert Note.objects.using(alias).count() == 3
