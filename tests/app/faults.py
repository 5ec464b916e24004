"""Deterministic faults for the processes that a test starts: they die before or after the n-th call of a function.

GNLQUEUE_TEST_KILL  JSON: ``{"function": "gnlqueue.queue.claiming.claim_ready", "when": "before", "call": 1}``, or a
                    method. With "after" only calls that returned something count. It happens once: whoever comes first
                    takes it.
GNLQUEUE_TEST_SET   JSON: dotted names of module attributes, and values: ``{"gnlqueue.worker.timeouts.GRACE": 0.2}``
"""

import functools
import json
import os
import pkgutil
import signal
from collections.abc import Callable
from typing import Any

from tests.app import events

KILL, SET = "GNLQUEUE_TEST_KILL", "GNLQUEUE_TEST_SET"


def install() -> None:
    """Do what the environment says."""
    for name, value in json.loads(os.environ.get(SET, "{}")).items():
        setattr(*_split(name), value)
    if KILL in os.environ:
        kill = json.loads(os.environ[KILL])
        owner, name = _split(kill["function"])
        setattr(owner, name, _killing(getattr(owner, name), kill["when"], kill.get("call", 1)))


def _split(dotted: str) -> tuple[Any, str]:
    owner, name = dotted.rsplit(".", 1)
    return pkgutil.resolve_name(owner), name


def _killing(function: Callable[..., Any], when: str, call: int) -> Callable[..., Any]:
    calls = 0

    def die_if_it_is_time() -> None:
        nonlocal calls
        calls += 1
        if calls == call and events.first_to("die"):
            events.tell("dying", pid=os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            die_if_it_is_time()
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if result:
            die_if_it_is_time()
        return result

    return replaced
