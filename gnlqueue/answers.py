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

_RESOLUTIONS: tuple[type[Resolution], ...] = (Happened, NotHappened, FailJob, GoOn, UseRecorded)


def as_text(answer: Resolution) -> str:
    """Return what a note keeps of an answer. Rows of earlier versions have it, so it stays as it is."""
    return repr(answer)


def kind_of(text: str | None) -> type[Resolution] | None:
    """Return which answer a note keeps, from its text, which may have been cut off; `None` for anything else."""
    return next((kind for kind in _RESOLUTIONS if (text or "").startswith(f"{kind.__name__}(")), None)
