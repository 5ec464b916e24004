"""The named points at which a process dies in the middle of a step: before or after the first call of a function."""

import functools
import inspect
import os
import signal
from collections.abc import Callable
from typing import Any

from gnlqueue.durable import atomic, protocol
from gnlqueue.durable.entries import Journal
from gnlqueue.durable.run import Run

#: Point -> for each kind of step, where in the code it is.
POINTS: dict[str, dict[str, tuple[Any, str, str] | None]] = {
    "before started commits": {
        "step": ("after", Journal, "_insert"),
        "idempotent_step": ("before", Run, "check_held"),  # its start is not stored
        "atomic_step": ("after", Journal, "_insert"),
    },
    "after started commits": {
        "step": ("after", Journal, "insert"),
        "idempotent_step": ("after", Run, "check_held"),
        "atomic_step": ("after", Journal, "insert_here"),
    },
    "during the effect": {"step": None, "idempotent_step": None, "atomic_step": None},  # tasks.effect says when
    "after the effect": dict.fromkeys(("step", "idempotent_step", "atomic_step"), ("after", protocol, "call"))
    | dict.fromkeys(("astep", "aidempotent_step"), ("after", protocol, "_acall")),
    "before done commits": {
        "step": ("after", Journal, "_change"),
        "idempotent_step": ("after", Journal, "_insert"),
        "atomic_step": ("after", atomic, "_hold"),
    },
    "after done commits": {
        "step": ("after", Journal, "change"),
        "idempotent_step": ("after", Journal, "insert"),
        "atomic_step": ("before", Journal, "adopt"),
    },
}

#: Ways to die, and the exit status that the parent sees of each.
WAYS = {"SIGKILL": -signal.SIGKILL, "os._exit": 70}

_armed: str | None = None
_way = "SIGKILL"


def arm(point: str, kind: str, way: str) -> None:
    """Let this process die when it gets to the point."""
    global _armed, _way
    _armed, _way = point, way
    places = POINTS[point]
    place = places[kind if kind in places else kind.removeprefix("a")]  # most are the same for the a-prefixed forms
    if place is not None:
        when, owner, name = place
        setattr(owner, name, _deadly(getattr(owner, name), when))


def reach(point: str) -> None:
    """Die here if this is the point."""
    if point == _armed:
        die()


def die() -> None:
    """End this process as nothing can prevent or notice."""
    if _way == "os._exit":
        os._exit(WAYS[_way])
    os.kill(os.getpid(), signal.SIGKILL)


def _deadly(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            function(*args, **kwargs)
        die()

    @functools.wraps(function)
    async def areplaced(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            await function(*args, **kwargs)
        die()

    return areplaced if inspect.iscoroutinefunction(function) else replaced
