"""`Supervisor`: the parent of the worker processes. It never opens a database connection.

1. Forks the heartbeat process and the workers, each worker with a `LeaseTable` in shared memory.
2. Tells the heartbeat which workers live: one that is stopped (SIGSTOP) or dead gets no renewals.
3. Replaces what dies, ever more slowly while it dies young.
4. On SIGTERM or SIGINT lets the workers finish, then the heartbeat, and ends with 0. A second signal ends them at once.

The exit status: 0 when all ended as they should, 1 when something kept failing, 3 when the database is not ready.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connections

from gnlqueue.worker.forking import EXIT_NOT_READY, SIGNALS, fork, let_signals_in
from gnlqueue.worker.heartbeat import Heartbeat, run_heartbeat_process
from gnlqueue.worker.identity import new_worker_id
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.prefetch import MAX_PREFETCH
from gnlqueue.worker.table import LeaseTable, Owner

logger = logging.getLogger("gnlqueue.worker")

#: A worker's own: it ended because of a job that is over its timeout.
EXIT_OVERDUE = 4

YOUNG = 10.0  # seconds; a process that dies younger is in a crash loop
LONGEST_PAUSE = 30.0  # seconds between two starts of a process that dies young
HEARTBEAT_PATIENCE = 5.0  # seconds for the last give-back; after it the leases run out by themselves
WATCH_EVERY = 1.0  # seconds between two looks at the children; signals and their ends come at once

ONE_SIGNAL = 0.5  # seconds; who signals a process and then its group (timeout, some shells) means it once

#: The environment variable with the pid of a parent without whom the supervisor is to stop; see `runworker --reload`.
PARENT = "GNLQUEUE_PARENT"

#: What the supervisor sends its workers. SIGTERM may also come to all of us from outside, so it never means "at once".
FINISH, AT_ONCE = signal.SIGTERM, signal.SIGQUIT


@dataclass
class _Child:
    """A process to keep alive, and how its last ones fared."""

    start: Callable[[], int]
    table: LeaseTable | None = None
    pid: int = 0
    started_at: float = 0.0
    young_deaths: int = 0
    start_after: float = 0.0


@dataclass
class Supervisor:
    """Keeps `processes` workers alive. `options` are `Worker`'s arguments; `health_file` is touched by each beat."""

    options: dict[str, Any]
    processes: int = 1
    health_file: Path | None = None
    status: int = 0
    _children: list[_Child] = field(default_factory=list)
    _received: list[signal.Signals] = field(default_factory=list)
    _signals: int = 0
    _first_signal_at: float = 0.0

    def run(self) -> int:
        """Work until a signal says stop, or all is drained; return the exit status."""
        self._template = Worker(**self.options)  # checks the options here, where a person sees the error
        connections.close_all()  # the project's start may have opened some, which children must not share
        self._pid = os.getpid()
        parent = os.environ.pop(PARENT, None)
        self._parent = int(parent) if parent is not None else None
        capacity = self._template.concurrency + MAX_PREFETCH
        # Twice as many tables as workers: a dead worker's is busy until its jobs are given back.
        self._tables = [LeaseTable(capacity) for _ in range(2 * self.processes)]
        self._wakes, self._wake_heartbeat = os.pipe()
        self._news, self._tell = os.pipe()
        os.set_blocking(self._news, False)
        os.set_blocking(self._tell, False)
        self._heartbeat = _Child(self._start_heartbeat)
        self._children = [_Child(self._starter_of(number)) for number in range(self.processes)]
        gc.collect()
        gc.freeze()  # a collection in a child writes to every object that it looks at, and the page is shared no more
        with self._handled_signals():
            while self._workers_wanted() or any(child.pid for child in self._children):
                self._start_missing()
                self._sleep()
                self._reap()
                self._heed_signals()
            self._end_heartbeat()
        for descriptor in (self._wakes, self._news, self._tell):
            os.close(descriptor)
        return self.status

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        now = time.monotonic()
        # The heartbeat first, and also while the workers finish: what they run needs its leases.
        missing = [self._heartbeat, *(self._children if self._workers_wanted() else [])]
        for child in missing:
            if not child.pid and now >= child.start_after:
                child.pid, child.started_at = child.start(), now

    def _starter_of(self, number: int) -> Callable[[], int]:
        return lambda: self._start_worker(self._children[number])

    def _start_worker(self, child: _Child) -> int:
        table = next((table for table in self._tables if table.owner is Owner.NONE), None)
        if table is None:  # all are waiting for the database to take back what their workers held
            child.start_after = time.monotonic() + WATCH_EVERY
            return 0
        worker_id = new_worker_id(self.options.get("worker_id"))
        table.assign(worker_id)
        table.owner = Owner.ALIVE
        child.table = table
        pid = self._fork(lambda: self._be_worker(worker_id, table))
        table.pid = pid
        if not pid:
            table.clear()
            child.table = None
            child.start_after = time.monotonic() + WATCH_EVERY
        return pid

    def _start_heartbeat(self) -> int:
        worker = self._template
        heartbeat = Heartbeat(worker.database, worker.lease, self._tables, self.health_file)
        return self._fork(lambda: run_heartbeat_process(heartbeat, self._wakes, let_signals_in))

    def _fork(self, body: Callable[[], int | None]) -> int:
        # Only the supervisor holds that end of the pipe, so that it closes when the supervisor dies.
        return fork(body, closing=self._wake_heartbeat)

    def _be_worker(self, worker_id: str, table: LeaseTable) -> int:
        worker = Worker(**{**self.options, "worker_id": worker_id}, table=table)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of us; the supervisor passes it on
        signal.signal(FINISH, lambda *_: worker.stop())
        signal.signal(AT_ONCE, lambda *_: worker.stop(at_once=True))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        let_signals_in()
        worker.run(still_wanted=lambda: os.getppid() == self._pid)
        return EXIT_OVERDUE if worker.has_overdue else 0

    # --- watching ----------------------------------------------------------------------------------------------------

    def _sleep(self) -> None:
        """Wait for a signal, the end of a child, or the next look."""
        with contextlib.suppress(BlockingIOError):
            select.select([self._news], [], [], WATCH_EVERY)
            os.read(self._news, 4096)

    def _reap(self) -> None:
        """Note which children ended, were stopped, or go on."""
        for child in [self._heartbeat, *self._children]:
            while child.pid:
                pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    break
                self._note(child, status)

    def _note(self, child: _Child, status: int) -> None:
        if os.WIFSTOPPED(status):
            if child.table is not None:
                child.table.owner = Owner.STOPPED
            return
        if os.WIFCONTINUED(status):
            if child.table is not None:
                child.table.owner = Owner.ALIVE
            return
        code = os.waitstatus_to_exitcode(status)
        lived = time.monotonic() - child.started_at
        child.pid = 0
        if child.table is not None:
            child.table.owner = Owner.ENDED if code in {0, EXIT_OVERDUE} else Owner.CRASHED
            child.table = None
            os.write(self._wake_heartbeat, b"x")
        if code == EXIT_NOT_READY:
            self.status = EXIT_NOT_READY
            if not self._signals:
                self._finish()
        elif self.options.get("drain") and code == 0:
            child.start_after = float("inf")  # it is done
        elif not self._signals:
            self._slow_down(child, code, lived)

    def _slow_down(self, child: _Child, code: int, lived: float) -> None:
        child.young_deaths = child.young_deaths + 1 if code not in {0, EXIT_OVERDUE} and lived < YOUNG else 0
        pause = 0.0
        if child.young_deaths > 1:
            pause = min(0.25 * 2 ** min(child.young_deaths, 10), LONGEST_PAUSE) * random.uniform(0.8, 1)
        child.start_after = time.monotonic() + pause
        what = "heartbeat" if child is self._heartbeat else "worker"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        then = f"; the next one starts in {pause:.1f} s" if pause else ""
        logger.error("restart    a %s process %s after %.1f s%s", what, how, lived, then)

    def _workers_wanted(self) -> bool:
        return not self._signals and not all(child.start_after == float("inf") for child in self._children)

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
        if not self._signals and self._parent is not None and os.getppid() != self._parent:
            logger.warning("stopping   the reloader is gone: what runs may finish")
            self._finish()

    def _heed(self, received: signal.Signals) -> None:
        if self._signals and time.monotonic() - self._first_signal_at < ONE_SIGNAL:
            return
        if self._signals:
            logger.warning("stopping   at once")
        else:
            self._first_signal_at = time.monotonic()
            logger.warning("stopping   on %s: what runs may finish; again to stop at once", received.name)
        self._finish()

    def _finish(self) -> None:
        self._signals += 1
        for child in self._children:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, FINISH if self._signals == 1 else AT_ONCE)
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
