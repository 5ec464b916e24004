"""A step whose outcome is unknown: what `recover` decides, what `on_doubt` says, and which errors leave no doubt."""

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gnlqueue import Backoff, Happened, JobContext, NotHappened, StepFailed, Unknown, queue, signals
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import (
    KINDS,
    Ledger,
    attempt,
    crashing,
    entries,
    entry,
    give,
    jobs,
    leave_started,
    notes,
    now_do,
    on_sqlite,
    received,
)

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
    job = play(one_step(ledger, how_to_check="Look into the ledger."), max_attempts=1)
    with received(signals.job_blocked) as told:
        blocked = attempt(job)
    assert (blocked.status, blocked.blocked_reason, blocked.attempts) == (JobStatus.BLOCKED, "in_doubt", 0)
    assert blocked.lease_expires_at is None
    assert "manage.py gnlqueue resolve" in (blocked.last_error or "")
    error = entry(job).error or {}
    assert error["classes"][0] == "builtins.TimeoutError"
    assert (error["message"], error["how_to_check"]) == ("no answer", "Look into the ledger.")
    assert [(each["job_id"], each["reason"]) for each in told] == [(job.pk, "in_doubt")]


def test_the_signal_says_that_it_is_a_mismatch(play: Play) -> None:
    job = misfit(play)
    with received(signals.job_blocked) as told:
        attempt(job)
    (arguments,) = told
    assert (arguments["sender"], arguments["job_id"], arguments["reason"]) == (Job, job.pk, "mismatch")
    assert arguments["task_name"] == "tests.durable.tasks.play"


def misfit(play: Play, kind: str = "step", **options: Any) -> Job:
    """A job whose code asks for another step of that kind, since its first attempt crashed."""
    job = play(crashing(lambda context: getattr(context, kind)("charge", give("paid"))), **options)
    attempt(job)
    now_do(lambda context: getattr(context, kind)("charge card", give("paid twice")))
    return job


def test_jobs_that_are_blocked_stay_as_they_are_however_often_one_polls(alias: str, play: Play, ledger: Ledger) -> None:
    """Each claim promotes and rescues first, here as if weeks went by."""
    doubtful = attempt(play(one_step(ledger), max_attempts=1))
    mismatched = attempt(misfit(play, max_attempts=2))
    blocked = list(jobs().order_by("id").values())
    for number in range(1000 if alias == "default" else 100):
        later = doubtful.enqueued_at + timedelta(hours=number)
        assert queue.claim_many(worker_id="w1", limit=10, now=later) == []
    assert list(jobs().order_by("id").values()) == blocked
    assert [(each.blocked_reason, each.attempts) for each in (doubtful, mismatched)] == [
        ("in_doubt", 0),
        ("mismatch", 1),
    ]


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


@pytest.mark.parametrize("recover", [lambda *args: Unknown(), raises, lambda *args: "maybe", None])
def test_whatever_else_recover_does_leaves_the_doubt(play: Play, ledger: Ledger, recover: Any) -> None:
    job = play(None)
    leave_started(job, "charge", [["paid"], {}])
    assert attempt_with(job, recover, ledger).status == JobStatus.BLOCKED
    assert entry(job).status == EntryStatus.IN_DOUBT
    assert len(ledger) == 0


def test_a_result_of_recover_that_cannot_be_stored_leaves_the_doubt_and_is_kept(play: Play, ledger: Ledger) -> None:
    job = play(None)
    leave_started(job, "charge", [["paid"], {}])
    assert attempt_with(job, lambda *args: Happened({1, 2}), ledger).status == JobStatus.BLOCKED
    (note,) = notes()
    assert note.value == "{1, 2}"


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


def test_not_happened_is_tried_again_within_the_attempt(play: Play, ledger: Ledger) -> None:
    options = {"recover": NotHappened, "max_attempts": 2, "backoff": tasks.AT_ONCE}
    done = attempt(play(one_step(ledger, **options)))
    assert (done.status, len(ledger)) == (JobStatus.DONE, 2)


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


@pytest.mark.parametrize("clause", [Exception, BaseException])
@pytest.mark.parametrize("kind", KINDS)
def test_no_except_clause_makes_a_success_of_it(
    play: Play, ledger: Ledger, kind: str, clause: type[BaseException]
) -> None:
    def swallow(context: JobContext) -> str:
        with contextlib.suppress(clause):
            context.step("charge", lambda: timed_out(ledger))
        with contextlib.suppress(clause):
            getattr(context, kind)("ship", ledger.add)
        return "all is well"

    job = play(swallow)
    assert attempt(job).status == JobStatus.BLOCKED
    assert len(ledger) == 1


@pytest.mark.parametrize("clause", [Exception, BaseException])
@pytest.mark.parametrize("kind", KINDS)
def test_no_except_clause_makes_a_success_of_a_step_that_does_not_fit(
    play: Play, kind: str, clause: type[BaseException]
) -> None:
    job = misfit(play, kind)
    asks = tasks.handlers["play"]

    def swallow(context: JobContext) -> str:
        for _ in range(2):
            with contextlib.suppress(clause):
                asks(context)
        return "all is well"

    now_do(swallow)
    assert attempt(job).blocked_reason == "mismatch"
    assert [each.key for each in entries(job)] == ["charge"]


@on_sqlite
@pytest.mark.parametrize("clause", [Exception, BaseException])
@pytest.mark.parametrize("kind", KINDS)
def test_no_except_clause_in_asynchronous_code_makes_a_success_of_it(
    aplay: Play, ledger: Ledger, kind: str, clause: type[BaseException]
) -> None:
    async def charge() -> None:
        timed_out(ledger)

    async def ship() -> None:
        ledger.add()

    async def swallow(context: JobContext) -> str:
        with contextlib.suppress(clause):
            await context.astep("charge", charge)
        with contextlib.suppress(clause):
            await getattr(context, f"a{kind}")("ship", ledger.add if kind == "atomic_step" else ship)
        return "all is well"

    job = aplay(swallow)
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
