"""Stopping an attempt that runs longer than its `timeout`.

A thread cannot be killed. It can be sent an exception, which reaches it at its next Python instruction: that stops a
loop, but not a call that waits inside C. An `async def` task is cancelled by its event loop, which fails where the task
blocks the loop. A job that does not end even so costs its worker process.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import NamedTuple

from gnlqueue.exceptions import JobTimedOut
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.claimed import Pair

GRACE = 5.0  # seconds an interrupted thread gets to end, before its process is given up


class Running(NamedTuple):
    """An attempt, the thread to interrupt (`None`: its event loop does that), and its end (monotonic seconds)."""

    claimed: ClaimedJob
    thread: int | None
    deadline: float


class Timeouts:
    """Which attempts have a timeout. `enter` and `leave` are called where the task runs, the rest by the worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Pair, Running] = {}
        self._interrupted: dict[Pair, float] = {}  # when it was sent the exception

    def enter(self, claimed: ClaimedJob, timeout: float, *, interrupt: bool = True) -> None:
        """Begin an attempt of at most `timeout` seconds; `interrupt` says whether this thread is to be interrupted."""
        thread = threading.get_ident() if interrupt else None
        with self._lock:
            self._running[claimed.pair] = Running(claimed, thread, time.monotonic() + timeout)

    def leave(self, claimed: ClaimedJob) -> None:
        """End it. From here on the thread is not interrupted, and an exception that is under way is taken back.

        The exception may arrive in the middle of this: then call it again. It is sent only once.
        """
        with self._lock:
            running = self._running.pop(claimed.pair, None)
            interrupted = self._interrupted.pop(claimed.pair, None) is not None
            if interrupted and running is not None and running.thread is not None:
                _send(running.thread, None)

    def interrupt_overdue(self) -> list[ClaimedJob]:
        """Interrupt the attempts that are over their time; return those that did not end within the grace time."""
        if not self._running:
            return []
        now = time.monotonic()
        hopeless = []
        with self._lock:
            for running in self._running.values():
                pair = running.claimed.pair
                if running.deadline <= now and pair not in self._interrupted:
                    self._interrupted[pair] = now
                    if running.thread is not None:
                        _send(running.thread, JobTimedOut)
                elif now - self._interrupted.get(pair, now) > GRACE:
                    hopeless.append(running.claimed)
        return hopeless

    def seconds_left(self) -> float | None:
        """Return how long until somebody is to be interrupted; `None` when nobody is."""
        if not self._running:
            return None
        with self._lock:
            now = time.monotonic()
            waits = [
                self._interrupted[pair] + GRACE - now if pair in self._interrupted else running.deadline - now
                for pair, running in self._running.items()
            ]
        return max(min(waits, default=0.0), 0.01)


def _send(thread: int, exception: type[BaseException] | None) -> None:
    target = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)
