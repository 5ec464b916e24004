"""A step that has a key and was renamed: it is found by its key alone, and is asked about before it runs again."""

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
    queue,
    resolve,
)
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import (
    KINDS,
    Ledger,
    attempt,
    crashing,
    entries,
    entry,
    in_pool,
    leave_started,
    now_do,
    on_sqlite,
    pay,
    renamed,
)

Play = Callable[..., Job]
Handler = Callable[[JobContext], Any]
Paying = Callable[..., Handler]
BY = {"by": "ada", "reason": "looked at the code"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_renamed_step_does_not_run_before_somebody_has_answered(play: Play, ledger: Ledger, kind: str) -> None:
    paying = pay(ledger, kind=kind)
    job = play(crashing(paying("charge", 5)))
    attempt(job)
    now_do(paying("bill", 5))
    blocked = attempt(job)
    assert (blocked.status, blocked.blocked_reason, blocked.attempts) == (JobStatus.BLOCKED, "mismatch", 1)
    assert "asks for 'bill[5]', which is not done" in (blocked.last_error or "")
    assert "looks like 'charge[5]' under another name" in (blocked.last_error or "")
    assert len(ledger) == 1
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    assert attempt(job).result == [5]
    assert len(ledger) == 1


@on_sqlite
@pytest.mark.parametrize("others", [(4,), (6,), (4, 6)], ids=["before it", "after it", "before and after it"])
def test_one_of_several_steps_of_a_name_may_get_another(
    play: Play, ledger: Ledger, paying: Paying, others: tuple[int, ...]
) -> None:
    def handler_of(name: str) -> Handler:
        return lambda context: [paying(name if key == 5 else "charge", key)(context) for key in sorted((5, *others))]

    job = play(crashing(handler_of("charge")))
    attempt(job)
    now_do(handler_of("bill"))
    assert attempt(job).blocked_reason == "mismatch"
    assert len(ledger) == 1 + len(others)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    assert attempt(job).status == JobStatus.DONE
    assert len(ledger) == 1 + len(others)


def charge_and_bill(ledger: Ledger, *names: str) -> Handler:
    """A handler of two steps with the same key, whose functions differ."""

    def charge(number: int) -> str:
        return ledger.add("charged")

    def bill(number: int) -> str:
        return ledger.add("billed")

    def handler(context: JobContext) -> list[Any]:
        steps = context.using(key="5")
        return [steps.step(name, function, 5) for name, function in zip(names, (charge, bill), strict=True)]

    return handler


@pytest.mark.parametrize("answer", [GoOn(), UseRecorded()], ids=["put right", "other functions"])
def test_names_that_were_swapped_get_no_result_of_each_other(play: Play, ledger: Ledger, answer: Any) -> None:
    job = play(crashing(charge_and_bill(ledger, "charge", "bill")))
    attempt(job)
    now_do(charge_and_bill(ledger, "bill", "charge"))
    said = attempt(job).last_error or ""
    assert "as 'charge[5]' did: their names may have been swapped" in said
    resolve(entry(job, "bill[5]"), answer, **BY)
    if answer == GoOn():
        now_do(charge_and_bill(ledger, "charge", "bill"))
        assert attempt(job).result == ["charged", "billed"]
    else:  # each keeps what was recorded under its name
        assert attempt(job).result == ["billed", "charged"]
    assert len(ledger) == 2


@on_sqlite
def test_a_step_that_did_not_happen_may_call_what_another_one_called(play: Play, ledger: Ledger) -> None:
    """It has no record to give: it runs."""
    job = play(crashing(charge_and_bill(ledger, "charge", "bill")))
    attempt(job)
    entries(job).filter(key="bill[5]").update(status=EntryStatus.RELEASED)
    now_do(lambda context: charge_and_bill(ledger, "bill", "tell")(context)[0])
    assert "may have been swapped" not in (attempt(job).last_error or "")


@on_sqlite
def test_a_function_that_was_renamed_or_replaced_is_no_swap(play: Play, ledger: Ledger) -> None:
    job = play(crashing(charge_and_bill(ledger, "charge", "bill")))
    attempt(job)
    now_do(lambda context: [context.using(key="5").step(name, ledger.add, 5) for name in ("charge", "bill")])
    assert attempt(job).result == ["charged", "billed"]


@pytest.mark.parametrize("answer", [UseRecorded(), NotHappened()], ids=["the same", "another"])
@on_sqlite
def test_what_was_done_under_a_new_name_is_asked_about_before_the_old_one_is_tried_again(
    play: Play, ledger: Ledger, answer: Any
) -> None:
    """The old name has a record, too: that it did not happen. A deploy was taken back."""
    refused: list[None] = []

    def charge(number: int) -> int:
        if not refused:
            refused.append(None)
            raise tasks.Refused("no route")
        ledger.add()
        return number

    def handler_of(name: str) -> Handler:
        return lambda context: context.using(key="5", safe_errors=tasks.Refused).step(name, charge, 5)

    job = play(handler_of("charge"))
    attempt(job)
    now_do(crashing(handler_of("bill")))
    attempt(job)
    now_do(handler_of("charge"))
    assert "looks like 'bill[5]' under another name" in (attempt(job).last_error or "")
    assert len(ledger) == 1
    resolve(entry(job, "bill[5]"), answer, **BY)
    assert attempt(job).result == 5
    assert len(ledger) == (1 if answer == UseRecorded() else 2)


@on_sqlite
def test_a_step_that_failed_is_tried_again_beside_another_of_its_function_and_key(play: Play, ledger: Ledger) -> None:
    refused: list[None] = []

    def pay_(number: int) -> None:
        ledger.add()
        if not refused:
            refused.append(None)
            raise tasks.Refused("no route")

    def handler(context: JobContext) -> None:
        steps = context.using(key="5", safe_errors=tasks.Refused)
        if refused:
            steps.step("pay", pay_, 5)
            return
        steps.step("tell", ledger.add)
        steps.step("pay", pay_, 5)

    job = play(handler)
    attempt(job)
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_code_that_was_put_right_goes_on_where_it_was(play: Play, ledger: Ledger, paying: Paying) -> None:
    job = renamed(play, paying, 5)
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    # A worker that has the wrong code yet.
    assert attempt(job).blocked_reason == "mismatch"
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    now_do(paying("charge", 5, 6))
    assert attempt(job).result == [5, 6]
    assert len(ledger) == 2


@on_sqlite
def test_a_job_that_was_failed_asks_again_when_it_is_retried(play: Play, ledger: Ledger, paying: Paying) -> None:
    job = renamed(play, paying, 5)
    resolve(entry(job, "charge[5]"), FailJob(), **BY)
    queue.retry(job)
    assert attempt(job).blocked_reason == "mismatch"
    assert len(ledger) == 1


@pytest.mark.parametrize("answer", [Happened(5), NotHappened()], ids=["it happened", "it did not"])
@on_sqlite
def test_a_step_that_was_renamed_in_doubt_asks_for_that_first(
    play: Play, ledger: Ledger, answer: Any, paying: Paying
) -> None:
    job = play(paying("charge", 5))
    leave_started(job, "charge[5]", [[5], {}])
    # What `leave_started` does not know: the function.
    entries(job).update(function="tests.durable.conftest.pay.<locals>.charge")
    now_do(paying("bill", 5))
    assert attempt(job).blocked_reason == "in_doubt"
    assert len(ledger) == 0
    resolve(entry(job, "charge[5]"), answer, **BY)
    if isinstance(answer, Happened):
        assert attempt(job).blocked_reason == "mismatch"
        resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    assert attempt(job).result == [5]
    assert len(ledger) == (0 if isinstance(answer, Happened) else 1)


@on_sqlite
def test_a_failure_that_stays_is_not_tried_again_under_another_name(play: Play, ledger: Ledger) -> None:
    """It has decided what the code did after it."""

    def charge(card: str) -> str:
        ledger.add()
        if len(ledger) == 1:
            raise tasks.Declined("the visa card")
        return card

    def handler_of(name: str) -> Handler:
        def handler(context: JobContext) -> Any:
            steps = context.using(final_errors=tasks.Declined)
            try:
                return steps.using(key="visa").step(name, charge, "visa")
            except StepFailed:
                return steps.using(key="mastercard").step(name, charge, "mastercard")

        return handler

    job = play(crashing(handler_of("charge")))
    attempt(job)
    now_do(handler_of("bill"))
    blocked = attempt(job)
    assert blocked.blocked_reason == "mismatch"
    assert "looks like 'charge[visa]' under another name: that one is failed" in (blocked.last_error or "")
    resolve(entry(job, "charge[visa]"), UseRecorded(), **BY)
    assert attempt(job).result == "mastercard"
    assert len(ledger) == 2


@pytest.mark.parametrize("first", ["told apart", "not done"])
@on_sqlite
def test_all_steps_that_look_like_the_new_one_are_asked_about(
    play: Play, ledger: Ledger, first: str, paying: Paying
) -> None:
    job = play(crashing(lambda context: [paying("charge", 5)(context), paying("mail", 5)(context)]))
    attempt(job)
    now_do(paying("tell", 5))
    if first == "not done":
        entries(job).filter(key="charge[5]").update(status=EntryStatus.RELEASED)
    else:
        attempt(job)
        resolve(entry(job, "charge[5]"), NotHappened(), **BY)
    assert "looks like 'mail[5]'" in (attempt(job).last_error or "")
    assert len(ledger) == 2


@pytest.mark.parametrize("how", ["gather", "threads"])
def test_a_step_that_was_renamed_in_a_branch_does_not_run_either(
    play: Play, aplay: Play, ledger: Ledger, how: str
) -> None:
    async def acharge(number: int) -> None:
        ledger.add()

    def charge(number: int) -> None:
        ledger.add()

    async def gathering(context: JobContext, name: str) -> None:
        await asyncio.gather(*(context.using(key=str(each)).astep(name, acharge, each) for each in (1, 2)))

    def in_threads(context: JobContext, name: str) -> None:
        in_pool([partial(context.using(key=str(each)).step, name, charge, each) for each in (1, 2)])

    async def crash(context: JobContext) -> None:
        await gathering(context, "charge")
        raise OSError("crash")

    job = aplay(crash) if how == "gather" else play(crashing(lambda context: in_threads(context, "charge")))
    attempt(job)
    tasks.handlers["aplay"] = lambda context: gathering(context, "bill")
    tasks.handlers["play"] = lambda context: in_threads(context, "bill")
    assert attempt(job).blocked_reason == "mismatch"
    assert len(ledger) == 2


@on_sqlite
def test_to_go_on_after_other_arguments_lets_no_other_key_pass(play: Play, ledger: Ledger, paying: Paying) -> None:
    job = play(crashing(paying("charge", 5)))
    attempt(job)
    now_do(lambda context: context.using(key="5").step("charge", ledger.add, 6))
    attempt(job)
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    now_do(lambda context: context.using(key="order 5").step("charge", ledger.add, 5))
    assert "it did 'charge[order 5]' instead" in (attempt(job).last_error or "")


@on_sqlite
def test_what_was_told_apart_hides_no_other_step_when_the_handler_has_returned(
    play: Play, ledger: Ledger, paying: Paying
) -> None:
    job = renamed(play, paying, 5, to="tell")
    resolve(entry(job, "charge[5]"), NotHappened(), **BY)
    now_do(lambda context: [context.using(key="5").step("bill", ledger.add, 5), *paying("tell", 5)(context)])
    assert "it did 'bill[5]' instead" in (attempt(job).last_error or "")


# --- what is no renaming ---------------------------------------------------------------------------------------------


async def tell(_: object) -> None: ...


async def mail(_: object) -> None: ...


class Client:
    """Somebody to tell."""

    def tell(self, number: int) -> int:
        return number

    def __call__(self, number: int) -> int:
        return number


#: Steps with the same key that run side by side: which of them begins first may differ from attempt to attempt.
BESIDE: dict[str, Callable[[JobContext, str], Any]] = {
    "other functions": lambda context, name: context.using(key="5").astep(name, {"mail": mail, "tell": tell}[name], 5),
    "lambdas": lambda context, name: context.using(key="5").aatomic_step(name, lambda: name),
    "other arguments": lambda context, name: context.using(key="5").astep(name, tell, name),
    "methods of two objects": lambda context, name: context.using(key="5").aatomic_step(name, Client().tell, 5),
    "two objects": lambda context, name: context.using(key="5").aatomic_step(name, Client(), 5),
    "bound arguments": lambda context, name: context.using(key="5").astep(name, partial(tell, name)),
}


@on_sqlite
@pytest.mark.parametrize("beside", BESIDE)
def test_branches_that_share_a_key_may_begin_in_any_order(aplay: Play, beside: str) -> None:
    async def before(context: JobContext) -> None:
        await asyncio.gather(BESIDE[beside](context, "mail"))
        raise OSError("crash")

    async def after(context: JobContext) -> None:
        await asyncio.gather(*(BESIDE[beside](context, name) for name in ("tell", "mail")))

    job = aplay(before)
    attempt(job)
    tasks.handlers["aplay"] = after
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_another_step_with_the_same_key_is_no_renaming_while_the_old_name_is_asked_for(
    play: Play, paying: Paying
) -> None:
    """A loop over what is still to pay, and one that tells everybody, with the same function."""
    job = play(crashing(paying("charge", 5)))
    attempt(job)
    now_do(lambda context: [paying("charge", 6)(context), paying("tell", 5, 6)(context)])
    assert attempt(job).status == JobStatus.DONE


@on_sqlite
def test_a_step_that_is_known_not_to_have_happened_may_get_another_name(play: Play, paying: Paying) -> None:
    job = play(crashing(paying("charge", 5)))
    attempt(job)
    entries(job).update(status=EntryStatus.RELEASED)
    now_do(paying("bill", 5))
    assert attempt(job).result == [5]


@on_sqlite
def test_what_was_recorded_before_functions_were_is_asked_about_at_the_end(play: Play, paying: Paying) -> None:
    job = play(crashing(paying("charge", 5)))
    attempt(job)
    entries(job).update(function=None)
    now_do(paying("bill", 5))
    assert "no longer asks for what was recorded" in (attempt(job).last_error or "")
