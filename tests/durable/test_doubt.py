"""A step whose outcome is unknown: what `recover` decides, what `on_doubt` says, and which errors leave no doubt."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from gnlqueue import Backoff, Happened, JobContext, NotHappened, StepFailed, Unknown, queue, signals
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import Ledger, attempt, entry, jobs, leave_started, notes, on_sqlite

Play = Callable[..., Job]


def timed_out(ledger: Ledger) -> Any:
    """Have an effect whose answer does not arrive."""
    ledger.add()
    raise TimeoutError("no answer")


def one_step(ledger: Ledger, **options: Any) -> Callable[[JobContext], Any]:
    """A handler of one step, whose first call gets no answer."""

    def handler(context: JobContext) -> Any:
        return context.using(**options).step("charge", lambda: ledger.add("paid") if len(ledger) else timed_out(ledger))

    return handler


def test_a_step_in_doubt_blocks_the_job_and_gives_the_attempt_back(play: Play, ledger: Ledger) -> None:
    told: list[dict[str, Any]] = []

    def receive(**arguments: Any) -> None:
        told.append(arguments)

    job = play(one_step(ledger, how_to_check="Look into the ledger."), max_attempts=1)
    signals.job_blocked.connect(receive)
    try:
        blocked = attempt(job)
    finally:
        signals.job_blocked.disconnect(receive)
    assert (blocked.status, blocked.blocked_reason, blocked.attempts) == (JobStatus.BLOCKED, "in_doubt", 0)
    assert blocked.lease_expires_at is None
    assert "manage.py gnlqueue resolve" in (blocked.last_error or "")
    error = entry(job).error or {}
    assert error["classes"][0] == "builtins.TimeoutError"
    assert (error["message"], error["how_to_check"]) == ("no answer", "Look into the ledger.")
    assert [(each["job_id"], each["reason"]) for each in told] == [(job.pk, "in_doubt")]


@on_sqlite
def test_a_blocked_job_that_is_polled_a_thousand_times_stays_as_it_is(play: Play, ledger: Ledger) -> None:
    job = play(one_step(ledger), max_attempts=1)
    attempt(job)
    before = jobs().filter(pk=job.pk).values().get()
    for _ in range(1000):
        assert queue.claim(worker_id="w1") is None
    assert jobs().filter(pk=job.pk).values().get() == before


@pytest.mark.parametrize("caught", ["by a crash", "by an error"])
def test_recover_finds_out_that_it_happened(play: Play, ledger: Ledger, caught: str) -> None:
    asked: list[tuple[Any, ...]] = []

    def recover(*args: Any, **kwargs: Any) -> Happened:
        asked.append((args, kwargs))
        return Happened({"id": 7})

    def handler(context: JobContext) -> Any:
        return context.using(recover=recover).step("charge", lambda *_, **__: timed_out(ledger), 3, card="visa")

    job = play(handler)
    if caught == "by a crash":
        leave_started(job, "charge", [[3], {"card": "visa"}])
    done = attempt(job)
    assert (done.status, done.result) == (JobStatus.DONE, {"id": 7})
    assert asked == [((3,), {"card": "visa"})]
    assert len(ledger) == (caught == "by an error")
    assert entry(job).status == EntryStatus.DONE


def test_recover_finds_out_that_it_did_not_happen(play: Play, ledger: Ledger) -> None:
    job = play(lambda context: context.using(recover=NotHappened).step("charge", ledger.add, "paid"))
    leave_started(job, "charge", [["paid"], {}])
    assert attempt_with(job, lambda *args: NotHappened(), ledger).status == JobStatus.DONE
    assert len(ledger) == 1


def attempt_with(job: Job, recover: Any, ledger: Ledger, **options: Any) -> Job:
    tasks.handlers["play"] = lambda context: context.using(recover=recover, **options).step(
        "charge", ledger.add, "paid"
    )
    return attempt(job)


def raises(*args: Any) -> Any:
    raise OSError("the API is down")


@on_sqlite
@pytest.mark.parametrize("recover", [lambda *args: Unknown(), raises, lambda *args: "maybe", None])
def test_whatever_else_recover_does_leaves_the_doubt(play: Play, ledger: Ledger, recover: Any) -> None:
    job = play(None)
    leave_started(job, "charge", [["paid"], {}])
    assert attempt_with(job, recover, ledger).status == JobStatus.BLOCKED
    assert entry(job).status == EntryStatus.IN_DOUBT
    assert len(ledger) == 0


@on_sqlite
def test_a_result_of_recover_that_cannot_be_stored_leaves_the_doubt_and_is_kept(play: Play, ledger: Ledger) -> None:
    job = play(None)
    leave_started(job, "charge", [["paid"], {}])
    assert attempt_with(job, lambda *args: Happened({1, 2}), ledger).status == JobStatus.BLOCKED
    (note,) = notes()
    assert note.value == "{1, 2}"


@on_sqlite
def test_on_doubt_rerun_runs_it_again_at_ones_own_risk(play: Play, ledger: Ledger) -> None:
    job = play(one_step(ledger, on_doubt="rerun"))
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).status == JobStatus.DONE
    assert len(ledger) == 2


def test_on_doubt_rerun_runs_it_again_after_a_crash(play: Play, ledger: Ledger) -> None:
    job = play(None)
    leave_started(job, "charge", [["paid"], {}])
    assert attempt_with(job, None, ledger, on_doubt="rerun").status == JobStatus.DONE
    assert len(ledger) == 1


def test_on_doubt_fail_fails_the_job_at_once_and_keeps_the_doubt(play: Play, ledger: Ledger) -> None:
    job = play(one_step(ledger, on_doubt="fail"))
    dead = attempt(job)
    assert (dead.status, dead.attempts) == (JobStatus.DEAD, 1)
    assert entry(job).status == EntryStatus.IN_DOUBT
    assert attempt(queue.retry(job)).status == JobStatus.DEAD
    assert len(ledger) == 1


@on_sqlite
@pytest.mark.parametrize("kind", ["step", "idempotent_step", "atomic_step"])
def test_a_step_that_failed_safely_is_tried_again_within_the_attempt(play: Play, ledger: Ledger, kind: str) -> None:
    def refused() -> str:
        ledger.add()
        if len(ledger) < 3:
            raise ConnectionRefusedError("no route")
        return "paid"

    def handler(context: JobContext) -> Any:
        steps = context.using(safe_errors=OSError, max_attempts=3, backoff=Backoff(base=0.001, jitter=0))
        return getattr(steps, kind)("charge", refused)

    done = attempt(play(handler))
    assert (done.status, done.result, done.attempts, len(ledger)) == (JobStatus.DONE, "paid", 1, 3)


@on_sqlite
def test_not_happened_is_tried_again_within_the_attempt(play: Play, ledger: Ledger) -> None:
    options = {"recover": NotHappened, "max_attempts": 2, "backoff": tasks.AT_ONCE}
    done = attempt(play(one_step(ledger, **options)))
    assert (done.status, len(ledger)) == (JobStatus.DONE, 2)


@on_sqlite
def test_a_time_out_in_the_middle_of_a_step_leaves_it_in_doubt(play: Play, ledger: Ledger) -> None:
    def slow() -> None:
        ledger.add()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            pass

    job = play(lambda context: context.step("charge", slow), timeout=0.05)
    assert attempt(job).status == JobStatus.BLOCKED
    assert (entry(job).error or {})["classes"][0] == "gnlqueue.exceptions.JobTimedOut"


@on_sqlite
def test_the_end_of_the_process_asked_for_in_a_step_leaves_it_in_doubt(play: Play) -> None:
    def leave() -> None:
        raise SystemExit(1)

    job = play(lambda context: context.step("charge", leave))
    assert attempt(job).status == JobStatus.BLOCKED


@on_sqlite
def test_an_error_whose_text_cannot_be_read_is_recorded_all_the_same(play: Play) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def charge() -> None:
        raise Broken

    job = play(lambda context: context.step("charge", charge))
    assert attempt(job).status == JobStatus.BLOCKED
    assert "Broken" in entry(job).error["message"]


@on_sqlite
@pytest.mark.parametrize("clause", [Exception, BaseException])
def test_no_except_clause_makes_a_success_of_it(play: Play, ledger: Ledger, clause: type[BaseException]) -> None:

    def swallow(context: JobContext) -> str:
        with contextlib.suppress(clause):
            context.step("charge", lambda: timed_out(ledger))
        with contextlib.suppress(clause):
            context.step("ship", ledger.add)
        return "all is well"

    job = play(swallow)
    assert attempt(job).status == JobStatus.BLOCKED
    assert len(ledger) == 1


@on_sqlite
def test_options_that_make_no_sense_are_refused(play: Play) -> None:
    def handler(context: JobContext) -> list[str]:
        refused = []
        for wrong in (
            {"on_doubt": "panic"},
            {"max_attempts": 0},
            {"safe_errors": "OSError"},
            {"key": ""},
            {"key": "a\0"},
            {"key": 3},
        ):
            with pytest.raises(ValueError, match="not"):
                context.using(**wrong)  # type: ignore[arg-type]
            refused.append(next(iter(wrong)))
        return refused

    assert len(attempt(play(handler)).result) == 6


@on_sqlite
def test_a_failure_is_no_doubt(play: Play) -> None:
    def handler(context: JobContext) -> Any:
        def decline() -> None:
            raise tasks.Declined("no money")

        with pytest.raises(StepFailed) as told:
            context.using(final_errors=tasks.Declined).step("charge", decline)
        return told.value.message

    assert attempt(play(handler)).result == "no money"
