"""The event loop on which the jobs of `async def` tasks run, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from gnlqueue.durable import lineage

logger = logging.getLogger("gnlqueue.worker")

#: How many jobs begin before those that run already have a turn.
BEGIN_AT_ONCE = 50

#: From Python 3.12 on: run a new asyncio task up to its first wait at once, which may be all there is to run.
_EAGERLY: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class EventLoop:
    """Begins what `next_job` gives, until it gives `None`, whenever it is called."""

    def __init__(self, next_job: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        self._next_job = next_job
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(lineage.begin)
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references
        self._begins = False  # whether `_begin` runs soon, or just now
        self._context = Context()  # each job begins in a copy of it: where `call` is made may be inside another job
        self._thread = threading.Thread(target=self._run, name="gnlqueue-asyncio", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # or it would keep its files open
            self._loop.close()
            raise

    def call(self) -> None:
        """Let it take the next jobs; from any thread."""
        if self._begins:
            return
        self._begins = True
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(self._begin, context=self._context)
        else:
            self._loop.call_soon_threadsafe(self._begin, context=self._context)

    def stop(self) -> None:
        """End the thread; from any thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _begin(self) -> None:
        for _ in range(BEGIN_AT_ONCE):
            job = self._next_job()
            if job is None and self._begins:
                self._begins = False
                job = self._next_job()  # once more: for a job that came until now nobody has called
            if job is None:
                return
            task = lineage.begin(self._loop, job, **_EAGERLY)
            if not task.done():
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._begins = True
        self._loop.call_soon(self._begin, context=self._context)

    def _run(self) -> None:
        """Run until stopped; what an asyncio task of a handler raises must not end it for all others."""
        try:
            stopped = False
            while not stopped:
                try:
                    self._loop.run_forever()
                    stopped = True
                except (SystemExit, KeyboardInterrupt) as error:
                    logger.error("An asyncio task of a job raised %r; the event loop goes on.", error)
        finally:
            self._loop.close()
