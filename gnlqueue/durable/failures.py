"""Failures that were raised to the handler, and which of them it has caught.

Only a failure that was caught may be sealed: one that is still on its way out is left to the job's next attempt. Python
tells nobody that an exception was caught, so it is inferred from who makes the next call of the run. A `finally`, an
`__exit__` or an `except` that makes a call before it raises again is taken for one that caught it.
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

#: The numbers of unsealed failures that the code which runs here has seen. Asyncio gives them on to what it begins
#: after that, in tasks and with `to_thread`; `sync_to_async` gives them back to the asyncio task that awaits it, too.
_seen: ContextVar[frozenset[int]] = ContextVar("gnlqueue_failures", default=frozenset())

_numbers = count()


class Failure:
    """A failure that is not sealed; `work` is the frame with which its thread began, `None` in an asyncio task."""

    def __init__(self, step: Step, failed: StepFailed, work: FrameType | None) -> None:
        self.number = next(_numbers)
        self.step = step
        self.failed = failed
        self._work = work
        self._traceback: TracebackType | None = None
        self._passed: set[FrameType] = set()
        lineage.note(self.number, step.caller.task)

    def was_caught_by(self, caller: Flow, frames: Collection[FrameType]) -> bool:
        """Tell whether the caller of a step, whose frames these are, has gone on after the failure.

        It has if it is the thread or task in which the failure happened, or was begun by it afterwards; if it is a
        branch that the failure has come to; or if one of its frames is one that the failure passed through. Any caller
        has, once the thread in which the failure happened has gone on.
        """
        task = self.step.caller.task
        if caller.task is task if task is not None else self._work in frames:
            return True
        if self.number in _seen.get() or lineage.has_seen(self.number, caller.task):
            return True
        return not self._frames().isdisjoint(frames) or (task is None and self._is_over())

    def _is_over(self) -> bool:
        """Tell whether its thread still runs a frame that it passed through, and neither handles it nor cleans up."""
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
        """Remember a failure that the handler is about to see."""
        # Of a thread not all calls are one piece of work: one of a pool may do something else by now.
        work = stack()[-1] if step.caller.task is None else None
        self._unsealed.append(Failure(step, failed, work))

    def note_reached(self, caller: Flow, failed: StepFailed) -> None:
        """Note that a failure has reached who made the call, for what that begins from now on."""
        if caller.task is None and caller != self._main_flow and not _is_awaited():
            return  # the context of a thread goes on to the next piece of work, which has nothing to do with this one
        new = {each.number for each in self._unsealed if each.failed is failed}
        _seen.set(_seen.get().intersection(each.number for each in self._unsealed) | new)

    def caught_by(self, caller: Flow) -> list[Failure]:
        """Return what has been caught by who makes a call now; for the code that makes it, in its own thread.

        The main flow counts as having seen all that happened before.
        """
        unsealed = list(self._unsealed)
        if not unsealed or caller == self._main_flow:
            return unsealed
        frames = set(stack())
        return [each for each in unsealed if each.was_caught_by(caller, frames)]

    def seal(self, caught: list[Failure]) -> None:
        """Let these failures stay, unless another call has done so; for one call at a time."""
        for each in caught:
            if each in self._unsealed:
                each.step.seal(each.failed)
                self._unsealed.remove(each)
                lineage.forget(each.number)

    def forget(self) -> None:
        """Keep none of them: nothing is sealed any more."""
        while self._unsealed:
            lineage.forget(self._unsealed.pop().number)


def _is_awaited() -> bool:
    """Tell whether `sync_to_async` has begun what this thread does: that gives its context back to who awaits it."""
    return stack()[-1].f_globals.get("__name__") == "asgiref.sync"
