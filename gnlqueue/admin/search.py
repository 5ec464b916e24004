"""The search box: `5`, `task:receipt`, `error:TimeoutError`, `worker:web-1`, `key:receipt:7`, `arg.order_id:5`."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gnlqueue.finding import LARGEST, NO_ERROR, Argument
from gnlqueue.ids import parse_id
from gnlqueue.models import JobAttempt
from gnlqueue.redaction import hides

if TYPE_CHECKING:
    from collections.abc import Iterator

HELP = gettext_lazy(
    "A job's number, part of a task's name, or task:… error:… worker:… key:… arg.NAME:VALUE; all must match."
)

_WORD = re.compile(r'(?:(?P<name>task|error|worker|key|id|arg\.[^\s:]+):)?(?P<value>"[^"]*"|\S+)')

#: Failed attempts whose classes are offered: a list of all classes would read the whole table.
RECENT_ATTEMPTS = 1_000


class Found(NamedTuple):
    """What a search asks for, as fields of `Criteria`, and what the page has to say about it."""

    criteria: dict[str, Any]
    notes: list[str]


def parse(text: str, alias: str, *, may_see_payload: bool) -> Found:
    """Read a search; what cannot be searched for is left out, and a note says so."""
    criteria: dict[str, Any] = {}
    notes: list[str] = []
    for name, value, is_quoted in _words(text):
        if name.startswith("arg."):
            note = _refusal(name[4:], may_see_payload)
            if note:
                notes.append(note)
            else:
                argument = Argument(name[4:], value if is_quoted else _scalar(value))
                criteria["arguments"] = (*criteria.get("arguments", ()), argument)
        elif name == "error":
            criteria["errors"] = _classes(value, alias)
        elif name == "worker":
            criteria["worker_contains"] = value
        elif name == "key":
            criteria["key"] = value
        elif name in ("id", "") and value.isascii() and value.isdigit():
            number = parse_id(value)
            criteria["ids"] = criteria.get("ids", ()) + (() if number is None else (number,))
        elif "task_contains" in criteria:
            notes.append(_("“%(word)s” was left out: a task's name is one word.") % {"word": value})
        else:
            criteria["task_contains"] = value
    return Found(criteria, notes)


def recent_errors(alias: str) -> list[str]:
    """Return the classes of recent exceptions, sorted."""
    rows = JobAttempt.objects.using(alias).order_by("-id").values_list("exception_class", flat=True)
    return sorted({each for each in rows[:RECENT_ATTEMPTS] if each})


def _words(text: str) -> Iterator[tuple[str, str, bool]]:
    for word in _WORD.finditer(text.replace("\0", "")):
        value = word["value"]
        is_quoted = len(value) > 1 and value.startswith('"') and value.endswith('"')
        yield word["name"] or "", value[1:-1] if is_quoted else value, is_quoted


def _refusal(name: str, may_see_payload: bool) -> str:
    """Return why this person may not search by this argument, or "": searching for values is a way to read them."""
    if not may_see_payload:
        return _("Searching by arguments needs the permission to see arguments and results; it was left out.")
    if '"' in name or _is_number(name):  # SQLite finds no such key; Django takes a number for a place in a list
        text = _(
            "“%(name)s” was left out: you cannot search by an argument whose name has a quote in it or is a number."
        )
        return text % {"name": name}
    if hides(name):
        return _("The values of “%(name)s” are hidden, so you cannot search by them.") % {"name": name}
    return ""


def _is_number(name: str) -> bool:
    try:
        int(name)
    except ValueError:
        return False
    return True


def _scalar(text: str) -> Any:
    """Return `5`, `true`, `null` as what they are in JSON, and everything else as text."""
    try:
        value = json.loads(text, parse_constant=lambda constant: text)
    except (ValueError, RecursionError):
        return text
    fits = math.isfinite(value) if isinstance(value, float) else not isinstance(value, int) or abs(value) <= LARGEST
    return value if fits and not isinstance(value, dict | list) else text


def _classes(text: str, alias: str) -> tuple[str, ...]:
    """Return the classes that a name means: a dotted name one class, a short one the recent ones that end with it."""
    if text == NO_ERROR:
        return (NO_ERROR,)
    known = recent_errors(alias)
    if text in known:
        return (text,)
    alike = [each for each in known if each.rpartition(".")[2].lower() == text.lower()]
    return tuple(alike or [each for each in known if text.lower() in each.lower()][:10] or [text, f"builtins.{text}"])
