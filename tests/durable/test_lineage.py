"""Which asyncio task began which."""

import asyncio
import gc
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from gnlqueue.durable import lineage


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on an event loop that knows what began what."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_task_factory(lineage.begin)
        return runner.run(main)


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def test_a_task_descends_from_those_that_began_it() -> None:
    async def child(top: asyncio.Task[Any], parent: asyncio.Task[Any]) -> list[bool]:
        return [lineage.descends_from(this_task(), each) for each in (top, parent, this_task())]

    async def parent(top: asyncio.Task[Any]) -> list[bool]:
        return await asyncio.create_task(child(top, this_task()))

    async def main() -> None:
        here = this_task()
        one, other = asyncio.create_task(parent(here)), asyncio.create_task(asyncio.sleep(0))
        assert await one == [True, True, False]
        await other
        assert not lineage.descends_from(one, other)
        assert not lineage.descends_from(here, one)

    run(main())


def test_a_line_of_tasks_that_each_begin_the_next_one_keeps_nothing_alive() -> None:
    lengths: list[int] = []
    latest: list[asyncio.Task[None]] = []

    async def link(left: int, last: asyncio.Event) -> None:
        lengths.append(len(lineage._ancestors[this_task()]))
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
    assert not [task for task in lineage._ancestors if task.get_coro().__name__ == "link"]  # type: ignore[union-attr]


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
