"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gnlqueue.exceptions import InvalidTask
from gnlqueue.lengths import seconds


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """A growing delay: `base` after the first attempt, times `factor` after each, at most `cap`.

    `base` and `cap` are timedeltas or seconds (and stored as seconds), `factor` is at least 1, and `jitter` is the
    share of the delay (0 to 1) that is drawn at random and *taken away*, so that jobs which failed together do not come
    back together, and the cap stays a cap.

    Raises `InvalidTask` for a value out of range.
    """

    base: float
    factor: float
    cap: float
    jitter: float

    def __init__(
        self, base: timedelta | float = 1, factor: float = 2, cap: timedelta | float = 60, jitter: float = 0.1
    ) -> None:
        try:
            values = {"base": seconds(base, "Backoff(base=)"), "cap": seconds(cap, "Backoff(cap=)")}
        except ValueError as error:
            raise InvalidTask(str(error)) from None
        if not (isinstance(factor, int | float) and factor >= 1 and math.isfinite(factor)):
            raise InvalidTask(f"Backoff(factor=) must be a number of at least 1, not {factor!r}.")
        if not (isinstance(jitter, int | float) and 0 <= jitter <= 1):
            raise InvalidTask(f"Backoff(jitter=) must be a number between 0 and 1, not {jitter!r}.")
        for name, value in {**values, "factor": factor, "jitter": jitter}.items():
            object.__setattr__(self, name, value)

    def delay(self, attempt: int) -> timedelta:
        """Return the delay that follows attempt number `attempt` (1 is the first)."""
        try:
            grown = self.base * self.factor ** max(attempt - 1, 0)
        except OverflowError:
            grown = math.inf
        full = min(grown, self.cap)
        return timedelta(seconds=full - full * self.jitter * random.random())

    def as_options(self) -> dict[str, Any]:
        """Return the value as it is stored in a job's `options`."""
        return {"base": self.base, "factor": self.factor, "cap": self.cap, "jitter": self.jitter}


#: What a task without a backoff of its own gets.
DEFAULT = Backoff()
