"""Steps that were recorded and that the code no longer asks for: found at the end of the attempt."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gnlqueue import (
    FailJob,
    GoOn,
    Happened,
    JobContext,
    NotHappened,
    StepFailed,
    UseRecorded,
    durable_run,
    queue,
    resolve,
)
from gnlqueue.durable.resolving import in_doubt
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import (
    KINDS,
    attempt,
    crashing,
    entries,
    entry,
    give,
    in_pool,
    jobs,
    leave_started,
    notes,
    now_do,
    on_sqlite,
)

Play = Callable[..., Job]
Handler = Callable[[JobContext], Any]
BY = {"by": "ada", "reason": "looked at the code"}


def named(name: str, own: str) -> Callable[..., Any]:
    """Return a function of that name, which returns both."""

    def function(*_: object) -> str:
        return f"{name}[{own}]"

    function.__qualname__ = name
    return function


def keyed(*keys: str, kind: str = "step") -> Handler:
    """Do steps that are found by their key alone: 'charge[5]' is the step 'charge' with the key '5'.

    Each has a function of its own name: with the same one, a step that was renamed would be seen before it runs.
    """

    def handler(context: JobContext) -> list[Any]:
        split = [key.removesuffix("]").split("[") for key in keys]
        return [getattr(context.using(key=own), kind)(name, named(name, own)) for name, own in split]

    return handler


def with_arguments(*keys: str, kind: str = "step") -> Handler:
    """Do the same, and give each step its number in the key as an argument: 5 to 'charge[order-5]'."""

    def handler(context: JobContext) -> list[Any]:
        split = [key.removesuffix("]").split("[") for key in keys]
        return [
            getattr(context.using(key=own), kind)(name, named(name, own), own.split("-")[-1]) for name, own in split
        ]

    return handler


@pytest.mark.parametrize(
    ("now", "steps"),
    [("bill[5]", keyed), ("charge[order-5]", with_arguments), ("bill[order-5]", with_arguments)],
    ids=["name", "key", "both"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_renamed_step_that_is_found_by_its_key_blocks_the_job_at_its_end(
    play: Play, kind: str, now: str, steps: Callable[..., Handler]
) -> None:
    job = play(crashing(steps("charge[5]", "ship[6]", kind=kind)))
    attempt(job)
    now_do(steps(now, "ship[6]", kind=kind))
    blocked = attempt(job)
    assert (blocked.status, blocked.blocked_reason, blocked.attempts) == (JobStatus.BLOCKED, "mismatch", 1)
    said = blocked.last_error or ""
    assert f"no longer asks for what was recorded: 'charge[5]' (it did '{now}' instead)" in said
    assert [each.key for each in in_doubt()] == ["charge[5]"]
    with pytest.raises(ValueError, match="go on without its result, or fail the job"):
        resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    assert attempt(job).result == [now, "ship[6]"]


def plain(*names: str) -> Handler:
    """Do steps of the main flow that have no key."""
    return lambda context: [context.step(name, give(name)) for name in names]


#: A key that was given to a step, or taken from it: it goes on in a branch, or no longer.
MOVED: dict[str, tuple[Handler, Handler, str]] = {
    "a key was added": (plain("charge"), keyed("charge[5]"), "'charge' (it did 'charge[5]' instead)"),
    "keys were added": (plain("charge", "charge"), keyed("charge[1]", "charge[2]"), "'charge#2' (it did"),
    "a key was dropped": (keyed("charge[5]"), plain("charge"), "'charge[5]' (it did 'charge' instead)"),
}


@pytest.mark.parametrize("moved", MOVED)
def test_a_step_that_got_a_key_or_lost_it_blocks_the_job_at_its_end(play: Play, moved: str) -> None:
    before, after, said = MOVED[moved]
    job = play(crashing(before))
    attempt(job)
    now_do(after)
    blocked = attempt(job)
    assert blocked.blocked_reason == "mismatch"
    assert said in (blocked.last_error or "")


#: How an attempt ends before its handler has returned, so that nothing is looked for at its end.
ENDED: dict[str, Callable[[Handler], Handler]] = {
    "crash": crashing,
    "sleep": lambda handler: lambda context: [handler(context), context.sleep("a while", 60)][0],
}


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("branches", [False, True], ids=["main flow", "branches"])
def test_what_an_attempt_did_that_ended_early_is_found_by_a_later_one(play: Play, ended: str, branches: bool) -> None:
    def steps(name: str) -> Handler:
        def handler(context: JobContext) -> None:
            calls = [partial(context.using(key=str(key)).step, name, named(name, str(key))) for key in (5, 6)]
            in_pool(calls) if branches else [call() for call in calls]

        return handler

    job = play(crashing(steps("charge")), max_attempts=3)
    attempt(job)
    now_do(ENDED[ended](steps("bill")))
    assert attempt(job).status == JobStatus.SCHEDULED
    now_do(steps("bill"))
    blocked = attempt(job)
    assert blocked.blocked_reason == "mismatch"
    assert "'charge[5]' (it did 'bill[5]' instead), 'charge[6]' (it did 'bill[6]'" in (blocked.last_error or "")
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_a_mismatch_elsewhere_excuses_nothing(play: Play) -> None:
    """What an attempt repeated before it was blocked for something else has been seen by nobody."""
    job = play(crashing(lambda context: [plain("prepare")(context), keyed("charge[5]")(context)]))
    attempt(job)
    now_do(lambda context: [keyed("bill[5]")(context), plain("prepare all")(context)])
    assert "'prepare'" in (attempt(job).last_error or "")
    resolve(entry(job, "prepare"), GoOn(), **BY)
    now_do(lambda context: [plain("prepare")(context), keyed("charge[5]", "ship[5]")(context)])
    assert "'bill[5]' (it did 'charge[5]' instead)" in (attempt(job).last_error or "")


@on_sqlite
def test_a_late_worker_asks_no_question_about_a_run_that_is_not_its_own(play: Play) -> None:
    job = play(crashing(keyed("charge[5]")))
    attempt(job)

    def late(context: JobContext) -> None:
        keyed("bill[5]")(context)
        jobs().filter(pk=job.pk).update(lease_token=9)  # another worker has it now

    now_do(late)
    attempt(job)
    assert notes("mismatch") == []


@on_sqlite
def test_all_that_was_renamed_is_named_and_accepted_at_once(play: Play) -> None:
    job = play(crashing(keyed(*(f"charge[{number}]" for number in range(30)))))
    attempt(job)
    now_do(keyed(*(f"bill[{number}]" for number in range(30))))
    said = attempt(job).last_error or ""
    assert "'charge[19]' (it did 'bill[19]' instead), and 10 more" in said
    (first,) = in_doubt()
    with pytest.raises(ValueError, match=r"Answers that fit: GoOn\(\) \(--go-on\) or FailJob\(\) \(--fail-job\)\.$"):
        resolve(first, NotHappened(), **BY)
    resolve(first, GoOn(), **BY)
    assert attempt(job).status == JobStatus.DONE


def test_code_that_was_put_right_leaves_out_what_the_wrong_one_did(play: Play) -> None:
    """It does the steps that the wrong code had not: new ones too."""
    job = play(crashing(keyed("charge[5]")))
    attempt(job)
    now_do(keyed("bill[5]"))
    attempt(job)
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    now_do(keyed("charge[5]", "ship[5]"))
    assert attempt(job).result == ["charge[5]", "ship[5]"]


@on_sqlite
def test_fail_job_ends_the_question(play: Play) -> None:
    job = play(crashing(keyed("charge[5]")))
    attempt(job)
    now_do(keyed("bill[5]"))
    attempt(job)
    resolve(entry(job, "charge[5]"), FailJob(), **BY)
    assert queue.get(job).status == JobStatus.DEAD


@on_sqlite
@pytest.mark.parametrize("sealed", [False, True])
def test_a_step_that_failed_may_be_left_out(play: Play, sealed: bool) -> None:
    def refuse() -> None:
        raise tasks.Refused("no route")

    def before(context: JobContext) -> None:
        try:
            context.using(key="5", safe_errors=tasks.Refused).step("charge", refuse)
        except StepFailed:
            if sealed:
                context.now()
            raise

    job = play(before)
    attempt(job)
    now_do(keyed("bill[5]"))
    assert attempt(job).result == ["bill[5]"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("final", [False, True], ids=["failed", "for good"])
def test_a_step_that_failed_has_repeated_nothing(play: Play, kind: str, final: bool) -> None:
    job = play(crashing(keyed("charge[5]", kind=kind)))
    attempt(job)

    def decline() -> None:
        raise tasks.Declined("the card")

    def after(context: JobContext) -> str:
        errors = {"final_errors" if final else "safe_errors": tasks.Declined}
        try:
            return str(getattr(context.using(key="5", **errors), kind)("bill", decline))
        except StepFailed:
            return "declined"

    now_do(after)
    assert attempt(job).result == "declined"


#: Code that asks for less on a later attempt, because of what the first one did: an early return, a loop over what is
#: still to do, a step that was taken out, keyed or not.
LESS: dict[str, tuple[Handler, Handler]] = {
    "nothing": (keyed("charge[5]", "ship[5]"), give("paid already")),
    "less": (keyed("charge[5]", "ship[5]"), keyed("ship[5]")),
    "only what is left": (with_arguments("charge[5]"), with_arguments("charge[6]")),
    "only what is left, by two loops": (
        with_arguments("charge[5]"),
        with_arguments("charge[6]", "tell[5]", "tell[6]"),
    ),
    "nothing that has a key": (keyed("charge[5]"), lambda context: context.step("tell somebody", give(None))),
    "all but the last": (
        lambda context: [context.step("charge", give(1)), context.step("ship", give(2))],
        lambda context: context.step("charge", give("new")),
    ),
}


@on_sqlite
@pytest.mark.parametrize("crashes", [0, 1], ids=["", "after another crash"])
@pytest.mark.parametrize("less", LESS)
def test_code_may_ask_for_less_on_a_later_attempt(play: Play, less: str, crashes: int) -> None:
    before, after = LESS[less]
    job = play(crashing(before), max_attempts=2 + crashes)
    attempt(job)
    for _ in range(crashes):
        now_do(crashing(after))
        attempt(job)
    now_do(after)
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_what_failed_beside_a_step_that_is_left_out_may_be_tried_again(play: Play) -> None:
    """The attempt that did the one had begun the other: its code asked for both."""
    refused: list[None] = []

    def ship() -> None:
        if not refused:
            refused.append(None)
            raise tasks.Refused("no route")

    def handler(context: JobContext) -> None:
        if not refused:  # not paid yet
            keyed("charge[5]")(context)
        context.using(key="5", safe_errors=tasks.Refused).step("ship", ship)

    job = play(handler)
    attempt(job)
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_a_step_that_had_failed_is_asked_about_when_it_was_done_after_another_had_been_done_for_it(
    play: Play,
) -> None:
    """A deploy that renamed it was taken back."""
    refused: list[None] = []

    def charge() -> None:
        if not refused:
            refused.append(None)
            raise tasks.Refused("no route")

    def handler(context: JobContext) -> None:
        context.using(key="5", safe_errors=tasks.Refused).step("charge", charge)

    job = play(handler, max_attempts=3)
    attempt(job)
    now_do(crashing(keyed("bill[5]")))
    attempt(job)
    now_do(handler)
    assert "'bill[5]' (it did 'charge[5]' instead)" in (attempt(job).last_error or "")


@pytest.mark.parametrize("handler", [keyed("bill[5]"), give("nothing to do")], ids=["another step", "none"])
def test_a_step_that_may_have_happened_and_is_left_out_is_in_doubt(play: Play, handler: Handler) -> None:
    """The run must not end as done while nobody knows what became of it."""
    job = play(keyed("charge[5]"))
    leave_started(job, "charge[5]")
    now_do(handler)
    blocked = attempt(job)
    assert (blocked.status, blocked.blocked_reason) == (JobStatus.BLOCKED, "in_doubt")
    assert entry(job, "charge[5]").status == EntryStatus.IN_DOUBT
    resolve(entry(job, "charge[5]"), NotHappened(), **BY)
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_pieces_of_code_that_share_a_run_outside_a_job_ask_for_their_own_steps(alias: str) -> None:
    for name in ("charge", "ship", "charge"):
        with durable_run("order:7") as run:
            run.using(key="5").step(name, give(name))


@on_sqlite
def test_a_piece_of_code_leaves_a_step_in_the_middle_to_the_piece_that_it_belongs_to(alias: str) -> None:
    """Which knows how to find out what became of it."""
    with durable_run("order:7") as run:
        run.using(key="5").step("charge", give(1))
    entries().update(status=EntryStatus.STARTED, result=None)  # its worker was killed
    with durable_run("order:7") as run:
        run.using(key="5").step("ship", give(2))
    with durable_run("order:7") as run:
        assert run.using(key="5", recover=lambda: Happened("ch_1")).step("charge", give(1)) == "ch_1"


@on_sqlite
def test_an_async_handler_looks_back_too(aplay: Play) -> None:
    async def before(context: JobContext) -> None:
        await asyncio.gather(*(context.using(key=key).astep("charge", anything) for key in ("EU", "US")))
        raise ZeroDivisionError

    async def after(context: JobContext) -> None:
        await asyncio.gather(*(context.using(key=key).astep("bill", anything_else) for key in ("EU", "US")))

    job = aplay(before)
    attempt(job)
    tasks.handlers["aplay"] = after
    blocked = attempt(job)
    assert blocked.blocked_reason == "mismatch"
    assert "'charge[EU]' (it did 'bill[EU]' instead), 'charge[US]'" in (blocked.last_error or "")
    assert {each.key for each in entries(job)} == {"charge[EU]", "charge[US]", "bill[EU]", "bill[US]"}


async def anything() -> None: ...


async def anything_else() -> None: ...
