"""Errors for readers who may not see arguments and results: only the class, as the text may quote both."""

from __future__ import annotations

import re
from typing import Any

from django.utils.translation import gettext_lazy as _

from gnlqueue.models import StepNote

#: Stands where the text would.
HIDDEN = _("Its text is shown to those who may see arguments and results.")

#: How `last_error` begins if an exception ended the attempt.
_CLASS = re.compile(r"[A-Za-z_][\w.<>]*(?=: |:?$|\n)")

#: How the texts begin that the queue itself writes; any other is the project's.
_OURS = (
    "All attempts were used up ",
    "Given up by a human: ",
    "It ran longer than its timeout ",
    "No worker has known the task ",
    "The worker ",
)


def in_short(text: str | None, *, whole: bool) -> str:
    """Return the text of an error if it may be seen `whole` or is the queue's own; else its class, "" without one."""
    if not text or whole or text.startswith(_OURS):
        return text or ""
    found = _CLASS.match(text)
    return found[0] if found is not None else ""


def of_step(error: dict[str, Any] | None, *, whole: bool) -> str:
    """Return the error that a step's entry keeps, in one line; only its class unless `whole`."""
    if not error or not error.get("classes"):
        return ""
    name = str(error["classes"][0])
    return f"{name}: {error.get('message', '')}" if whole else name


def why_of(note: StepNote, *, whole: bool) -> str:
    """Return why a note was written. Evidence is hidden unless `whole`: it may quote a result that was not stored."""
    return note.why if whole or note.kind != StepNote.Kind.EVIDENCE else str(HIDDEN)
