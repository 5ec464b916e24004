"""Which steps of a run are open, so that nothing is concluded while one of them may still write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gnlqueue.durable.protocol import Flow


class OpenSteps:
    """The steps of a run that began and have not ended, each as the flow of control that it belongs to."""

    def __init__(self) -> None:
        self.closed = False  #: the attempt has ended, and no step may begin
        self._open: list[Flow] = []
        self._lock = threading.RLock()  # never held while the database is asked
        self._changed: threading.Condition | None = None  # made with the first step: most jobs have none

    @contextmanager
    def entered(self, flow: Flow) -> Iterator[None]:
        """Count a step as open while the block runs, which must look at `closed` before the step begins."""
        with self._lock:
            self._changed = changed = self._changed or threading.Condition(self._lock)
            self._open.append(flow)
        try:
            yield
        finally:
            with changed:
                self._open.remove(flow)
                changed.notify_all()

    def close(self) -> None:
        """Let no step begin from now on."""
        with self._lock:
            self.closed = True

    def wait(self, main_flow: Flow) -> None:
        """Wait until all steps have ended, except those of the main flow: the handler's own, which end with it."""
        with self._lock:
            if self._changed is not None:
                self._changed.wait_for(lambda: all(each == main_flow for each in self._open))
