"""A job that crashed its worker twice in a row: it runs with nothing else in its process, so that it harms no other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from gnlqueue.exceptions import JobNotFound, LeaseLost
from gnlqueue.queue import ClaimedJob, transitions
from gnlqueue.registry import Task
from gnlqueue.worker.holdings import Holdings

#: Seconds that a suspect, and the free slots with it, wait for its neighbours to end. It doubles each time that the job
#: is put off, so that it runs at last, however long they take.
PATIENCE = 5.0
PAUSE = timedelta(seconds=15)  # until it may be claimed again, by whichever worker has nothing else by then


class Suspects:
    """Keeps a claimed suspect waiting until it is alone, but not for long: nothing is claimed meanwhile.

    `start` is called with it once it is alone.
    """

    def __init__(self, holdings: Holdings, start: Callable[[list[tuple[ClaimedJob, Task[..., Any]]]], None]) -> None:
        self._holdings = holdings
        self._start = start
        self._waiting: tuple[ClaimedJob, Task[..., Any]] | None = None
        self._since = 0.0
        self._put_off: Counter[int] = Counter()  # job id -> how often

    def add(self, claimed: ClaimedJob, task: Task[..., Any]) -> None:
        """Let a suspect wait; there is never a second one."""
        self._waiting, self._since = (claimed, task), time.monotonic()

    def start_if_alone(self) -> None:
        """Start it once nothing else is left in this process."""
        if self._waiting is not None and len(self._holdings) == 1:
            self._start([self._waiting])
            del self._put_off[self._waiting[0].id]
            self._waiting = None

    def put_off_if_late(self) -> None:
        """Let it come again later, uncounted, if its neighbours do not end: they may run for hours."""
        if self._waiting is None:
            return
        claimed = self._waiting[0]
        if time.monotonic() - self._since < PATIENCE * 2 ** self._put_off[claimed.id]:
            return
        self._put_off[claimed.id] += 1
        with suppress(LeaseLost, JobNotFound):
            transitions.put_off(claimed, PAUSE)
        self._waiting = None
        self._holdings.drop([claimed])

    def take_back(self) -> list[ClaimedJob]:
        """Return it, if there is one; it will not begin."""
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None else [waiting[0]]
