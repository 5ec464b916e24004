"""Answers to "did it happen?": from a step's `recover` function, or from the human who resolves what that could not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect took place, and this is the result that the step should return."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotHappened:
    """The effect did not take place, and can no longer do so: the step may run again, once.

    To a mismatch over a step that was perhaps renamed: the step that the code asks for is another one, and may run.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell: a human has to decide. Only `recover` answers this."""


@dataclass(frozen=True, slots=True)
class FailJob:
    """Let the job be dead; what is in doubt stays in doubt, so that a retry asks again."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """To a mismatch: the code has been put right, or may go on as it is; run the job again."""


@dataclass(frozen=True, slots=True)
class UseRecorded:
    """To a mismatch: what was recorded is what the code now asks for under another name or with other arguments."""


Answer = Happened | NotHappened | Unknown
Resolution = Happened | NotHappened | FailJob | GoOn | UseRecorded
