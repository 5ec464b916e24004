"""What a worker's loop waits for: outcomes, a wakeup, word to stop.

To wake a thread costs more than to run a short job. So outcomes gather here, and ring only when there are as many as
the loop waits for. Those of jobs with steps ring at once.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue

from gnlqueue.worker.executor import Outcome


class Inbox:
    """Filled by any thread, `ring` also by a signal handler; emptied by the loop."""

    def __init__(self) -> None:
        self._outcomes: deque[Outcome] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._awaited = 1
        self._rung = False
        self._urgent = False

    def put(self, outcome: Outcome) -> None:
        """Hand in what came of a job."""
        self._outcomes.append(outcome)
        if outcome.has_steps:
            self._urgent = True
        if (self._urgent or len(self._outcomes) >= self._awaited) and not self._rung:
            self.ring()

    def ring(self) -> None:
        """Let the loop look what there is."""
        self._rung = True
        self._bell.put(None)

    def wait(self, seconds: float, *, outcomes: int = 1) -> bool:
        """Wait for that many outcomes, for an urgent one, or until the bell rings for something else.

        Returns `False` when none of these came.
        """
        self._awaited = outcomes
        self._rung = False  # before we look: whoever comes later rings
        if len(self._outcomes) < outcomes and not self._urgent:
            try:
                self._bell.get(timeout=max(seconds, 0.0))
            except Empty:
                return False
        while not self._bell.empty():  # whatever it was rung for, the loop looks for it now
            self._bell.get_nowait()
        return True

    def __len__(self) -> int:
        return len(self._outcomes)

    def take(self) -> list[Outcome]:
        """Return the outcomes that came in, and keep them no more."""
        self._urgent = False  # before we take: one that comes meanwhile may ring for nothing, but is not missed
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]
