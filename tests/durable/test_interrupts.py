"""An interrupt in one branch of a run stops all of it, however it is caught."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from gnlqueue import JobContext, queue
from gnlqueue.exceptions import JobBlocked, JobCancelled, JobPreempted
from gnlqueue.models import Job, JobStatus
from tests.durable.conftest import HOW, Ledger, attempt, claim, end_lease, entries, gathered, in_pool, on_sqlite

Play = Callable[..., Job]


@on_sqlite
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("swallowed", [False, True])
def test_an_interrupt_in_one_branch_stops_the_run(aplay: Play, ledger: Ledger, how: str, swallowed: bool) -> None:
    async def no_answer() -> None:
        raise TimeoutError("no answer")

    async def charge() -> None:
        ledger.add()

    async def handler(context: JobContext) -> str:
        try:
            await gathered([context.using(key="EU").astep("charge", no_answer)], how)
        except BaseException:
            if not swallowed:
                raise
        try:
            await context.astep("ship", charge)
        except BaseException:
            if not swallowed:
                raise
        return "all is well"

    job = aplay(handler)
    assert attempt(job).status == JobStatus.BLOCKED
    assert len(ledger) == 0


INTERRUPTS = {
    "in doubt": (JobBlocked, JobStatus.BLOCKED),
    "lease lost": (JobPreempted, JobStatus.IN_PROGRESS),
    "cancelled": (JobCancelled, JobStatus.CANCELLED),
}


def interrupt(job: Job, by: str) -> None:
    """What happens in the middle of a step."""
    if by == "in doubt":
        raise TimeoutError("no answer")
    if by == "cancelled":
        queue.cancel(job)
    else:
        end_lease(job)
        claim(job, "another")


@on_sqlite
@pytest.mark.parametrize("by", INTERRUPTS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("swallowed", [False, True])
def test_no_step_of_a_sibling_begins_after_an_interrupt_in_another_branch(
    aplay: Play, ledger: Ledger, how: str, by: str, swallowed: bool
) -> None:
    told: list[type[BaseException]] = []

    async def handler(context: JobContext) -> str:
        interrupted, ended = asyncio.Event(), asyncio.Event()

        async def charge() -> None:
            await sync_to_async(interrupt)(job, by)

        async def ship() -> None:
            ledger.add()

        async def step(key: str, name: str, function: Callable[[], Any]) -> None:
            try:
                await context.using(key=key).astep(name, function)
            except BaseException as error:
                told.append(type(error))
                if not swallowed:
                    raise

        async def first() -> None:
            try:
                await step("EU", "charge", charge)
                await step("EU", "ship", ship)  # a step that is open when somebody cancels records its outcome
            finally:
                interrupted.set()

        async def sibling() -> None:
            try:
                with contextlib.suppress(asyncio.CancelledError):  # of the TaskGroup
                    await interrupted.wait()
                await step("US", "ship", ship)
            finally:
                ended.set()

        try:
            await gathered([first(), sibling()], how)
        except BaseException:
            if not swallowed:
                raise
        finally:
            await ended.wait()
        return "all is well"

    job = aplay(handler)
    error, status = INTERRUPTS[by]
    assert attempt(job).status == status
    assert len(told) >= 2
    assert set(told) == {error}
    assert len(ledger) == 0
    assert [each.key for each in entries(job)] == ["charge[EU]"]


@pytest.mark.parametrize("by", INTERRUPTS)
@pytest.mark.parametrize("swallowed", [False, True])
def test_no_step_of_another_thread_begins_after_an_interrupt_in_one(
    play: Play, ledger: Ledger, by: str, swallowed: bool
) -> None:
    told: list[type[BaseException]] = []
    interrupted = threading.Event()

    def handler(context: JobContext) -> str:
        def step(key: str, name: str, function: Callable[[], Any]) -> None:
            try:
                context.using(key=key).step(name, function)
            except BaseException as error:
                told.append(type(error))
                if not swallowed:
                    raise

        def first() -> None:
            try:
                step("EU", "charge", lambda: interrupt(job, by))
                step("EU", "ship", ledger.add)
            finally:
                interrupted.set()

        def sibling() -> None:
            assert interrupted.wait(30)
            step("US", "ship", ledger.add)

        in_pool([first, sibling])
        return "all is well"

    job = play(handler)
    error, status = INTERRUPTS[by]
    assert attempt(job).status == status
    assert len(told) >= 2
    assert set(told) == {error}
    assert len(ledger) == 0
    assert [each.key for each in entries(job)] == ["charge[EU]"]


def test_an_interrupt_in_one_thread_stops_the_run(play: Play, ledger: Ledger) -> None:
    def no_answer() -> None:
        raise TimeoutError("no answer")

    def handler(context: JobContext) -> str:
        def branch() -> None:
            with pytest.raises(JobBlocked):
                context.using(key="EU").step("charge", no_answer)

        in_pool([branch])
        with pytest.raises(JobBlocked):
            context.step("ship", ledger.add)
        return "all is well"

    assert attempt(play(handler)).status == JobStatus.BLOCKED
    assert len(ledger) == 0
