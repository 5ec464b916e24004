"""Failures that were raised to the handler, and which of them it has caught.

A failure that was caught is sealed: every replay raises it again, so that the code takes the same branch. One that is
still on its way out is not: the job's next attempt tries that step again.

    try:
        context.step("charge", …)       # fails
    except StepFailed:
        context.step("tell", …)         # the handler goes on, so it has caught the failure: sealed before "tell" begins

Python does not report that an exception was caught, so it is inferred from who makes the next call of the run. A
`finally`, an `__exit__` or an `except` that makes a call before it raises again is taken for one that caught it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextvars import ContextVar
from itertools import count
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

from gnlqueue.durable import lineage
from gnlqueue.durable.base import Step
from gnlqueue.durable.protocol import Flow, stack
from gnlqueue.exceptions import StepFailed

#: The numbers of the unsealed failures that the code running here has seen. Asyncio passes them on to what that code
#: begins afterwards, tasks and `to_thread`; `sync_to_async` also passes them back to the asyncio task that awaits it.
_seen: ContextVar[frozenset[int]] = ContextVar("gnlqueue_failures", default=frozenset())

_numbers = count()


class Failure:
    """A failure that is not sealed; `work` is the first frame of what its thread does, `None` in an asyncio task."""

    def __init__(self, step: Step, failed: StepFailed, work: FrameType | None) -> None:
        self.number = next(_numbers)
        self.step = step
        self.failed = failed
        self._work = work
        self._traceback: TracebackType | None = None
        self._passed: set[FrameType] = set()
        lineage.note(self.number, step.caller.task)

    def was_caught_by(self, caller: Flow, frames: Collection[FrameType]) -> bool:
        """Tell whether the code that calls a step now, with these frames on its stack, has gone on after the failure.

        That is so if one of these holds:

        - the failure happened in the caller's own thread or asyncio task;
        - the failure has reached the caller, or had reached the code that began the caller by then;
        - one of the caller's frames is one that the failure passed through;
        - the failure happened in a thread, and that thread has gone on: then it counts for any caller.
        """
        task = self.step.caller.task
        if caller.task is task if task is not None else self._work in frames:
            return True
        if self.number in _seen.get() or lineage.has_seen(self.number, caller.task):
            return True
        return not self._frames().isdisjoint(frames) or (task is None and self._is_over())

    def _is_over(self) -> bool:
        """Tell whether its thread has gone on: still in a frame that it passed through, but in no `except` for it."""
        thread = self.step.caller.thread
        handled: Any = sys._current_exceptions().get(thread)
        error = handled[1] if isinstance(handled, tuple) else handled  # a tuple before Python 3.12
        while error is not None:
            if error is self.failed:
                return False
            error = error.__context__
        frame = sys._current_frames().get(thread)
        while frame is not None and frame not in self._frames():
            frame = frame.f_back
        return frame is not None

    def _frames(self) -> set[FrameType]:
        """Return the frames that it has passed through so far."""
        if self.failed.__traceback__ is not self._traceback:
            self._traceback = self.failed.__traceback__
            self._passed = {frame for frame, _ in walk_tb(self._traceback)}
        return self._passed


class Failures:
    """The failures of a run that are not sealed."""

    def __init__(self, main_flow: Flow) -> None:
        self._main_flow = main_flow
        self._unsealed: list[Failure] = []

    def note(self, step: Step, failed: StepFailed) -> None:
        """Remember a failure that the handler is about to see; if it goes on after it, the failure is sealed."""
        # The same thread is not always the same piece of work: in a pool it may do something else by now.
        work = stack()[-1] if step.caller.task is None else None
        self._unsealed.append(Failure(step, failed, work))

    def note_reached(self, caller: Flow, failed: StepFailed) -> None:
        """Note that a failure has reached the code that made the call, for what that code begins from now on."""
        if caller.task is None and caller != self._main_flow and not _is_awaited():
            return  # a thread keeps its context for the next piece of work, which has nothing to do with this one
        new = {each.number for each in self._unsealed if each.failed is failed}
        _seen.set(_seen.get().intersection(each.number for each in self._unsealed) | new)

    def caught_by(self, caller: Flow) -> list[Failure]:
        """Return the failures that who makes a call now has caught; to be called in the thread that makes it.

        The main flow counts as having caught all that happened before.
        """
        unsealed = list(self._unsealed)
        if not unsealed or caller == self._main_flow:
            return unsealed
        frames = set(stack())
        return [each for each in unsealed if each.was_caught_by(caller, frames)]

    def seal(self, caught: list[Failure]) -> None:
        """Seal these failures, unless another call has done so; for one call at a time."""
        for each in caught:
            if each in self._unsealed:
                each.step.seal(each.failed)
                self._unsealed.remove(each)
                lineage.forget(each.number)

    def forget(self) -> None:
        """Forget them all: nothing is sealed any more."""
        while self._unsealed:
            lineage.forget(self._unsealed.pop().number)


def _is_awaited() -> bool:
    """Tell whether `sync_to_async` runs what this thread does: it passes its context back to the task that awaits."""
    return stack()[-1].f_globals.get("__name__") == "asgiref.sync"
