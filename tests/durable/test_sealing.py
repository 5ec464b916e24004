"""Which failures are sealed when branches of a run fail side by side, and what counts as a branch beneath asgiref."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from gnlqueue import JobContext, StepFailed
from gnlqueue.durable import failures
from gnlqueue.durable.protocol import flow
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import HOW, Ledger, attempt, entry, gathered, in_pool, on_sqlite

Play = Callable[..., Job]


def refuse_first(ledger: Ledger) -> Callable[[], str]:
    """Fail safely at the first call."""

    def charge() -> str:
        ledger.add()
        if len(ledger) == 1:
            raise tasks.Refused("no route")
        return "paid"

    return charge


def test_a_failure_in_one_piece_of_work_of_a_pool_is_not_sealed_by_the_next(play: Play, ledger: Ledger) -> None:
    """One thread does both, one after the other; the handler has not caught anything."""

    def handler(context: JobContext) -> Any:
        def branch(key: str, charge: Callable[[], str]) -> str:
            return context.using(key=key, safe_errors=tasks.Refused).step("charge", charge)

        return in_pool([lambda: branch("EU", refuse_first(ledger)), lambda: branch("US", lambda: "paid")], workers=1)

    job = play(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == ["paid", "paid"]


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


# --- beneath asgiref's async_to_sync, which calls back into the thread that waits for it ------------------------------


def test_what_asgiref_calls_back_is_told_from_what_waits_for_it() -> None:
    """By the modules that its frames belong to: should asgiref move them, the tests below say what no longer holds."""

    def called_back() -> Any:
        return flow(), failures._is_awaited()

    waits = flow()
    back, is_awaited = async_to_sync(sync_to_async(called_back))()
    assert (back.thread, back.task, is_awaited) == (waits.thread, waits.task, True)
    assert back.called_back > waits.called_back
    assert flow() == waits
    assert not failures._is_awaited()


@on_sqlite
@pytest.mark.parametrize("how", HOW)
def test_branches_that_are_called_back_into_the_handlers_thread_need_keys(play: Play, ledger: Ledger, how: str) -> None:
    def handler(context: JobContext) -> Any:
        async def fan_out() -> Any:
            steps = [context.using(key=key) for key in keys]
            return await gathered([sync_to_async(each.step)("charge", ledger.add, 7) for each in steps], how)

        results = async_to_sync(fan_out)()
        if unkeyed := [each for each in results if isinstance(each, ValueError)]:
            raise unkeyed[0]
        if context.claimed.lease_token == 2:
            raise OSError("crash")
        return [context.step("charge", lambda: "in the main flow"), *results]

    keys: list[str | None] = [None, None]
    job = play(handler)
    attempt(job)
    assert "give it a key that names it" in job.failed_attempts.get().error
    assert len(ledger) == 0
    keys = ["EU", "US", "UK"]
    attempt(job)
    keys.reverse()
    assert attempt(job).result == ["in the main flow", 7, 7, 7]
    assert len(ledger) == 3


@on_sqlite
@pytest.mark.parametrize("call", ["sleep", "now"])
def test_times_do_not_belong_into_a_branch_that_is_called_back(play: Play, call: str) -> None:
    def handler(context: JobContext) -> None:
        async_to_sync(sync_to_async(context.now if call == "now" else partial(context.sleep, "cool down", 1)))()

    assert "belongs in the main flow" in (attempt(play(handler, max_attempts=1)).last_error or "")


@on_sqlite
@pytest.mark.parametrize("host", ["called back", "sync_to_async", "async_to_sync"])
def test_a_worker_beneath_asyncio_runs_handlers_in_the_main_flow(play: Play, aplay: Play, host: str) -> None:
    def handler(context: JobContext) -> Any:
        context.now()
        first = context.step("charge", lambda: "paid")
        inner = async_to_sync(sync_to_async(context.using(key="EU").step))("charge", lambda: "paid there")
        return [first, inner, context.step("ship", lambda: "shipped")]

    async def ahandler(context: JobContext) -> Any:
        async def charge() -> str:
            return "paid"

        await context.anow()
        first = await context.astep("charge", charge)
        inner = await sync_to_async(context.using(key="EU").step)("charge", lambda: "paid there")
        return [first, inner, await context.aatomic_step("ship", lambda: "shipped")]

    job = aplay(ahandler) if host == "async_to_sync" else play(handler)
    if host == "called back":
        ended = async_to_sync(sync_to_async(attempt))(job)
    else:
        ended = asyncio.run(sync_to_async(attempt)(job)) if host == "sync_to_async" else attempt(job)
    assert ended.result == ["paid", "paid there", "shipped"]


def plain(handler: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
    """A `def` handler that does what this `async def` one does."""
    return lambda context: async_to_sync(handler)(context)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_failure_of_a_branch_is_not_sealed_by_the_synchronous_step_of_another(
    play: Play, aplay: Play, ledger: Ledger, kind: str
) -> None:
    charge = refuse_first(ledger)

    async def handler(context: JobContext) -> Any:
        failed = asyncio.Event()

        async def one() -> str:
            try:
                step = context.using(key="EU", safe_errors=tasks.Refused).step
                return await sync_to_async(step)("charge", charge)
            finally:
                failed.set()

        async def other() -> str:
            await failed.wait()
            return await sync_to_async(context.using(key="US").step)("charge", lambda: "paid")

        return await asyncio.gather(one(), other())

    job = aplay(handler) if kind == "async def" else play(plain(handler))
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == ["paid", "paid"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_failure_that_a_branch_caught_is_sealed_by_its_next_synchronous_step(
    play: Play, aplay: Play, ledger: Ledger, kind: str
) -> None:
    charge = refuse_first(ledger)

    async def handler(context: JobContext) -> Any:
        async def branch() -> str:
            try:
                return await sync_to_async(context.using(key="visa", safe_errors=tasks.Refused).step)("charge", charge)
            except StepFailed:
                pass
            return await sync_to_async(context.using(key="mastercard").step)("charge", lambda: "other card")

        results = await asyncio.gather(branch())
        if context.claimed.lease_token == 1:
            raise OSError("crash")
        return results

    job = aplay(handler) if kind == "async def" else play(plain(handler))
    attempt(job)
    assert attempt(job).result == ["other card"]
    assert len(ledger) == 1


def test_a_failure_that_was_called_back_is_sealed_once_the_handler_goes_on(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> Any:
        step = context.using(key="visa", safe_errors=tasks.Refused).step
        try:
            async_to_sync(sync_to_async(step))("charge", refuse_first(ledger))
        except StepFailed:
            context.atomic_step("note", lambda: None)
        if context.claimed.lease_token == 1:
            raise OSError("crash")
        return len(ledger)

    job = play(handler)
    attempt(job)
    assert entry(job, "charge[visa]").status == EntryStatus.FAILED
    assert attempt(job).result == 1
