"""Where jobs run: threads for `def` tasks, made as they are needed, and one event loop for `async def` tasks.

A thread that has finished a job takes the next one itself: waking another costs more than running a short job.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from typing import Any, NamedTuple

from gnlqueue.exceptions import JobTimedOut
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.attempts import failure_of
from gnlqueue.registry import Task
from gnlqueue.worker import executor
from gnlqueue.worker.connections import (
    IDLE_CONNECTION_AGE,
    AsyncConnections,
    close_connections,
    tidy_connections,
    watch_connections,
)
from gnlqueue.worker.eventloop import EventLoop
from gnlqueue.worker.executor import Ending, Outcome, Terms
from gnlqueue.worker.table import LeaseTable, Stage

logger = logging.getLogger("gnlqueue.worker")

START_AGAIN = 1.0  # seconds until a thread is asked for again, after there was none to have


class _Waiting(NamedTuple):
    """A job that has not begun, and since when (monotonic seconds)."""

    claimed: ClaimedJob
    task: Task[..., Any]
    since: float


class Pool:
    """Runs at most `concurrency` jobs at a time. `report` is called with each outcome, in the thread that has it."""

    def __init__(self, concurrency: int, table: LeaseTable, terms: Terms, report: Callable[[Outcome], None]) -> None:
        self._concurrency = concurrency
        self._table = table
        self._terms = terms
        self._pid = os.getpid()
        self._report = report
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: dict[bool, deque[_Waiting]] = {False: deque(), True: deque()}  # of `def` and `async def` tasks
        self._running = 0
        self._threads = 0
        self._idle = 0
        self._start_after = 0.0  # monotonic seconds
        self._lacks: Callable[[], None] | None = None  # what could not be started
        self._ended = False
        self._outages = 0
        self._async_connections = AsyncConnections()
        self._loop: EventLoop | None = None
        watch_connections()

    def put(self, jobs: Iterable[tuple[ClaimedJob, Task[..., Any]]]) -> None:
        """Run these jobs as soon as there are places for them."""
        now = time.monotonic()
        with self._lock:
            for claimed, task in jobs:
                self._waiting[task.is_async].append(_Waiting(claimed, task, now))
            self._call_for_next()

    def take_back(self, older_than: float = 0.0) -> list[ClaimedJob]:
        """Return the jobs that have waited for `older_than` seconds or more and have not begun; they will not begin."""
        limit = time.monotonic() - older_than
        taken: list[ClaimedJob] = []
        with self._lock:
            for waiting in self._waiting.values():
                while waiting and waiting[0].since <= limit:  # the first has waited longest
                    taken.append(waiting.popleft().claimed)
        return taken

    def places_of(self, room: int) -> int:
        """Return how many of these places have a thread: all, but the idle ones only after one could not be started.

        Tries that again first. Otherwise this worker would claim what it cannot run, again and again, before others do.
        """
        with self._lock:
            if self._lacks is not None:
                self._start(self._lacks)
            return room if self._lacks is None else min(room, self._idle)

    def end(self) -> None:
        """Let idle threads and the event loop end; what runs goes on, and nothing begins any more."""
        with self._lock:
            self._ended = True
            for waiting in self._waiting.values():
                waiting.clear()
            self._changed.notify_all()
            self._end_loop()

    def note_outage(self) -> None:
        """Have each thread close its database connections before its next job: the database was away."""
        self._outages += 1

    # --- handing out, with the lock held -----------------------------------------------------------------------------

    def _take(self, *, is_async: bool) -> _Waiting | None:
        """Hand out the next job of this kind, if one waits and there is a place for it."""
        job = None
        if self._waiting[is_async] and self._running < self._concurrency:
            job = self._waiting[is_async].popleft()
            self._running += 1
        self._call_for_next()
        return job

    def _call_for_next(self) -> None:
        """Wake one taker for the next job of each kind, if there is a place; it wakes the taker after it.

        Each kind has its own: a task that blocks the event loop must not keep the threads from their jobs.
        """
        if self._running >= self._concurrency:
            return
        if self._waiting[True]:
            if self._loop is None:
                self._start(self._start_loop)
            if self._loop is not None:
                self._loop.call()
        if not self._waiting[False]:
            return
        if self._idle:
            self._changed.notify()
        elif self._threads < self._concurrency:
            self._start(self._start_thread)

    def _start(self, start: Callable[[], None]) -> None:
        """Start a thread, unless this process may have no more of them, or of open files.

        Then those that run take the next job, or it waits until the loop gives it back. Raised, the error would end the
        thread that has just taken a job.
        """
        if time.monotonic() < self._start_after:
            return
        try:
            start()
            self._lacks = None
        except (RuntimeError, OSError) as error:
            self._lacks = start
            self._start_after = time.monotonic() + START_AGAIN
            logger.error("A thread for jobs cannot be started, trying again: %s", error)

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name=f"gnlqueue-{self._threads + 1}", daemon=True).start()
        self._threads += 1

    def _start_loop(self) -> None:
        self._loop = EventLoop(self._next_async)

    def _end_loop(self) -> None:
        """Stop the event loop once nothing runs."""
        if self._loop is not None and not self._running and not any(self._waiting.values()):
            self._loop.stop()
            self._loop = None

    # --- in a thread of the pool -------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Run jobs until the pool ends."""
        outages = self._outages
        job = self._next()
        while job is not None:
            if outages != self._outages:
                outages = self._outages
                close_connections()
            self._table.advance(job.claimed, Stage.BEGUN)
            try:
                # In a context of its own: the next job finds no language, time zone or other variable of this one.
                outcome = copy_context().run(executor.run_sync, job.claimed, job.task, self._terms)
            except BaseException as error:
                outcome = _failed_before_its_task(job.claimed, error)
            executor.end_copy(self._pid, outcome)
            self._table.advance(job.claimed, Stage.ENDED)
            tidy_connections(interrupted=isinstance(outcome.error, JobTimedOut))
            self._report(outcome)
            del outcome, job  # what they hold may be large, and the next one may be long in coming
            job = self._next(ended=1)
        close_connections()

    def _next(self, *, ended: int = 0) -> _Waiting | None:
        """Wait for the next job, after one or none has ended; `None` once the pool ends."""
        while True:
            with self._lock:
                self._running -= ended
                ended = 0
                if (job := self._take(is_async=False)) is not None:
                    return job
                if self._ended:
                    self._threads -= 1
                    self._end_loop()
                    return None
                self._idle += 1
                told = self._changed.wait(IDLE_CONNECTION_AGE)
                self._idle -= 1
            if not told:
                close_connections()

    # --- on the event loop -------------------------------------------------------------------------------------------

    def _next_async(self) -> Coroutine[Any, Any, None] | None:
        with self._lock:
            job = self._take(is_async=True)
        return None if job is None else self._run_async(job)

    async def _run_async(self, job: _Waiting) -> None:
        outcome: Outcome | None = None
        try:
            try:
                await self._async_connections.begin_job(self._outages)
                self._table.advance(job.claimed, Stage.BEGUN)
                outcome = await executor.run_async(job.claimed, job.task, self._terms)
                executor.end_copy(self._pid, outcome)
            finally:
                await self._async_connections.end_job()
        except BaseException as error:
            outcome = outcome or _failed_before_its_task(job.claimed, error)
        self._table.advance(job.claimed, Stage.ENDED)
        self._report(outcome)
        with self._lock:
            self._running -= 1
            self._call_for_next()
            if self._ended:
                self._end_loop()


def _failed_before_its_task(claimed: ClaimedJob, error: BaseException) -> Outcome:
    """Return an outcome for an error that is ours, not the task's: without one the job would be held for ever."""
    logger.error("job %s (%s) could not be run", claimed.id, claimed.task_name, exc_info=error)
    return Outcome(claimed, Ending.FAILED, error=error, failure=failure_of(error))
