"""What a step asks of its driver, and how the two drivers answer.

A step is a generator that yields a `Call` or a `Pause` and is sent an `Answer`; the synchronous and the asynchronous
driver differ only in how they call and wait.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async

#: The key of the step whose function runs here; a step inside a step is refused.
inside_step: ContextVar[str | None] = ContextVar("gnlqueue_step", default=None)


@dataclass(frozen=True, slots=True)
class Call:
    """Asks the driver to call a function of the step `key`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the driver to wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What the function returned or raised."""

    value: Any = None
    error: BaseException | None = None


Protocol = Generator[Call | Pause, Answer, Any]


def drive(protocol: Protocol) -> Any:
    """Run a step in this thread, and return its result."""
    ask, result = _advance(protocol, None)
    while ask is not None:
        ask, result = _advance(protocol, _pause(ask) if isinstance(ask, Pause) else call(ask))
    return result


async def adrive(protocol: Protocol) -> Any:
    """Run a step on this event loop, and return its result; what touches the database runs in a thread."""
    ask, result = await sync_to_async(_advance)(protocol, None)
    while ask is not None:
        if isinstance(ask, Pause):
            await asyncio.sleep(ask.seconds)
            answer = Answer()
        else:
            answer = await _acall(ask)
        # Shielded: what the function brought back is stored, also when this task is cancelled meanwhile.
        ask, result = await asyncio.shield(sync_to_async(_advance)(protocol, answer))
    return result


def call(asked: Call) -> Answer:
    """Call the function here and now."""
    token = inside_step.set(asked.key)
    try:
        return Answer(value=asked.function(*asked.args, **asked.kwargs))
    except BaseException as error:
        return Answer(error=error)
    finally:
        inside_step.reset(token)


def flow() -> tuple[int, object]:
    """Return what tells the main flow of a run from its threads and asyncio tasks."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return threading.get_ident(), None


def _advance(protocol: Protocol, answer: Answer | None) -> tuple[Call | Pause | None, Any]:
    """Let the step go on; return what it asks next, or `None` and its result. (StopIteration crosses no await.)"""
    try:
        return (next(protocol) if answer is None else protocol.send(answer)), None
    except StopIteration as end:
        return None, end.value


def _pause(asked: Pause) -> Answer:
    time.sleep(asked.seconds)
    return Answer()


async def _acall(asked: Call) -> Answer:
    token = inside_step.set(asked.key)
    try:
        if inspect.iscoroutinefunction(asked.function):
            return Answer(value=await asked.function(*asked.args, **asked.kwargs))
        value = await sync_to_async(asked.function)(*asked.args, **asked.kwargs)
        return Answer(value=await value if inspect.isawaitable(value) else value)
    except BaseException as error:
        return Answer(error=error)
    finally:
        inside_step.reset(token)
