"""How many jobs a worker claims beyond its free slots: what it will have run in a third of a second.

That follows from the rate at which it has finished jobs lately, which includes everything: how long the tasks take, how
many run at once, the database, and whatever else uses the machine. Tasks that are not short are not prefetched, as
another worker may have a free slot for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

MAX_PREFETCH = 800  # jobs: some are written, some claimed, and enough are left to run; each takes some 4 kB
SHORT_TASK = 0.02  # seconds; prefetch only while half of the recent tasks are shorter
PATIENCE = 0.5  # seconds; what has not begun by then goes back
WORK_AT_HAND = PATIENCE * 0.6  # seconds
PAUSE = 5.0  # seconds without prefetch, after jobs had to go back
RECENT_TASKS = 50  # whose durations count
RECENT_GROUPS = 8  # of outcomes that were written together, from which the rate is taken


class Prefetch:
    """Knows how many jobs to have at hand, from those that ended; none where it is not `wanted`."""

    def __init__(self, *, concurrency: int, wanted: bool) -> None:
        self._wanted = wanted
        self._enough = min(concurrency, RECENT_TASKS)  # durations to know before anything is concluded
        self._durations: deque[float] = deque(maxlen=RECENT_TASKS)
        self._groups: deque[tuple[float, int]] = deque(maxlen=RECENT_GROUPS)  # when, and how many jobs
        self._paused_until = 0.0

    def begin(self) -> None:
        """Note that the worker holds nothing and looks for jobs: time without any says nothing about its rate."""
        self._groups.clear()
        self._groups.append((time.monotonic(), 0))

    def note(self, durations: Collection[float]) -> None:
        """Note jobs that have ended, by the seconds that each took."""
        if not durations:
            return
        self._durations.extend(durations)
        self._groups.append((time.monotonic(), len(durations)))

    def pause(self) -> None:
        """Prefetch nothing for a while: what was claimed had to go back."""
        self._paused_until = time.monotonic() + PAUSE

    def size(self) -> int:
        """Return how many jobs to hold beyond the free slots."""
        known = self._wanted and len(self._durations) >= self._enough
        if not known or time.monotonic() < self._paused_until:
            return 0
        if sorted(self._durations)[(len(self._durations) - 1) // 2] >= SHORT_TASK:  # the lower median
            return 0
        (began, _), *groups = self._groups
        finished = sum(count for _, count in groups)
        if not finished:
            return 0
        took = max(groups[-1][0] - began, 0.001)
        return min(round(finished / took * WORK_AT_HAND), MAX_PREFETCH)
