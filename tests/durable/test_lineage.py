"""What failed below an asyncio task."""

import asyncio
import gc
import time
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from gnlqueue.durable import lineage


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on an event loop that knows what began what."""

    async def begin() -> Any:  # as a task of its own: the runner gives its first one a context
        return await asyncio.create_task(main)

    with asyncio.Runner() as runner:
        runner.get_loop().set_task_factory(lineage.begin)
        return runner.run(begin())


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def fail(number: int) -> None:
    """Note a failure of the asyncio task that runs here."""
    lineage.note(number, this_task())


def test_a_failure_comes_to_those_above_once_its_task_has_ended() -> None:
    async def child(failed: asyncio.Event, goes_on: asyncio.Event) -> None:
        fail(1)
        failed.set()
        await goes_on.wait()

    async def parent(failed: asyncio.Event, goes_on: asyncio.Event) -> bool:
        await asyncio.create_task(child(failed, goes_on))
        return lineage.has_seen(1)

    async def main() -> None:
        failed, goes_on = asyncio.Event(), asyncio.Event()
        one, other = asyncio.create_task(parent(failed, goes_on)), asyncio.create_task(see(1))
        await failed.wait()
        assert not lineage.has_seen(1)
        assert not await asyncio.create_task(see(1))
        goes_on.set()
        assert await one
        assert lineage.has_seen(1)
        assert await asyncio.create_task(see(1))  # begun after it
        assert not await other

    run(main())


def test_a_failure_in_a_thread_comes_to_the_task_that_awaits_it() -> None:
    def here() -> None:
        lineage.note(1, None)

    async def main() -> None:
        await asyncio.to_thread(here)
        assert lineage.has_seen(1)
        assert await asyncio.to_thread(lineage.has_seen, 1)
        assert await asyncio.create_task(see(1))

    run(main())


def test_a_thread_that_is_quicker_than_the_task_which_began_it_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that begins eagerly is made only when its first stretch is over, and that has begun the thread."""

    def here(branch: lineage.Branch) -> None:
        made, branch.task_ref = branch.task_ref, None
        sleep = time.sleep

        def make(moment: float) -> None:
            branch.task_ref = made
            sleep(moment)

        monkeypatch.setattr(lineage.time, "sleep", make)
        lineage.note(1, None)

    async def main() -> None:
        branch = lineage._branch.get()
        assert branch is not None
        await asyncio.to_thread(here, branch)
        assert lineage.has_seen(1)

    run(main())


def test_a_failure_in_a_thread_that_nobody_awaits_comes_to_nobody() -> None:
    async def main() -> None:
        context = copy_context()
        await asyncio.get_running_loop().run_in_executor(None, lambda: context.run(lineage.note, 1, None))
        assert not lineage.has_seen(1)

    run(main())


def test_who_looks_for_the_one_that_awaits_a_thread_evaluates_nothing() -> None:
    class Lazy:
        @property
        def __class__(self) -> type:  # as Django's SimpleLazyObject has it
            raise LookupError

    async def main() -> None:
        context, lazy = copy_context(), Lazy()
        await asyncio.get_running_loop().run_in_executor(None, context.run, lineage.note, 1, None)
        assert lineage.has_seen(1) is False
        del lazy

    run(main())


def test_a_failure_in_a_task_of_a_given_context_comes_to_who_has_that() -> None:
    async def child() -> None:
        fail(1)

    async def main() -> None:
        await asyncio.create_task(child(), context=copy_context())
        assert lineage.has_seen(1)

    run(main())


async def see(failure: int) -> bool:
    return lineage.has_seen(failure)


def test_a_line_of_tasks_that_each_begin_the_next_one_keeps_nothing_alive() -> None:
    lengths: list[int] = []
    latest: list[asyncio.Task[None]] = []

    async def link(left: int, last: asyncio.Event) -> None:
        branch = lineage._branch.get()
        assert branch is not None
        lengths.append(len(branch.above))
        if left:
            latest[:] = [asyncio.create_task(link(left - 1, last))]
        else:
            last.set()

    async def main() -> None:
        last = asyncio.Event()
        latest[:] = [asyncio.create_task(link(50, last))]
        await last.wait()
        await latest.pop()
        assert len(lengths) == 51

    run(main())
    gc.collect()
    assert max(lengths) < 5
    assert not [each for each in gc.get_objects() if isinstance(each, lineage.Branch)]


def test_a_task_that_lives_long_keeps_nothing_of_what_was_forgotten() -> None:
    async def child(number: int) -> int:
        branch = lineage._branch.get()
        assert branch is not None
        fail(number)
        return len(branch.seen)

    async def main() -> None:
        seen = []
        for number in range(200):
            seen.append(await asyncio.create_task(child(number)))
            assert lineage.has_seen(number)
            if number:
                lineage.forget(number - 1)
        assert max(seen) <= 2
        gc.collect()
        assert len([each for each in gc.get_objects() if isinstance(each, lineage.Branch)]) < 10
        lineage.forget(199)
        assert not lineage._noted

    run(main())


def test_tasks_begin_as_they_would_without_it() -> None:
    told: ContextVar[str] = ContextVar("told", default="nothing")

    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(0), name="one")
        assert (type(task), task.get_name()) == (asyncio.Task, "one")
        token = told.set("something")
        assert await asyncio.create_task(tell()) == "something"
        told.reset(token)
        assert await asyncio.create_task(tell()) == "nothing"

    async def tell() -> str:
        return told.get()

    run(main())
