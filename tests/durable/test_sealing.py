"""Which failures are sealed when branches of a run fail side by side."""

import asyncio
from collections.abc import Callable
from typing import Any

from gnlqueue import JobContext, StepFailed
from gnlqueue.models import Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import Ledger, attempt, in_pool, on_sqlite

Play = Callable[..., Job]


def refuse_first(ledger: Ledger) -> Callable[[], str]:
    """Fail safely at the first call."""

    def charge() -> str:
        ledger.add()
        if len(ledger) == 1:
            raise tasks.Refused("no route")
        return "paid"

    return charge


@on_sqlite
def test_a_failure_in_one_piece_of_work_of_a_pool_is_not_sealed_by_the_next(play: Play, ledger: Ledger) -> None:
    """One thread does both, one after the other; the handler has not caught anything."""

    def handler(context: JobContext) -> Any:
        def branch(key: str, charge: Callable[[], str]) -> str:
            return context.using(key=key, safe_errors=tasks.Refused).step("charge", charge)

        return in_pool([lambda: branch("EU", refuse_first(ledger)), lambda: branch("US", lambda: "paid")], workers=1)

    job = play(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == ["paid", "paid"]


@on_sqlite
def test_a_failure_that_a_thread_caught_and_went_on_after_is_sealed(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> Any:
        charge = refuse_first(ledger)

        def branch() -> str:
            try:
                return context.using(key="visa", safe_errors=tasks.Refused).step("charge", charge)
            except StepFailed:
                return context.using(key="mastercard").step("charge", lambda: "other card")

        results = in_pool([branch])
        if context.claimed.lease_token == 1:
            raise OSError("crash")
        return results

    job = play(handler)
    attempt(job)
    assert attempt(job).result == ["other card"]
    assert len(ledger) == 1


@on_sqlite
def test_failures_that_gather_returned_are_all_sealed_once_the_handler_goes_on(aplay: Play, ledger: Ledger) -> None:
    async def refuse() -> str:
        ledger.add()
        raise tasks.Refused("no route")

    async def handler(context: JobContext) -> Any:
        steps = [context.using(key=key, safe_errors=tasks.Refused) for key in ("EU", "US")]
        results = await asyncio.gather(*(each.astep("charge", refuse) for each in steps), return_exceptions=True)
        await context.aatomic_step("note", lambda: None)
        if context.claimed.lease_token == 1:
            raise OSError("crash")
        return [type(each).__name__ for each in results]

    job = aplay(handler)
    attempt(job)
    assert attempt(job).result == ["StepFailed", "StepFailed"]
    assert len(ledger) == 2


@on_sqlite
def test_a_failure_of_one_asyncio_task_is_not_sealed_by_the_step_of_another(aplay: Play, ledger: Ledger) -> None:
    charge = refuse_first(ledger)

    async def handler(context: JobContext) -> Any:
        failed = asyncio.Event()

        async def acharge() -> str:
            return charge()

        async def one() -> str:
            try:
                return await context.using(key="EU", safe_errors=tasks.Refused).astep("charge", acharge)
            finally:
                failed.set()

        async def other() -> str:
            await failed.wait()
            return str(await context.using(key="US").aatomic_step("charge", lambda: "paid"))

        return await asyncio.gather(one(), other())

    job = aplay(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == ["paid", "paid"]
