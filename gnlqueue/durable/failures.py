"""Failures that were raised to the handler, and which of them it has caught.

Only a failure that was caught may be sealed: one that is still on its way out is left to the job's next attempt. Python
tells nobody that an exception was caught, so it is inferred from who makes the next call of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from traceback import walk_tb
from types import FrameType
from typing import NamedTuple

from gnlqueue.durable.base import Step
from gnlqueue.durable.lineage import descends_from
from gnlqueue.durable.protocol import Flow, stack
from gnlqueue.exceptions import StepFailed


class Failure(NamedTuple):
    """A failure that is not sealed."""

    step: Step
    failed: StepFailed
    work: FrameType | None  #: with which the thread began what failed; `None` where that is an asyncio task

    def was_caught_by(self, caller: Flow, frames: Collection[FrameType]) -> bool:
        """Tell whether who makes a call now, out of these frames, goes on after the failure.

        That is the code in which it happened, an asyncio task that this descends from, and whatever a frame belongs
        to that it passed through: had it not been caught there, the frame would not be running.
        """
        task, calling = self.step.caller[1], caller[1]
        if isinstance(task, asyncio.Task) and isinstance(calling, asyncio.Task):
            if task is calling or descends_from(task, calling):
                return True
        elif self.work in frames:
            return True
        return any(frame in frames for frame, _ in walk_tb(self.failed.__traceback__))


class Failures:
    """The failures of a run that are not sealed."""

    def __init__(self, main_flow: Flow) -> None:
        self._main_flow = main_flow
        self._unsealed: list[Failure] = []

    def note(self, step: Step, failed: StepFailed) -> None:
        """Remember a failure that the handler is about to see."""
        # Of a thread not all calls are one piece of work: one of a pool may do something else by now.
        work = stack()[-1] if step.caller[1] is None else None
        self._unsealed.append(Failure(step, failed, work))

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
                self._unsealed.remove(each)
                each.step.seal(each.failed)
