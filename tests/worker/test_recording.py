"""What came of a job is recorded, whatever the task returned or raised, and whatever the database makes of it."""

import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connections

import gnlqueue
from gnlqueue import queue
from gnlqueue.exceptions import JobBlocked
from gnlqueue.models import Job, JobAttempt, JobStatus
from gnlqueue.queue import leaving, transitions
from gnlqueue.worker import executor, outbox, outcomes
from gnlqueue.worker.executor import Ending
from tests.app import tasks
from tests.worker.conftest import drain, on_sqlite, row, run


def refusal(alias: str) -> Exception:
    """What a driver raises for a value that the database refuses; on MySQL that of mysqlclient."""
    if connections[alias].vendor == "mysql":
        return OperationalError(1366, "Incorrect string value, no such character")
    return DataError("no such character")


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
            asked_in.add(threading.current_thread().name.rpartition("-")[0])
            return "after a while"

    monkeypatch.setattr(tasks, "UNSENDABLE", Slow())

    job = run(tasks.raise_it)

    assert job.last_error.endswith("Slow: after a while")
    assert asked_in == {"gnlqueue"}  # one of the pool's


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


@on_sqlite
@pytest.mark.parametrize(("at_most", "told"), [(0.0, True), (3600.0, False)])
def test_a_loop_that_stood_still_while_it_wrote_says_so(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at_most: float, told: bool
) -> None:
    """Such as for a row that somebody's long transaction has locked."""
    monkeypatch.setattr(outbox, "SLOW", at_most)
    job = tasks.nothing.enqueue()
    drain()
    said = rf"slow       .* to write what came of job {job.pk}; nothing was claimed meanwhile"
    assert bool(re.search(said, caplog.text)) == told
