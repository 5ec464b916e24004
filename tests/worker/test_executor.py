"""What becomes of a job by what its task returns or raises; in an embedded worker, on every database."""

import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DataError, OperationalError, connections
from django.utils import translation

import gnlqueue
from gnlqueue import queue, signals
from gnlqueue.exceptions import JobBlocked
from gnlqueue.models import Job, JobAttempt, JobStatus
from gnlqueue.queue import leaving, transitions
from gnlqueue.queue.transactions import alias_of
from gnlqueue.worker import executor, outcomes
from gnlqueue.worker.executor import Ending, Terms
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.timeouts import Timeouts
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.app.models import Note
from tests.durable import tasks as durable
from tests.worker.conftest import drain, on_sqlite, row, until_status, until_told
from tests.worker.processes import until


def refusal(alias: str) -> Exception:
    """What a driver raises for a value that the database refuses; on MySQL that of mysqlclient."""
    if connections[alias].vendor == "mysql":
        return OperationalError(1366, "Incorrect string value, no such character")
    return DataError("no such character")


def run(task: Any, *args: Any, **options: Any) -> Job:
    """Enqueue, run all that is due, and return the job as it then is."""
    job = task.enqueue(*args)
    drain(**options)
    return row(job)


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


@pytest.mark.parametrize(
    "value", [{"a": float("nan")}, "a\0b", "\udc80", b"bytes", object(), "x" * 2000], ids=lambda value: repr(value)[:20]
)
def test_result_that_cannot_be_stored_leaves_the_job_done(
    alias: str, value: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "MAX_PAYLOAD_BYTES": 1000}
    monkeypatch.setattr(tasks, "UNSENDABLE", value)

    job = run(tasks.return_unsendable)

    assert (job.status, job.result, job.attempts) == (JobStatus.DONE, None, 1)
    assert f"job {job.pk} (tests.app.tasks.return_unsendable) is done, but its result was not stored" in caplog.text


def test_result_that_the_database_refuses_leaves_the_job_done(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason: the others of the group are written, and this one without its result."""
    complete_many = transitions.complete_many

    def refuse(done: Any, **options: Any) -> Any:
        if any(result == "refused" for _, result in done):
            raise refusal(alias)
        return complete_many(done, **options)

    monkeypatch.setattr(transitions, "complete_many", refuse)
    ids = gnlqueue.enqueue_many(tasks.give.bind(value) for value in ["one", "refused", "three"])

    drain()

    jobs = Job.objects.using(alias).in_bulk(ids)
    assert [(jobs[id].status, jobs[id].result) for id in ids] == [("done", "one"), ("done", None), ("done", "three")]
    assert "its result was refused: " in caplog.text
    assert "no such character" in caplog.text


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


@pytest.mark.parametrize("message", ["a\0b", "lone \udc80 surrogate", "✓ " * 20_000], ids=["NUL", "surrogate", "long"])
def test_text_of_an_exception_never_stops_its_record(alias: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "UNSENDABLE", message)

    job = run(tasks.raise_unsendable)

    assert job.status == JobStatus.DEAD
    assert job.last_error.startswith("RuntimeError: ")
    assert "RuntimeError: " in JobAttempt.objects.using(alias).get().error


def test_failure_whose_text_the_database_refuses_is_recorded_without_it(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail = transitions.fail

    def refuse(claimed: Any, reason: Any, **options: Any) -> Any:
        if reason.exception_class:
            raise refusal(alias)
        return fail(claimed, reason, **options)

    monkeypatch.setattr(transitions, "fail", refuse)

    job = run(tasks.fail)

    assert (job.status, job.attempts) == (JobStatus.DEAD, 2)
    assert job.last_error == "RuntimeError, with a text that the database refused"


def test_blocked_job_whose_reason_the_database_refuses_is_blocked_without_it(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a failure it would run again."""
    block = transitions.block

    def refuse(claimed: Any, reason: str, error: str) -> Any:
        if "naïve" in error:
            raise refusal(alias)
        return block(claimed, reason, error)

    monkeypatch.setattr(transitions, "block", refuse)
    job = tasks.nothing.enqueue()
    claimed = queue.claim(worker_id="w1")
    assert claimed is not None

    outcomes.write([executor.Outcome(claimed, Ending.BLOCKED, error=JobBlocked("a naïve step", "mismatch"))])

    assert (row(job).status, row(job).blocked_reason) == (JobStatus.BLOCKED, "mismatch")
    assert row(job).last_error == "JobBlocked, with a text that the database refused"


def test_values_are_left_out_when_the_database_goes_on_refusing(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever error it makes of that: a broken connection would be offered the same again, for ever."""
    fail, complete_many = transitions.fail, transitions.complete_many

    def refuse(claimed: Any, reason: Any, **options: Any) -> Any:
        if reason.exception_class:
            raise OperationalError("lost connection")
        return fail(claimed, reason, **options)

    def refuse_result(done: Any, **options: Any) -> Any:
        if any(result is not None for _, result in done):
            raise OperationalError("lost connection")
        return complete_many(done, **options)

    monkeypatch.setattr(transitions, "fail", refuse)
    monkeypatch.setattr(transitions, "complete_many", refuse_result)
    monkeypatch.setattr("gnlqueue.worker.outbox.MOST_REFUSALS", 2)
    good, bad = tasks.give.enqueue("a result"), tasks.fail.using(max_attempts=1).enqueue()

    drain(lease=1)

    assert (row(good).status, row(good).result) == (JobStatus.DONE, None)
    assert (row(bad).status, row(bad).last_error) == (
        JobStatus.DEAD,
        "RuntimeError, with a text that the database refused",
    )


def strange_syntax_error() -> SyntaxError:
    """An error at which `traceback` itself stumbles."""
    error = SyntaxError("of a template")
    error.lineno, error.text = 1, 5  # type: ignore[assignment]
    return error


def retry_with_nonsense() -> gnlqueue.Retry:
    """A `Retry` that was changed after it was made."""
    error = gnlqueue.Retry("later")
    error.after = float("nan")
    return error


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (strange_syntax_error, "SyntaxError, with a text that cannot be shown"),
        (retry_with_nonsense, "What came of it could not be recorded: ValueError: after must lie between 0 seconds"),
    ],
)
@on_sqlite
def test_no_error_is_too_strange_to_be_recorded(
    alias: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception], expected: str
) -> None:
    monkeypatch.setattr(tasks, "UNSENDABLE", make())
    strange, other = tasks.raise_it.enqueue(), tasks.nothing.enqueue()

    drain()

    assert row(strange).status == JobStatus.DEAD
    assert row(strange).last_error.startswith(expected)
    assert row(other).status == JobStatus.DONE


@on_sqlite
def test_error_is_described_in_the_thread_of_its_task(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is made by code of the task's author, and that may take as long as it likes."""
    asked_in: set[str] = set()

    class Slow(Exception):
        def __str__(self) -> str:
            asked_in.add(threading.current_thread().name)
            return "after a while"

    monkeypatch.setattr(tasks, "UNSENDABLE", Slow())

    job = run(tasks.raise_it)

    assert job.last_error.endswith("Slow: after a while")
    assert asked_in == {"gnlqueue-1"}


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
    assert f"{task.name} returned {what}, which nobody runs: nothing of it was done" in job.last_error
    assert told() == []


@pytest.mark.parametrize("task", [tasks.speak, tasks.aspeak], ids=["def", "async def"])
@on_sqlite
def test_context_of_one_job_is_not_that_of_the_next(alias: str, task: gnlqueue.Task) -> None:
    ids = gnlqueue.enqueue_many(task.bind(language) for language in ["de", "fr", "it"])
    alone = task.using(queue_name="elsewhere").enqueue("es")

    drain(concurrency=1, queues=["default"])
    Worker(["elsewhere"]).run_once()

    jobs = Job.objects.using(alias).in_bulk([*ids, alone.pk])
    assert {job.result for job in jobs.values()} == {"en-us"}
    assert translation.get_language() == "en-us"


@pytest.mark.parametrize("task", [tasks.ask_connection, tasks.aask_connection], ids=["def", "async def"])
@on_sqlite
def test_connection_of_one_job_is_that_of_the_next(alias: str, task: gnlqueue.Task) -> None:
    """It is the thread's, whatever context a job runs in."""
    ids = gnlqueue.enqueue_many(task.bind() for _ in range(3))

    drain(concurrency=1)

    assert len({job.result for job in Job.objects.using(alias).in_bulk(ids).values()}) == 1


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


def test_failure_is_reported_as_it_was_written(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever claims the job right after the commit: that one's attempt is another one."""
    retried, others = leaving.retried, list[Any]()

    def with_another_worker(alias: str, write: Callable[[], Any]) -> Any:
        result = retried(alias, write)
        others.append(queue.claim(worker_id="another"))
        return result

    monkeypatch.setattr(leaving, "retried", with_another_worker)

    job = run(tasks.ask_to_retry, 0)

    assert (job.status, job.worker_id) == (JobStatus.IN_PROGRESS, "another")
    assert [other.id for other in others] == [job.pk]
    assert "attempt 1 of 5, next in 0 ms: " in caplog.text
    assert "in_progress" not in caplog.text


@on_sqlite
def test_time_to_the_next_attempt_is_counted_from_when_the_failure_was_written(
    alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as the database was away nobody could write it."""
    caplog.set_level("WARNING", "gnlqueue.worker")
    tasks.nothing.enqueue()
    claimed = queue.claim(worker_id="w1")
    assert claimed is not None
    claimed = claimed._replace(last_attempted_at=claimed.last_attempted_at - timedelta(minutes=5))

    outcomes.write([executor.Outcome(claimed, Ending.FAILED, error="no paper", after=20)])

    assert "next in 20.0 s: no paper" in caplog.text


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
    assert "is the deploy complete?" in caplog.text

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


@pytest.mark.parametrize(
    ("task", "then"),
    [
        (tasks.leave_transaction_open, tasks.write_note),
        (tasks.begin, tasks.write_note),
        (tasks.aleave_transaction_open, tasks.awrite_note),
        (tasks.abegin, tasks.awrite_note),
    ],
    ids=["set_autocommit", "BEGIN", "set_autocommit, async def", "BEGIN, async def"],
)
def test_task_that_leaves_a_transaction_open_does_not_spoil_the_next_one(
    alias: str, task: gnlqueue.Task, then: gnlqueue.Task
) -> None:
    connections[alias].ensure_connection()
    tells = connections[alias].vendor != "mysql" or hasattr(connections[alias].connection, "server_status")
    if task in (tasks.begin, tasks.abegin) and not tells:
        pytest.skip("mysqlclient does not tell what the server told it")
    task.enqueue()
    gnlqueue.enqueue_many(then.bind(str(number)) for number in range(3))

    drain(concurrency=1)

    assert Note.objects.using(alias).count() == 3


@on_sqlite
def test_idle_connection_of_async_jobs_is_closed(alias: str, in_thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnlqueue.worker.connections.IDLE_CONNECTION_AGE", 0.05)
    worker = Worker()
    in_thread(worker)
    for _ in range(2):
        until_status(tasks.awrite_note.enqueue("here"), JobStatus.DONE)

        theirs = worker._pool._async_connections._theirs
        assert theirs
        until(lambda theirs=theirs: all(each.connection is None for each in theirs), "the end of its connection")


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_broken_connection_of_a_receiver_is_not_kept(alias: str) -> None:
    """One to another database than the queue's."""
    raised: list[bool] = []

    def use_other_database(**_: Any) -> None:
        with connections["default"].cursor() as cursor:
            raised.append(connections["default"].errors_occurred)
            cursor.execute("SELECT * FROM nowhere")

    signals.job_finished.connect(use_other_database)
    try:
        gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(3))
        drain(concurrency=1)
    finally:
        signals.job_finished.disconnect(use_other_database)

    assert raised == [False] * 3


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
