"""Where jobs run: threads for `def` tasks, made as they are needed, and one event loop for `async def` tasks."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.exceptions import JobTimedOut
from gnlqueue.queue import ClaimedJob
from gnlqueue.registry import Task
from gnlqueue.worker import executor
from gnlqueue.worker.executor import Ending, Outcome, Terms
from gnlqueue.worker.table import LeaseTable, Stage

logger = logging.getLogger("gnlqueue.worker")

#: Seconds after which an idle thread closes its database connections.
IDLE_CONNECTION_AGE = 10.0


class Pool:
    """At most `concurrency` jobs at once. `report` is called with each outcome, in the thread that has it."""

    def __init__(self, concurrency: int, table: LeaseTable, terms: Terms, report: Callable[[Outcome], None]) -> None:
        self._concurrency = concurrency
        self._table = table
        self._terms = terms
        self._report = report
        self._changed = threading.Condition()
        self._waiting: deque[tuple[ClaimedJob, Task[..., Any], float]] = deque()  # with the time it was put there
        self._running = 0
        self._threads = 0
        self._idle = 0
        self._ended = False
        self._outages = 0
        self._outages_seen_by_loop = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, claimed: ClaimedJob, task: Task[..., Any]) -> None:
        """Run a job as soon as there is a place for it."""
        with self._changed:
            self._waiting.append((claimed, task, time.monotonic()))
            self._start_next()

    def take_back(self, older_than: float = 0.0) -> list[ClaimedJob]:
        """Return the jobs that have waited for `older_than` seconds or more and have not begun; they will not begin."""
        limit = time.monotonic() - older_than
        with self._changed:
            taken = [claimed for claimed, _, since in self._waiting if since <= limit]
            self._waiting = deque(entry for entry in self._waiting if entry[2] > limit)
        return taken

    def end(self) -> None:
        """Let idle threads and the event loop end; what runs goes on."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            self._end_loop()

    def note_outage(self) -> None:
        """Have each thread close its database connections before its next job: the database was away."""
        self._outages += 1

    def _start_next(self) -> None:
        """Give waiting jobs the free places; called with the lock held."""
        while self._waiting and self._running < self._concurrency:
            if self._waiting[0][1].is_async:
                claimed, task, _ = self._waiting.popleft()
                self._running += 1
                asyncio.run_coroutine_threadsafe(self._run_async(claimed, task), self._event_loop())
            elif self._idle:
                self._changed.notify()
                return  # the thread takes it itself
            elif self._threads < self._concurrency:
                self._threads += 1
                threading.Thread(target=self._work, name=f"gnlqueue-{self._threads}", daemon=True).start()
                return
            else:
                return

    def _work(self) -> None:
        """Run jobs in this thread until the pool ends."""
        outages = self._outages
        while (entry := self._next()) is not None:
            claimed, task = entry
            if outages != self._outages:
                outages = self._outages
                _close_connections()
            self._table.advance(claimed, Stage.BEGUN)
            try:
                outcome = executor.run_sync(claimed, task, self._terms)
            except BaseException as error:
                outcome = _failed_before_its_task(claimed, error)
            _tidy_connections(interrupted=isinstance(outcome.error, JobTimedOut))
            self._finish(outcome)
        _close_connections()

    def _next(self) -> tuple[ClaimedJob, Task[..., Any]] | None:
        with self._changed:
            while True:
                if self._waiting and self._running < self._concurrency and not self._waiting[0][1].is_async:
                    claimed, task, _ = self._waiting.popleft()
                    self._running += 1
                    self._start_next()
                    return claimed, task
                if self._ended:
                    self._threads -= 1
                    return None
                self._idle += 1
                told = self._changed.wait(IDLE_CONNECTION_AGE)
                self._idle -= 1
                if not told:
                    _close_connections()

    def _finish(self, outcome: Outcome) -> None:
        with self._changed:
            self._running -= 1
            self._start_next()
            if self._ended:
                self._end_loop()
        self._report(outcome)

    async def _run_async(self, claimed: ClaimedJob, task: Task[..., Any]) -> None:
        outcome: Outcome | None = None
        try:
            if self._outages_seen_by_loop != self._outages:
                self._outages_seen_by_loop = self._outages
                await sync_to_async(_close_connections)()
            self._table.advance(claimed, Stage.BEGUN)
            outcome = await executor.run_async(claimed, task, self._terms)
            if outcome.error is not None:  # the connections are those of the thread behind sync_to_async
                await sync_to_async(_tidy_connections)(interrupted=False)
        except BaseException as error:
            outcome = outcome or _failed_before_its_task(claimed, error)
        self._finish(outcome)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=[self._loop], name="gnlqueue-asyncio", daemon=True).start()
        return self._loop

    def _end_loop(self) -> None:
        """Stop the event loop once nothing runs; called with the lock held."""
        if self._loop is not None and not self._running and not self._waiting:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; what an asyncio task of a handler raises must not end it for all others."""
    try:
        stopped = False
        while not stopped:
            try:
                loop.run_forever()
                stopped = True
            except (SystemExit, KeyboardInterrupt) as error:
                logger.error("An asyncio task of a job raised %r; the event loop goes on.", error)
    finally:
        loop.close()


def _failed_before_its_task(claimed: ClaimedJob, error: BaseException) -> Outcome:
    """Return the outcome for an error that is not the task's but ours: the job must not be held for ever."""
    logger.error("job %s (%s) could not be run", claimed.id, claimed.task_name, exc_info=error)
    return Outcome(claimed, Ending.FAILED, error=error)


def _tidy_connections(*, interrupted: bool) -> None:
    """Leave no transaction and no broken connection to the next job, without reconnecting for each.

    `CONN_MAX_AGE` is about web requests; its default of 0 would mean a new connection for every job.
    """
    for connection in connections.all(initialized_only=True):
        pooled = bool(connection.settings_dict.get("OPTIONS", {}).get("pool"))
        unfinished = connection.in_atomic_block or not connection.autocommit
        if interrupted or unfinished or connection.errors_occurred or pooled:
            _close(connection)


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        _close(connection)


def _close(connection: BaseDatabaseWrapper) -> None:
    """Close a connection of this thread, whatever state it is in: the thread must go on."""
    try:
        connection.close()
    except Exception:
        logger.warning("A connection to %r could not be closed properly.", connection.alias, exc_info=True)
    if connection.in_atomic_block:  # it would stay unusable: Django waits for the end of a block that has no end
        del connections[connection.alias]
