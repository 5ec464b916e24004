"""How long an idle worker waits between two looks for jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from gnlqueue.queue import wakeups

#: Empty polls at the shortest pause: a worker that nothing wakes and that just had work will soon have more.
PATIENT_POLLS = 5


class Pace:
    """Pauses (seconds) that double from `shortest` to `longest` while there is nothing to do, less a little jitter.

    The first few after a job are all of the shortest. A worker that is woken looks twice: the notification of a job
    that came just after the first look may have been throttled away.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._next = shortest
        self._patient_polls = PATIENT_POLLS
        self._look_again_at: float | None = None

    @property
    def is_woken(self) -> bool:
        """Whether a wakeup asks for one more look."""
        return self._look_again_at is not None

    def wake(self) -> None:
        """Note word of work: look now, and once more when the notifications' window is over."""
        self.reset()
        self._look_again_at = time.monotonic() + wakeups.WINDOW * 1.5

    def note_look(self) -> None:
        """Note that the worker looks for jobs just now."""
        if self._look_again_at is not None and time.monotonic() >= self._look_again_at:
            self._look_again_at = None

    def reset(self) -> None:
        """Begin again with the shortest pause: there was work, or word of it."""
        self._next = self._shortest
        self._patient_polls = PATIENT_POLLS

    def pause(self, seconds_until_due: Callable[[], float | None]) -> float:
        """Return the next pause, which ends early where a scheduled job is due before."""
        if self._look_again_at is not None:
            return max(self._look_again_at - time.monotonic(), 0.0)
        pause = self._next * random.uniform(0.9, 1)
        grown = self._next > self._shortest
        if self._patient_polls > 1:
            self._patient_polls -= 1
        else:
            self._next = min(self._next * 2, self._longest)
        if not grown:
            return pause
        due = seconds_until_due()
        if due is None:
            return pause
        return min(pause, due if due > 0 else self._shortest)  # one that is due and still there is locked just now
