"""Hiding what `GNLQUEUE["REDACT"]` names: in commands, in the admin, in downloads."""

from __future__ import annotations

import inspect
import json
from typing import Any

from gnlqueue.conf import settings
from gnlqueue.models import Job
from gnlqueue.registry import Task, find_task

#: Stands where a value is hidden.
MASK = "***"


def redacted(job: Job) -> tuple[list[Any], dict[str, Any]]:
    """Return the job's arguments, with a mask for the values of those that `REDACT` names.

    A positional argument whose name nobody knows is hidden too, as soon as anything is to be.
    """
    if not settings().REDACT:
        return job.args, job.kwargs
    names = positional_names(job.task_name, len(job.args))
    hidden = settings().REDACT
    args = [
        MASK if name is None or name in hidden else masked(value) for name, value in zip(names, job.args, strict=True)
    ]
    return args, masked(job.kwargs)


def masked(value: Any) -> Any:
    """Return a JSON value with a mask under each key that `REDACT` names, however deep."""
    hidden = settings().REDACT
    if not hidden:
        return value
    if isinstance(value, dict):
        return {key: MASK if key in hidden else masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value


def masked_text(text: str) -> str:
    """Return a stored text, JSON or not, without what `REDACT` names.

    In one that was cut, or is no JSON, nobody can tell what belongs to a name: where it has one, all of it is hidden.
    """
    hidden = settings().REDACT
    if not hidden:
        return text
    try:
        return json.dumps(masked(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return MASK if any(name in text for name in hidden) else text


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
    names = [] if task is None else names_of_positional(task)
    return [*names, *[None] * number][:number]


def names_of_positional(task: Task[..., Any]) -> list[str]:
    """Return the names of the arguments that may be passed by position; none for an external task."""
    if task.func is None:
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(task.func).parameters.values()
    return [each.name for each in parameters if each.kind in positional][task.takes_context :]
