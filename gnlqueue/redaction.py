"""Hiding what `GNLQUEUE["REDACT"]` names: in commands, in the admin, in downloads.

It is a list of names, or a function that is asked about each name: `def hide(name: str) -> bool`. Texts of errors and
tracebacks are not redacted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from gnlqueue.conf import settings
from gnlqueue.models import Job
from gnlqueue.registry import find_task

#: Stands where a value is hidden.
MASK = "***"

logger = logging.getLogger("gnlqueue.redaction")


def hides_something() -> bool:
    """Tell whether anything is to be hidden at all."""
    names = _names()
    return names is None or bool(names)


def hides(name: str) -> bool:
    """Tell whether the values of a name are hidden; where the project's function cannot tell, they are."""
    names = _names()
    if names is not None:
        return name in names
    try:
        return bool(function()(name))
    except Exception as error:
        _tell_once(error)
        return True


def is_function() -> bool:
    """Tell whether `REDACT` is a function, or names one, rather than a list."""
    return _names() is None


def function() -> Callable[[str], bool]:
    """Return the function that `REDACT` is or names.

    Raises `ImportError` where it cannot be imported, or is no function.
    """
    given = settings().REDACT
    found = _imported(given) if isinstance(given, str) else given
    if isinstance(found, Exception):
        raise ImportError(f"{type(found).__name__}: {found}") from found
    if not callable(found):
        raise ImportError(f"{given} is not a function")
    return found


@cache
def _imported(path: str) -> object:
    """Return what a dotted path names, or the error: a module that cannot be imported is run anew each time."""
    try:
        return import_string(path)
    except Exception as error:
        return error


def _reset(*, setting: str, **_: Any) -> None:
    if setting == "GNLQUEUE":
        _imported.cache_clear()


setting_changed.connect(_reset, dispatch_uid="gnlqueue.redaction")


def _names() -> Collection[str] | None:
    """Return the names that `REDACT` lists; `None` where it is a function, or names one."""
    given = settings().REDACT
    return None if isinstance(given, str) or callable(given) else given


_told: set[str] = set()


def _tell_once(error: Exception) -> None:
    """Say that the project's function failed; it may be asked for each key on a page."""
    given = settings().REDACT
    what = f"{given!r}: {type(error)}"
    if what not in _told:
        _told.add(what)
        logger.error(
            "GNLQUEUE['REDACT'], %r, failed, so that what it was asked about is hidden.", given, exc_info=error
        )


def redacted(job: Job) -> tuple[list[Any], dict[str, Any]]:
    """Return the job's arguments, with a mask for the values that `REDACT` hides.

    A positional argument whose name nobody knows is hidden too, as soon as anything is to be.
    """
    if not hides_something():
        return job.args, job.kwargs
    names = positional_names(job.task_name, len(job.args))
    args = [MASK if name is None or hides(name) else masked(value) for name, value in zip(names, job.args, strict=True)]
    return args, masked(job.kwargs)


def masked(value: Any) -> Any:
    """Return a JSON value with a mask under each key that `REDACT` hides, however deep."""
    if not hides_something():
        return value
    if isinstance(value, dict):
        return {key: MASK if hides(key) else masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value


def masked_text(text: str, *, is_whole: bool = True, indent: int | None = 2) -> str:
    """Return a stored text, JSON or not, without what `REDACT` hides; "" where that cannot be told apart.

    A text that was cut, or is not JSON, has no names to ask about: with a list all of it is hidden if one of the names
    occurs in it, with a function always.
    """
    if not hides_something():
        return text
    if is_whole:
        with suppress(ValueError, RecursionError):  # no JSON, or too deep: either way it is only text
            return json.dumps(masked(json.loads(text)), ensure_ascii=False, indent=indent)
    names = _names()
    return "" if names is None or any(name in text for name in names) else text


def unmasked(new: Any, old: Any) -> Any:
    """Return what somebody made of a masked value, with the old values where they left the masks in place."""
    if new == MASK:
        return old
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: unmasked(item, old.get(key, item)) for key, item in new.items()}
    if isinstance(new, list) and isinstance(old, list):
        return [unmasked(item, old[place]) if place < len(old) else item for place, item in enumerate(new)]
    return new


def positional_names(task_name: str, number: int) -> list[str | None]:
    """Return the names of a task's first positional arguments; `None` for one whose name nobody knows."""
    task = find_task(task_name)
    names = [] if task is None else task.positional_names
    return [*names, *[None] * number][:number]
