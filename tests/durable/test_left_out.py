"""What one attempt left out and another did: told apart by what the code had asked for when a step began."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gnlqueue import GoOn, Happened, JobContext, NotHappened, resolve
from gnlqueue.durable.entries import Journal, Wanted
from gnlqueue.durable.fences import JobFence
from gnlqueue.models import EntryStatus, Job, JobStatus, StepKind
from tests.durable import tasks
from tests.durable.conftest import (
    Ledger,
    attempt,
    claim,
    crashing,
    doing,
    end_lease,
    entries,
    entry,
    leave_started,
    now_do,
    on_sqlite,
)

Play = Callable[..., Job]
Handler = Callable[[JobContext], Any]
BY = {"by": "ada", "reason": "looked at the code"}


# --- code that was not changed, and does not charge once that is paid -------------------------------------------------


def charging(ledger: Ledger, paid: list[str], ship: Callable[[int], Any], *after: Handler) -> Handler:
    """Charge unless that is paid, then ship, with the same key."""

    def handler(context: JobContext) -> None:
        if not paid:
            doing(ledger, "charge", 5)(context)
            paid.append("paid")
        context.using(key="5", safe_errors=tasks.Refused).step("ship", ship, 5)
        for each in after:
            each(context)

    return handler


def refusing(times: int) -> Callable[[int], None]:
    """A function that is refused so many times."""
    left = [None] * times

    def ship(_: int) -> None:
        if left:
            left.pop()
            raise tasks.Refused("no route")

    return ship


@on_sqlite
@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_failed_beside_it_may_fail_again(play: Play, ledger: Ledger, times: int) -> None:
    job = play(charging(ledger, [], refusing(times)), max_attempts=9)
    for _ in range(times):
        attempt(job)
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_what_failed_beside_it_may_be_done_in_an_attempt_that_ends_early(play: Play, ledger: Ledger) -> None:
    job = play(charging(ledger, [], refusing(1), lambda context: context.sleep("a while", 60)))
    attempt(job)
    attempt(job)
    entries(job).filter(key="a while").update(result=json.dumps("2020-01-01T00:00:00+00:00"))
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_what_was_in_doubt_beside_it_may_have_happened(play: Play) -> None:
    job = play(lambda context: context.using(key="5").step("ship", lambda: None))
    journal = Journal(f"job:{job.pk}", JobFence(claim(job), timedelta(60)))
    journal.insert(Wanted("charge[5]", StepKind.STEP), EntryStatus.DONE, starting=True, result="5")
    journal.insert(Wanted("ship[5]", StepKind.STEP), EntryStatus.STARTED, starting=True)
    end_lease(job)
    assert attempt(job).blocked_reason == "in_doubt"
    resolve(entry(job, "ship[5]"), Happened(), **BY)
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_what_an_attempt_did_that_asked_for_both_repeats_nothing_once_one_is_left_out(
    play: Play, ledger: Ledger
) -> None:
    job = play(crashing(doing(ledger, "charge", 5)), max_attempts=3)
    attempt(job)
    now_do(crashing(lambda context: [doing(ledger, name, 5)(context) for name in ("charge", "ship")]))
    attempt(job)
    now_do(doing(ledger, "ship", 5))  # it is paid by now
    assert attempt(job).status == JobStatus.DONE


# --- code that was changed, and did something twice ------------------------------------------------------------------


@on_sqlite
def test_what_a_deploy_did_that_was_taken_back_is_asked_about(play: Play, ledger: Ledger) -> None:
    job = play(crashing(doing(ledger, "charge", 5)), max_attempts=3)
    attempt(job)
    now_do(crashing(doing(ledger, "bill", 5)))
    attempt(job)
    now_do(doing(ledger, "charge", 5))
    assert "'bill[5]' (it did 'charge[5]' instead)" in (attempt(job).last_error or "")
    resolve(entry(job, "bill[5]"), GoOn(), **BY)
    assert attempt(job).result == [5]


@on_sqlite
@pytest.mark.parametrize("answer", [Happened(5), NotHappened()], ids=["it happened", "it did not"])
def test_what_was_done_instead_of_a_step_in_doubt_is_asked_about(play: Play, ledger: Ledger, answer: Any) -> None:
    job = play(doing(ledger, "charge", 5))
    leave_started(job, "charge[5]", [[5], {}])
    now_do(doing(ledger, "bill", 5))
    assert attempt(job).blocked_reason == "in_doubt"
    resolve(entry(job, "charge[5]"), answer, **BY)
    if answer == NotHappened():
        now_do(doing(ledger, "charge", 5))
    assert attempt(job).blocked_reason == "mismatch"
