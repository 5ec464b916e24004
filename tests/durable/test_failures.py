"""`StepFailed`: the same on the first run and on replay, sealed once the handler went on after it."""

from collections.abc import Callable
from typing import Any

import pytest

from gnlqueue import JobContext, Retry, StepFailed, queue
from gnlqueue.models import Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import KINDS, Ledger, attempt, entries, entry, on_sqlite

Play = Callable[..., Job]


def fails(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("kind", KINDS)
def test_a_final_failure_is_the_same_on_the_first_run_and_on_replay(play: Play, kind: str) -> None:
    told: list[StepFailed] = []

    def handler(context: JobContext) -> None:
        try:
            steps = context.using(final_errors=tasks.Declined)
            getattr(steps, kind)("charge", lambda: fails(tasks.Declined("no money")))
        except StepFailed as failed:
            told.append(failed)
        raise OSError("crash")

    job = play(handler)
    attempt(job)
    attempt(job)
    first, replayed = told
    same = ("key", "error_class", "classes", "message", "final")
    assert [getattr(first, name) for name in same] == [getattr(replayed, name) for name in same]
    assert (str(first), first.error_class, first.message) == (
        str(replayed),
        "tests.durable.tasks.Declined",
        "no money",
    )
    assert isinstance(first.__cause__, tasks.Declined)
    assert replayed.__cause__ is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_that_the_handler_caught_and_went_on_after_is_sealed(play: Play, ledger: Ledger, kind: str) -> None:
    """Whatever the first branch would do the second time, the resumed run takes the other one again."""
    branches: list[str] = []

    def refuse_once() -> str:
        ledger.add()
        if len(ledger) == 1:
            raise tasks.Refused("no route")
        return "visa"

    def handler(context: JobContext) -> None:
        try:
            branches.append(getattr(context.using(safe_errors=tasks.Refused), kind)("charge visa", refuse_once))
        except StepFailed as failed:
            seen = failed.error_class
            branches.append(context.step("charge mastercard", lambda: seen))
        if len(branches) == 1:
            raise OSError("crash")

    job = play(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).status == JobStatus.DONE
    assert branches == ["tests.durable.tasks.Refused"] * 2
    assert len(ledger) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_that_ended_the_attempt_is_not_sealed(play: Play, ledger: Ledger, kind: str) -> None:
    def refuse_once() -> str:
        ledger.add()
        if len(ledger) == 1:
            raise tasks.Refused("no route")
        return "visa"

    job = play(lambda context: getattr(context.using(safe_errors=tasks.Refused), kind)("charge", refuse_once))
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == "visa"


def test_a_sleep_seals_too(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> None:
        try:
            context.idempotent_step("charge", lambda: fails(OSError("no route")))
        except StepFailed:
            context.sleep("cool down", 3600)

    job = play(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert (entry(job, "charge").error or {})["sealed"] is True


@on_sqlite
def test_a_sealed_failure_that_is_raised_again_still_counts_as_one_that_may_be_retried(play: Play) -> None:
    def handler(context: JobContext) -> None:
        try:
            context.idempotent_step("charge", lambda: fails(OSError("no route")))
        except StepFailed:
            context.step("tell somebody", lambda: None)
            raise

    job = play(handler, max_attempts=3)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).status == JobStatus.DEAD


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"retry_for": (OSError,)}, JobStatus.SCHEDULED),
        ({"retry_for": (ConnectionRefusedError,)}, JobStatus.SCHEDULED),
        ({"retry_for": (ValueError,)}, JobStatus.DEAD),
        ({"give_up_on": (OSError,)}, JobStatus.DEAD),
        ({"give_up_on": (ValueError,)}, JobStatus.SCHEDULED),
    ],
)
@pytest.mark.parametrize("attempts", [1, 2])
def test_retry_for_and_give_up_on_look_through_to_the_original_class(
    play: Play, options: Any, status: JobStatus, attempts: int
) -> None:
    """On a replay, too, where only the names of the classes are left."""

    def handler(context: JobContext) -> None:
        try:
            context.idempotent_step("charge", lambda: fails(ConnectionRefusedError("no route")))
        except StepFailed:
            context.step("tell somebody", lambda: None)
            if context.attempt < attempts:
                raise Retry(after=0) from None
            raise

    job = play(handler, **options)
    for _ in range(attempts):
        ended = attempt(job)
    assert ended.status == status


@on_sqlite
def test_a_final_failure_ends_the_job_at_once(play: Play) -> None:
    steps = {"final_errors": tasks.Declined}
    job = play(lambda context: context.using(**steps).step("charge", lambda: fails(tasks.Declined("no"))))
    assert attempt(job).status == JobStatus.DEAD


@on_sqlite
@pytest.mark.parametrize("kind", ["idempotent_step", "atomic_step"])
def test_a_result_that_cannot_be_stored_ends_the_job_at_once(play: Play, ledger: Ledger, kind: str) -> None:
    job = play(lambda context: getattr(context, kind)("charge", lambda: ledger.add({1, 2})))
    assert attempt(job).status == JobStatus.DEAD
    assert "which JSON cannot carry" in (queue.get(job).last_error or "")
    assert attempt(queue.retry(job)).status == JobStatus.DEAD
    assert len(ledger) == 1


def test_a_failed_step_is_in_the_journal_as_known_not_done(play: Play) -> None:
    job = play(lambda context: context.using(safe_errors=OSError).step("charge", lambda: fails(OSError("no route"))))
    attempt(job)
    (charge,) = entries(job)
    assert (charge.status, charge.result, charge.error["message"]) == ("failed", None, "no route")


def test_a_failure_knows_its_classes_where_the_exception_is_not_at_hand() -> None:
    failed = StepFailed("charge", ["builtins.ConnectionRefusedError", "builtins.OSError"], "refused")

    assert failed.is_a(OSError)
    assert failed.is_a(ValueError, ConnectionRefusedError)
    assert not failed.is_a(ValueError)
