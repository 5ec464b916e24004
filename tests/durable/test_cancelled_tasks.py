"""Asyncio tasks that are cancelled, or asked to end the process, in the middle of a step."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gnlqueue import JobContext
from gnlqueue.durable.entries import Journal
from gnlqueue.durable.run import Run
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable.conftest import Ledger, attempt, entries, on_sqlite

Play = Callable[..., Job]


def test_a_task_that_is_cancelled_in_the_middle_of_a_step_leaves_it_in_doubt(aplay: Play, ledger: Ledger) -> None:
    async def handler(context: JobContext) -> str:
        async def charge() -> None:
            ledger.add()
            await asyncio.sleep(30)

        try:
            async with asyncio.timeout(0.2):
                await context.astep("charge", charge)
        except TimeoutError:
            pass
        return "all is well"

    job = aplay(handler)
    assert attempt(job).status == JobStatus.BLOCKED
    assert entries(job).get().status == EntryStatus.IN_DOUBT
    assert len(ledger) == 1


def test_a_task_that_is_cancelled_before_the_function_was_called_leaves_no_doubt(
    aplay: Play, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, cancelled = threading.Event(), threading.Event()
    insert = Journal.insert

    def insert_slowly(*args: Any, **kwargs: Any) -> Any:
        entry = insert(*args, **kwargs)
        started.set()
        cancelled.wait(30)
        return entry

    async def charge() -> str:
        return str(ledger.add("paid"))

    async def handler(context: JobContext) -> Any:
        if context.claimed.lease_token == 1:
            with monkeypatch.context() as patched:
                patched.setattr(Journal, "insert", insert_slowly)
                task = asyncio.create_task(context.using(key="EU").astep("charge", charge))
                await asyncio.to_thread(started.wait, 30)
                task.cancel()
                await asyncio.sleep(0)
                cancelled.set()
                await asyncio.wait([task])
            assert task.cancelled()
            raise OSError("crash")
        return await context.using(key="EU").astep("charge", charge)

    job = aplay(handler)
    attempt(job)
    assert (entries(job).get().status, len(ledger)) == (EntryStatus.FAILED, 0)
    assert attempt(job).result == "paid"


@on_sqlite
def test_a_task_that_is_cancelled_while_its_step_opens_does_not_hold_up_the_outcome(
    aplay: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, cancelled = threading.Event(), threading.Event()
    load = Run._load

    def load_slowly(run: Run) -> Any:
        opening.set()
        cancelled.wait(30)
        return load(run)

    monkeypatch.setattr(Run, "_load", load_slowly)

    async def nothing() -> None:
        pass

    async def handler(context: JobContext) -> str:
        task = asyncio.create_task(context.using(key="EU").astep("charge", nothing))
        await asyncio.to_thread(opening.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        return "fine"

    assert attempt(aplay(handler)).status == JobStatus.DONE


@on_sqlite
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_the_end_of_the_process_asked_for_in_an_asynchronous_step_ends_only_the_step(
    aplay: Play, error: type[BaseException]
) -> None:
    async def handler(context: JobContext) -> None:
        def leave() -> None:
            raise error

        await context.aatomic_step("charge", leave)

    assert attempt(aplay(handler)).status == JobStatus.SCHEDULED
