"""Answers to "did it happen?": of a step's `recover` function, and of the human who resolves what it could not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect took place, and this is the result that the step should return."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotHappened:
    """The effect did not take place, and can no longer do so: the step may run again, once."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell: a human has to decide. Only `recover` answers this."""


@dataclass(frozen=True, slots=True)
class FailJob:
    """Dead-letter the job; what is in doubt stays in doubt, so that a retry asks again."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Of a mismatch: the code has been put right, run the job again."""


@dataclass(frozen=True, slots=True)
class UseRecorded:
    """Of a mismatch: what the journal recorded is what the code now asks for under another name or other arguments."""


Answer = Happened | NotHappened | Unknown
Resolution = Happened | NotHappened | FailJob | GoOn | UseRecorded
