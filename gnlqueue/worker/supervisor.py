"""`Supervisor`: the parent of the worker processes. It never opens a database connection.

1. Forks the heartbeat process and the workers, each worker with a `LeaseTable` in shared memory.
2. Tells the heartbeat which workers live: one that is stopped (SIGSTOP) or dead gets no renewals.
3. Replaces what dies, after growing pauses while it keeps dying young.
4. On SIGTERM or SIGINT lets the workers finish, then the heartbeat, and ends with 0. A second signal ends them at once.

The exit status: 0, or 3 when the database is not ready. How a worker ended is what it has said in its table; a process
that ends without a word has crashed, whatever its own exit status.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnlqueue.connection import prepare
from gnlqueue.queue import candidates
from gnlqueue.worker.floors import Floors
from gnlqueue.worker.forking import (
    EXIT_NOT_READY,
    NOT_READY,
    SIGNALS,
    close_connections_and_pools,
    fork,
    keep_handlers_to_ourselves,
    let_signals_in,
)
from gnlqueue.worker.heartbeat import Heartbeat, run_heartbeat_process
from gnlqueue.worker.identity import new_worker_id
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.prefetch import MAX_PREFETCH
from gnlqueue.worker.table import GONE, Farewell, LeaseTable, Owner

logger = logging.getLogger("gnlqueue.worker")

YOUNG = 10.0  # seconds; a process that dies younger is in a crash loop
LONGEST_PAUSE = 30.0  # seconds between two starts of a process that dies young
HEARTBEAT_PATIENCE = 5.0  # seconds for the last give-back; after it the leases run out by themselves
WATCH_EVERY = 1.0  # seconds between two looks at the children; signals and their ends come at once
NEVER = float("inf")  # when a worker starts again that has drained what was due
ONE_SIGNAL = 0.5  # seconds; whoever signals a process and then its group (timeout, some shells) means it once

#: The environment variable with the pid of a parent without whom the supervisor is to stop; see `runworker --reload`.
PARENT = "GNLQUEUE_PARENT"

#: What the supervisor sends its workers. SIGTERM may also come to all of us from outside, so it never means "at once".
FINISH, AT_ONCE = signal.SIGTERM, signal.SIGQUIT


@dataclass
class _Child:
    """A process to keep alive, and how its last ones fared."""

    table: LeaseTable | None = None
    pid: int = 0
    started_at: float = 0.0  # monotonic seconds
    young_deaths: int = 0  # in a row
    start_after: float = 0.0  # monotonic seconds

    @property
    def is_to_start(self) -> bool:
        """Whether there is no process now, and the pause before the next one is over."""
        return not self.pid and time.monotonic() >= self.start_after


class Supervisor:
    """Keeps `processes` workers alive, for one `run`.

    `options` are `Worker`'s arguments, which are checked here; `health_file` is touched by each beat that worked.
    """

    def __init__(self, options: dict[str, Any], processes: int = 1, health_file: Path | None = None) -> None:
        self._options = options
        self._health_file = health_file
        self._template = Worker(**options)  # here, where a person sees the error
        self._pid = os.getpid()
        parent = os.environ.pop(PARENT, None)  # ours, not our children's
        self._parent = int(parent) if parent is not None else None
        capacity = self._template.concurrency + MAX_PREFETCH
        # Twice as many tables as workers: a dead worker's is busy until its jobs are given back.
        self._tables = [LeaseTable(capacity) for _ in range(2 * processes)]
        self._floors = Floors(self._template.queues)
        self._workers = [_Child() for _ in range(processes)]
        self._heartbeat = _Child()
        self._wakes, self._wake_heartbeat = os.pipe()  # to the heartbeat: a worker has ended
        self._news, self._tell = os.pipe()  # to ourselves: a signal has come
        os.set_blocking(self._news, False)
        os.set_blocking(self._tell, False)
        self._received: list[signal.Signals] = []
        self._first_signal_at = 0.0
        self._stopping = False
        self._status = 0

    def run(self) -> int:
        """Work until a signal says stop, or all is drained; return the exit status."""
        close_connections_and_pools()  # the project's start may have opened some
        prepare(self._template.database)
        candidates.prepare(self._template.database)
        gc.collect()
        gc.freeze()  # a collection in a child writes to every object that it looks at, and the page is shared no more
        with self._handled_signals():
            while self._workers_wanted() or any(worker.pid for worker in self._workers):
                self._start_missing()
                self._sleep()
                self._reap()
                self._heed_signals()
            self._end_heartbeat()
        for descriptor in (self._wakes, self._news, self._tell):
            os.close(descriptor)
        return self._status

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        # The heartbeat first, and also while the workers finish: what they run needs its leases.
        if self._heartbeat.is_to_start:
            self._start_heartbeat()
        if self._workers_wanted():
            for child in self._workers:
                if child.is_to_start:
                    self._start_worker(child)

    def _start_heartbeat(self) -> None:
        heartbeat = Heartbeat(self._template.database, self._template.lease, self._tables, self._health_file)
        self._heartbeat.started_at = time.monotonic()
        self._heartbeat.pid = self._fork(lambda: run_heartbeat_process(heartbeat, self._wakes))

    def _start_worker(self, child: _Child) -> None:
        table = next((table for table in self._tables if table.owner is Owner.NONE), None)
        lost = self._options.get("drain") and any(table.owner in GONE for table in self._tables)
        if table is None or lost:
            # The database has yet to take back what ended workers held; a draining one would see nothing due.
            child.start_after = time.monotonic() + WATCH_EVERY
            return
        table.assign(new_worker_id(self._options.get("worker_id")))
        table.owner = Owner.ALIVE
        child.table, child.started_at = table, time.monotonic()
        child.pid = table.pid = self._fork(lambda: self._be_worker(table))
        if not child.pid:
            table.clear()
            child.table = None
            child.start_after = time.monotonic() + WATCH_EVERY

    def _fork(self, body: Callable[[], int | None]) -> int:
        # Only the supervisor holds that end of the pipe, so that it closes when the supervisor dies.
        return fork(body, closing=self._wake_heartbeat)

    def _be_worker(self, table: LeaseTable) -> None:
        options = {**self._options, "queues": self._template.queues}  # those that have floors
        worker = Worker(**options, table=table, floors=self._floors)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of us; the supervisor passes it on
        signal.signal(FINISH, lambda *_: worker.stop())
        signal.signal(AT_ONCE, lambda *_: worker.stop(at_once=True))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        keep_handlers_to_ourselves()
        let_signals_in()
        try:
            worker.run(still_wanted=lambda: os.getppid() == self._pid)
        except NOT_READY:
            table.farewell = Farewell.NOT_READY
            raise
        table.farewell = Farewell.OVERDUE if worker.has_overdue else Farewell.DONE

    # --- watching ----------------------------------------------------------------------------------------------------

    def _sleep(self) -> None:
        """Wait for a signal, the end of a child, or the next look."""
        with contextlib.suppress(BlockingIOError):
            select.select([self._news], [], [], WATCH_EVERY)
            os.read(self._news, 4096)

    def _reap(self) -> None:
        """Note which children ended, were stopped, or go on."""
        for child in [self._heartbeat, *self._workers]:
            while child.pid:
                pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    break
                self._note(child, status)

    def _note(self, child: _Child, status: int) -> None:
        if not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
            self._note_end(child, os.waitstatus_to_exitcode(status))
        elif child.table is not None:
            child.table.owner = Owner.STOPPED if os.WIFSTOPPED(status) else Owner.ALIVE

    def _note_end(self, child: _Child, code: int) -> None:
        """Have the heartbeat give back what a worker held, and start another one where that is due."""
        child.pid = 0
        if child.table is not None:
            farewell = child.table.farewell
            child.table.end()
            child.table = None
            os.write(self._wake_heartbeat, b"x")
        else:  # the heartbeat, which runs no tasks
            farewell = {0: Farewell.DONE, EXIT_NOT_READY: Farewell.NOT_READY}.get(code, Farewell.NONE)
        if farewell is Farewell.NOT_READY:
            self._status = EXIT_NOT_READY
            if not self._stopping:
                self._stop(FINISH)
        elif self._options.get("drain") and farewell is Farewell.DONE:
            child.start_after = NEVER
        elif not self._stopping:
            self._plan_restart(child, code, crashed=farewell is Farewell.NONE)

    def _plan_restart(self, child: _Child, code: int, *, crashed: bool) -> None:
        lived = time.monotonic() - child.started_at
        child.young_deaths = child.young_deaths + 1 if crashed and lived < YOUNG else 0
        pause = 0.0
        if child.young_deaths > 1:
            pause = min(0.25 * 2 ** min(child.young_deaths, 10), LONGEST_PAUSE) * random.uniform(0.8, 1)
        child.start_after = time.monotonic() + pause
        what = "heartbeat" if child is self._heartbeat else "worker"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        then = f"; the next one starts in {pause:.1f} s" if pause else ""
        logger.error("restart    a %s process %s after %.1f s%s", what, how, lived, then)

    def _workers_wanted(self) -> bool:
        return not self._stopping and not all(child.start_after == NEVER for child in self._workers)

    # --- ending ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _handled_signals(self) -> Any:
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        wakeup = signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        # Heeded by the loop: here we may be anywhere, between a fork and the note of its pid for example.
        self._received.append(signal.Signals(number))

    def _heed_signals(self) -> None:
        while self._received:
            self._heed(self._received.pop(0))
        if not self._stopping and self._parent is not None and os.getppid() != self._parent:
            logger.warning("stopping   the reloader is gone: what runs may finish")
            self._stop(FINISH)

    def _heed(self, received: signal.Signals) -> None:
        if not self._stopping:
            self._first_signal_at = time.monotonic()
            logger.warning("stopping   on %s: what runs may finish; again to stop at once", received.name)
            self._stop(FINISH)
        elif time.monotonic() - self._first_signal_at >= ONE_SIGNAL:
            logger.warning("stopping   at once")
            self._stop(AT_ONCE)

    def _stop(self, how: signal.Signals) -> None:
        """Tell the workers to stop; none is started any more."""
        self._stopping = True
        for child in self._workers:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, how)
                    os.kill(child.pid, signal.SIGCONT)  # one that is stopped could not hear it

    def _end_heartbeat(self) -> None:
        """Let the heartbeat give back what is left, and end; bounded, as the database may be away."""
        os.close(self._wake_heartbeat)
        deadline = time.monotonic() + HEARTBEAT_PATIENCE
        while self._heartbeat.pid and time.monotonic() < deadline:
            self._sleep()
            self._reap()
        if self._heartbeat.pid:
            logger.error("What the workers held could not be given back in time; their leases will run out.")
            os.kill(self._heartbeat.pid, signal.SIGKILL)
            os.waitpid(self._heartbeat.pid, 0)
