"""Failures that are caught below the main flow: by an asyncio task or a thread that waited for another one."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from gnlqueue import JobContext, StepFailed, queue
from gnlqueue.models import Job, JobStatus
from gnlqueue.worker.loop import Worker
from tests.durable import tasks
from tests.durable.conftest import PAST, Ledger, attempt, in_pool, jobs, on_sqlite

Play = Callable[..., Job]
Branch = Callable[[], Awaitable[str]]

#: Which event loop runs the job: the worker's own, which knows what began an asyncio task, or any other.
LOOPS = ["the worker's loop", "another loop"]

#: Each of them where that costs least, the worker's own on the servers.
each_loop = pytest.mark.parametrize(
    ("alias", "loop"),
    [*(("sqlite", loop) for loop in LOOPS), ("postgresql", LOOPS[0]), ("mysql", LOOPS[0])],
    indirect=["alias"],
)


def run_to_its_end(job: Job, loop: str) -> Any:
    """Run the job until it waits for nothing any more; its result."""
    while queue.get(job).status == JobStatus.SCHEDULED or queue.get(job).status == JobStatus.READY:
        if loop == "another loop":
            attempt(job)
        else:
            jobs().filter(pk=job.pk, status=JobStatus.SCHEDULED).update(run_at=PAST)
            Worker(["default"], heartbeat=False, drain=True).run()
    ended = queue.get(job)
    assert ended.status == JobStatus.DONE, ended.last_error
    return ended.result


class Cards:
    """Charges that are refused at first: one that was sealed never runs again."""

    def __init__(self, context: JobContext, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger

    def charge(self) -> str:
        """Fail safely at the first call."""
        self._ledger.add()
        if len(self._ledger) == 1:
            raise tasks.Refused("no route")
        return "visa"

    async def visa(self) -> str:
        """Do the step that is refused at first."""

        async def charge() -> str:
            return self.charge()

        return await self._context.using(key="visa", safe_errors=tasks.Refused).astep("charge", charge)

    def visa_here(self) -> str:
        """Do the step that is refused at first, in this thread."""
        try:
            return self._context.using(key="visa", safe_errors=tasks.Refused).step("charge", self.charge)
        finally:
            connections.close_all()

    async def other(self, key: str = "mastercard") -> str:
        """Do another step, in another branch or after the failure."""
        return await self._context.using(key=key).aatomic_step("charge", lambda: key)

    def other_here(self) -> str:
        """Do another step, in this thread."""
        try:
            return self._context.using(key="mastercard").atomic_step("charge", lambda: "mastercard")
        finally:
            connections.close_all()

    def crash_at_first(self) -> None:
        """Crash in the first attempt."""
        if self._context.claimed.lease_token == 1:
            raise OSError("crash")


async def wait_for_task(branch: Branch) -> bool:
    try:
        await asyncio.create_task(branch())  # type: ignore[arg-type]
    except StepFailed:
        return False
    return True


async def gather(branch: Branch) -> bool:
    try:
        await asyncio.gather(branch(), asyncio.sleep(0))
    except StepFailed:
        return False
    return True


async def gather_exceptions(branch: Branch) -> bool:
    (result,) = await asyncio.gather(branch(), return_exceptions=True)
    return not isinstance(result, StepFailed)


async def in_task_group(branch: Branch) -> bool:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(branch())  # type: ignore[arg-type]
    except ExceptionGroup:
        return False
    return True


async def look_at_task(branch: Branch) -> bool:
    task = asyncio.create_task(branch())  # type: ignore[arg-type]
    await asyncio.wait([task])
    return task.exception() is None


async def wait_behind_another(branch: Branch) -> bool:
    """The task that began it has ended, and nobody knows it any more."""

    async def begin() -> list[asyncio.Task[str]]:
        return [asyncio.create_task(branch())]  # type: ignore[arg-type]

    (task,) = await asyncio.create_task(begin())
    await asyncio.wait([task])
    return task.exception() is None


async def raised_by_another_name(branch: Branch) -> bool:
    async def renaming() -> None:
        try:
            await branch()
        except StepFailed as failed:
            raise LookupError from failed

    try:
        await asyncio.gather(renaming())
    except LookupError:
        return False
    return True


HOW = [gather_exceptions, in_task_group, look_at_task, wait_behind_another, raised_by_another_name]


@pytest.mark.parametrize("how", [wait_for_task, gather, *HOW])
def test_a_failure_that_the_parent_of_its_task_caught_is_sealed(
    aplay: Play, ledger: Ledger, how: Callable[[Branch], Awaitable[bool]]
) -> None:
    async def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)

        async def parent() -> str:
            return "visa" if await how(cards.visa) else await cards.other()

        results = await asyncio.gather(parent())
        cards.crash_at_first()
        return results

    assert run_to_its_end(aplay(handler), "the worker's loop") == ["mastercard"]
    assert len(ledger) == 1


@pytest.mark.parametrize("how", ["task", "gather", "thread", "asgiref's thread"])
@each_loop
def test_a_failure_that_was_raised_to_the_frame_which_goes_on_is_sealed(
    aplay: Play, ledger: Ledger, loop: str, how: str
) -> None:
    async def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)
        begin: dict[str, Callable[[], Awaitable[Any]]] = {
            "task": lambda: asyncio.create_task(cards.visa()),
            "gather": lambda: asyncio.gather(cards.visa(), asyncio.sleep(0)),
            "thread": lambda: asyncio.to_thread(cards.visa_here),
            "asgiref's thread": lambda: sync_to_async(cards.visa_here)(),
        }

        async def parent() -> str:
            try:
                await begin[how]()
            except StepFailed:
                return await cards.other()
            return "visa"

        results = await asyncio.gather(parent())
        cards.crash_at_first()
        return results

    assert run_to_its_end(aplay(handler), loop) == ["mastercard"]
    assert len(ledger) == 1


@pytest.mark.parametrize("then", ["a thread", "itself", "a task", "a task's thread"])
@pytest.mark.parametrize("began", ["by the handler", "in a branch"])
def test_a_failure_of_a_thread_that_the_task_which_awaited_it_caught_is_sealed(
    aplay: Play, ledger: Ledger, began: str, then: str
) -> None:
    """The function that caught it has returned: nothing but the asyncio task is the same."""

    async def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)
        go_on: dict[str, Callable[[], Awaitable[Any]]] = {
            "a thread": lambda: asyncio.to_thread(cards.other_here),
            "itself": cards.other,
            "a task": lambda: asyncio.gather(cards.other()),
            "a task's thread": lambda: asyncio.gather(asyncio.to_thread(cards.other_here)),
        }

        async def is_accepted() -> bool:
            with suppress(StepFailed):
                await asyncio.to_thread(cards.visa_here)
                return True
            return False

        async def branch() -> Any:
            result = "visa" if await is_accepted() else await go_on[then]()
            cards.crash_at_first()
            return result

        return (await asyncio.gather(branch()))[0] if began == "in a branch" else await branch()

    result = run_to_its_end(aplay(handler), "the worker's loop")
    assert result in ("mastercard", ["mastercard"])
    assert len(ledger) == 1


def test_a_failure_of_a_thread_that_another_thread_caught_is_sealed(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)

        def parent() -> str:
            with ThreadPoolExecutor(1) as pool:
                try:
                    return pool.submit(cards.visa_here).result()
                except StepFailed:
                    return context.using(key="mastercard").step("charge", lambda: "mastercard")

        results = in_pool([parent])
        cards.crash_at_first()
        return results

    assert run_to_its_end(play(handler), "another loop") == ["mastercard"]
    assert len(ledger) == 1


def test_a_plain_handler_that_runs_an_event_loop_seals_what_its_tasks_caught(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)

        async def main() -> str:
            try:
                await asyncio.gather(cards.visa())
            except StepFailed:
                return await cards.other()
            return "visa"

        result = asyncio.run(main())
        cards.crash_at_first()
        return result

    assert run_to_its_end(play(handler), "another loop") == "mastercard"
    assert len(ledger) == 1


@pytest.mark.parametrize("how", ["gather", "task group", "thread", "nested"])
@each_loop
def test_a_failure_is_sealed_where_only_branches_go_on_that_were_begun_after_it(
    aplay: Play, ledger: Ledger, loop: str, how: str
) -> None:
    async def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)

        async def in_a_group() -> Any:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(cards.other())
            return task.result()

        async def go_on() -> Any:
            with suppress(StepFailed):
                return await cards.visa()
            if how == "thread":
                result = await asyncio.to_thread(cards.other_here)
            elif how == "gather":
                (result,) = await asyncio.gather(cards.other())
            else:
                result = await in_a_group()
            cards.crash_at_first()
            return result

        return (await asyncio.gather(go_on()))[0] if how == "nested" else await go_on()

    assert run_to_its_end(aplay(handler), loop) == "mastercard"
    assert len(ledger) == 1


def test_a_failure_that_the_handler_caught_before_it_began_threads_is_sealed_by_these(
    play: Play, ledger: Ledger
) -> None:
    def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)
        with suppress(StepFailed):
            return cards.visa_here()
        results = in_pool([cards.other_here])
        cards.crash_at_first()
        return results

    assert run_to_its_end(play(handler), "another loop") == ["mastercard"]
    assert len(ledger) == 1


# --- who has not caught it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["its sibling", "the sibling of its parent", "a task of its sibling"])
@each_loop
def test_a_failure_on_its_way_to_the_handler_is_not_sealed_by_others(
    aplay: Play, ledger: Ledger, loop: str, who: str
) -> None:
    async def handler(context: JobContext) -> Any:
        cards, failed = Cards(context, ledger), asyncio.Event()

        async def one() -> str:
            try:
                return await cards.visa()
            finally:
                failed.set()

        async def other() -> str:
            await failed.wait()
            await asyncio.sleep(0)
            return await cards.other()

        async def nested(*branches: Branch) -> list[str]:
            return await asyncio.gather(*(branch() for branch in branches))

        branches: dict[str, Callable[[], list[Awaitable[Any]]]] = {
            "its sibling": lambda: [nested(one, other)],
            "the sibling of its parent": lambda: [nested(one), other()],
            "a task of its sibling": lambda: [nested(one), nested(other)],
        }
        results = await asyncio.gather(*branches[who]())
        cards.crash_at_first()
        return str(results)

    assert "visa" in run_to_its_end(aplay(handler), loop)
    assert len(ledger) == 2


@pytest.mark.parametrize("how", ["asyncio.run", "async_to_sync", "a context that was given"])
@on_sqlite
def test_a_failure_on_its_way_is_not_sealed_by_a_sibling_that_shares_a_context(
    aplay: Play, ledger: Ledger, how: str
) -> None:
    async def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)

        async def main() -> list[str]:
            failed = asyncio.Event()

            async def one() -> str:
                try:
                    return await cards.visa()
                finally:
                    failed.set()

            async def other() -> str:
                await failed.wait()
                return await cards.other()

            both = [asyncio.create_task(each(), context=copy_context()) for each in (one, other)]
            await asyncio.wait(both)
            return [each.result() for each in both]

        begin: dict[str, Callable[[], Awaitable[Any]]] = {
            "asyncio.run": lambda: asyncio.to_thread(asyncio.run, main()),
            "async_to_sync": lambda: asyncio.to_thread(async_to_sync(main)),
            "a context that was given": main,
        }

        async def branch() -> Any:
            return await begin[how]()

        return (await asyncio.gather(branch()))[0]

    assert run_to_its_end(aplay(handler), "the worker's loop") == ["visa", "mastercard"]
    assert len(ledger) == 2


@on_sqlite
def test_a_failure_is_not_sealed_by_the_parent_of_a_task_that_still_cleans_up(aplay: Play, ledger: Ledger) -> None:
    async def handler(context: JobContext) -> Any:
        cards, failed, go_on = Cards(context, ledger), asyncio.Event(), asyncio.Event()

        async def one() -> str:
            try:
                return await cards.visa()
            finally:
                failed.set()
                await go_on.wait()

        async def parent() -> list[str]:
            task = asyncio.create_task(one())
            await failed.wait()
            other = await cards.other()
            go_on.set()
            return [await task, other]

        return (await asyncio.gather(parent()))[0]

    assert run_to_its_end(aplay(handler), "the worker's loop") == ["visa", "mastercard"]
    assert len(ledger) == 2


def test_a_failure_in_a_thread_is_not_sealed_by_another_thread_of_its_task(aplay: Play, ledger: Ledger) -> None:
    async def handler(context: JobContext) -> Any:
        cards, loop, at_hand = Cards(context, ledger), asyncio.get_running_loop(), threading.Event()

        def visa() -> str:
            try:
                return cards.visa_here()
            finally:
                at_hand.set()
                other_ended.wait()

        def other() -> str:
            at_hand.wait()
            try:
                return cards.other_here()
            finally:
                other_ended.set()

        async def branch() -> list[str]:
            beside = loop.run_in_executor(None, copy_context().run, other)
            return [await asyncio.to_thread(visa), await beside]

        other_ended = threading.Event()
        return (await asyncio.gather(branch()))[0]

    assert run_to_its_end(aplay(handler), "the worker's loop") == ["visa", "mastercard"]
    assert len(ledger) == 2


@each_loop
def test_a_failure_in_a_thread_is_not_sealed_by_what_the_thread_does_for_another_task(
    aplay: Play, ledger: Ledger, loop: str
) -> None:
    """Asgiref has one thread for all of an event loop, which may be the one that runs a program's main function."""

    async def handler(context: JobContext) -> Any:
        cards = Cards(context, ledger)
        other = sync_to_async(lambda: context.using(key="mastercard").step("charge", lambda: "mastercard"))
        return await asyncio.gather(sync_to_async(cards.visa_here)(), other())

    assert run_to_its_end(aplay(handler), loop) == ["visa", "mastercard"]
    assert len(ledger) == 2


def test_a_failure_is_not_sealed_by_threads_that_the_handler_waits_for_on_its_way_out(
    play: Play, ledger: Ledger
) -> None:
    def handler(context: JobContext) -> Any:
        cards, failed = Cards(context, ledger), threading.Event()

        def other() -> str:
            failed.wait()
            return cards.other_here()

        with ThreadPoolExecutor(1) as pool:  # ends only when its thread does
            pool.submit(other)
            try:
                return cards.visa_here()
            finally:
                failed.set()

    assert run_to_its_end(play(handler), "another loop") == "visa"
    assert len(ledger) == 2
