"""Code that asks for something else than the journal holds: the job is blocked, and there are three ways out."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from gnlqueue import (
    AlreadyResolved,
    FailJob,
    GoOn,
    Happened,
    JobContext,
    NotHappened,
    UseRecorded,
    queue,
    resolve,
)
from gnlqueue.durable.resolving import in_doubt
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable.conftest import (
    attempt,
    crashing,
    entries,
    entry,
    give,
    leave_started,
    now_do,
    on_sqlite,
)

Play = Callable[..., Job]
Handler = Callable[[JobContext], Any]
BY = {"by": "ada", "reason": "looked at the code"}


def recorded(context: JobContext) -> list[Any]:
    """What the run did before the deploy."""
    return [context.step("charge", lambda cents: f"charged {cents}", 100), context.step("ship", lambda: "shipped")]


CHANGED: dict[str, Handler] = {
    "renamed": lambda context: context.step("charge card", give("new"), 100),
    "reordered": lambda context: [context.step("ship", give("new")), context.step("charge", give("new"), 100)],
    "inserted": lambda context: [context.step("check", give("new")), recorded(context)],
    "of another kind": lambda context: context.idempotent_step("charge", give("new"), 100),
    "with other arguments": lambda context: context.step("charge", give("new"), 200),
    "a sleep instead": lambda context: context.sleep("charge", 0),
}


@pytest.mark.parametrize("changed", CHANGED)
def test_a_step_that_the_journal_does_not_have_there_blocks_the_job(play: Play, changed: str) -> None:
    job = play(crashing(recorded))
    attempt(job)
    before = list(entries(job).values())
    results: list[Any] = []
    now_do(lambda context: results.append(CHANGED[changed](context)))
    blocked = attempt(job)
    assert (blocked.status, blocked.blocked_reason, blocked.attempts) == (JobStatus.BLOCKED, "mismatch", 1)
    assert results == []
    assert "use what was recorded" in (blocked.last_error or "")
    assert [each.key for each in in_doubt()] == ["charge"]
    assert list(entries(job).values()) == before


@pytest.mark.parametrize("changed", CHANGED)
def test_go_on_lets_the_code_that_was_put_right_run(play: Play, changed: str) -> None:
    job = play(crashing(recorded))
    attempt(job)
    now_do(CHANGED[changed])
    attempt(job)
    resolve(entry(job, "charge"), GoOn(), **BY)
    assert attempt(job).status == JobStatus.BLOCKED  # it was not
    resolve(entry(job, "charge"), GoOn(), **BY)
    now_do(recorded)
    assert attempt(job).result == ["charged 100", "shipped"]


@pytest.mark.parametrize("changed", ["renamed", "of another kind", "with other arguments"])
def test_use_recorded_lets_the_code_have_what_was_recorded(play: Play, changed: str) -> None:
    job = play(crashing(recorded))
    attempt(job)
    now_do(lambda context: [CHANGED[changed](context), context.step("ship", give("new"))])
    attempt(job)
    resolve(entry(job, "charge"), UseRecorded(), **BY)
    assert attempt(job).result == ["charged 100", "shipped"]


def test_use_recorded_does_not_give_a_step_a_key_that_another_has(play: Play) -> None:
    job = play(crashing(recorded))
    attempt(job)
    now_do(CHANGED["reordered"])
    attempt(job)
    with pytest.raises(ValueError, match="has a record of its own"):
        resolve(entry(job, "charge"), UseRecorded(), **BY)
    assert queue.get(job).status == JobStatus.BLOCKED


def test_use_recorded_needs_a_result(play: Play) -> None:
    job = play(recorded)
    leave_started(job, "charge")  # with other arguments: none
    assert attempt(job).blocked_reason == "mismatch"
    with pytest.raises(ValueError, match="no recorded result"):
        resolve(entry(job), UseRecorded(), **BY)


@on_sqlite
def test_only_the_entry_that_does_not_fit_can_be_answered_for(play: Play) -> None:
    job = play(crashing(recorded))
    attempt(job)
    now_do(CHANGED["renamed"])
    attempt(job)
    with pytest.raises(ValueError, match="is blocked at a step other than"):
        resolve(entry(job, "ship"), GoOn(), **BY)


@pytest.mark.parametrize("answer", [Happened("paid"), NotHappened()], ids=repr)
def test_an_answer_about_a_doubt_is_no_answer_about_a_mismatch(play: Play, answer: Any) -> None:
    job = play(crashing(recorded))
    attempt(job)
    now_do(CHANGED["renamed"])
    attempt(job)
    fits = (
        r"Answers that fit: GoOn\(\) \(--go-on\) or UseRecorded\(\) \(--use-recorded\) or FailJob\(\) \(--fail-job\)\.$"
    )
    with pytest.raises(ValueError, match=rf"is not in doubt: the code does not fit it\. {fits}"):
        resolve(entry(job, "charge"), answer, **BY)
    with pytest.raises(AlreadyResolved, match=r"'ship' .* is not waiting for a decision: it is done"):
        resolve(entry(job, "ship"), answer, **BY)
    assert (queue.get(job).status, entry(job, "charge").decisions) == (JobStatus.BLOCKED, 0)


def test_what_was_caught_in_a_crash_and_does_not_fit_takes_both_answers(play: Play) -> None:
    job = play(recorded)
    leave_started(job, "charge")  # with other arguments: none
    assert attempt(job).blocked_reason == "mismatch"
    resolve(entry(job), Happened("charged 100"), **BY)
    assert attempt(job).blocked_reason == "mismatch"
    resolve(entry(job), UseRecorded(), **BY)
    assert attempt(job).result == ["charged 100", "shipped"]


def test_fail_job_ends_a_mismatch_and_no_question_is_left_open(play: Play) -> None:
    job = play(recorded)
    leave_started(job, "charge")
    attempt(job)
    resolve(entry(job), FailJob(), **BY)
    assert (queue.get(job).status, entry(job).status) == (JobStatus.DEAD, EntryStatus.IN_DOUBT)


def test_arguments_are_not_compared_where_the_step_says_so(play: Play) -> None:
    arguments = iter([1, 2])

    def handler(context: JobContext) -> Any:
        return context.using(match_args=False).step("charge", lambda number: number, next(arguments))

    job = play(crashing(handler))
    attempt(job)
    now_do(handler)
    assert attempt(job).result == 1


def test_the_order_of_keyword_arguments_makes_no_difference(play: Play) -> None:
    def one(context: JobContext) -> Any:
        return context.step("charge", dict, a=1, b={"c": 2, "d": 3})

    def other(context: JobContext) -> Any:
        return context.step("charge", dict, b={"d": 3, "c": 2}, a=1)

    job = play(crashing(one))
    attempt(job)
    now_do(other)
    assert attempt(job).result == {"a": 1, "b": {"c": 2, "d": 3}}


@on_sqlite
@pytest.mark.parametrize("clause", [Exception, BaseException])
def test_no_except_clause_makes_a_success_of_a_mismatch(play: Play, clause: type[BaseException]) -> None:
    job = play(crashing(recorded))
    attempt(job)

    def handler(context: JobContext) -> str:
        with contextlib.suppress(clause):
            CHANGED["renamed"](context)
        return "fine"

    now_do(handler)
    assert attempt(job).status == JobStatus.BLOCKED
