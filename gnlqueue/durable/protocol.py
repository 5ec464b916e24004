"""What a step asks of its driver, and how the two drivers answer.

A step is a generator that yields a `CallFunction` or a `Pause` and is sent a `Reply`; the synchronous and the
asynchronous driver differ only in how they call and wait.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, TypeVar, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

T = TypeVar("T")

#: The run and the key of the step whose function runs here; a step inside a step of the same run is refused.
inside_step: ContextVar[tuple[str, str] | None] = ContextVar("gnlqueue_step", default=None)


@dataclass(frozen=True, slots=True)
class CallFunction:
    """Asks the driver to call a function of a step; `step` is the id of its run and its key."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    step: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the driver to wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What the function returned or raised; not `called` where the asyncio task was cancelled before it began."""

    value: Any = None
    error: BaseException | None = None
    called: bool = True


#: The module whose frames call, in a thread that waits in `async_to_sync`, what `sync_to_async` sends back to it.
_CALLED_BACK = "asgiref.current_thread_executor"

#: The modules whose frames call what a thread is to do.
_THREAD_MODULES = {"threading", "concurrent.futures.thread", "multiprocessing.pool", _CALLED_BACK}

Protocol = Generator[CallFunction | Pause, Reply, Any]


class Flow(NamedTuple):
    """A flow of control: a thread, the asyncio task that runs on its event loop, and how deep it is called back.

    A thread that waits in `async_to_sync` is called back for each `sync_to_async` beneath: the thread is the same, but
    such a call is not made by the code that waits, and with `gather` there are several, side by side.

        context.step("a", …)                                # called back 0 deep
        async_to_sync(main)()                               # whose main() does
            await sync_to_async(context.step)("b", …)       # in the same thread, called back 1 deep
    """

    thread: int
    task: object
    called_back: int


def drive(protocol: Protocol) -> Any:
    """Run a step in this thread, and return its result."""
    ask, result = _advance(protocol, None)
    while ask is not None:
        ask, result = _advance(protocol, _pause(ask) if isinstance(ask, Pause) else call(ask))
    return result


async def adrive(protocol: Protocol) -> Any:
    """Run a step on this event loop, and return its result; what touches the database runs in a thread.

    An asyncio task that is cancelled stores the outcome of its step before it ends.
    """
    cancelled: asyncio.CancelledError | None = None
    reply: Reply | None = None
    while True:
        (ask, result), meanwhile = await to_its_end(_advance, protocol, reply)
        cancelled = cancelled or meanwhile
        if cancelled is not None and (ask is None or isinstance(ask, Pause)):
            raise cancelled
        if ask is None:
            return result
        if isinstance(ask, Pause):
            await asyncio.sleep(ask.seconds)
            reply = Reply()
        elif cancelled is not None:
            reply = Reply(error=cancelled, called=False)
        else:
            reply = await _acall(ask)


async def to_its_end(function: Callable[..., T], *args: Any) -> tuple[T, asyncio.CancelledError | None]:
    """Call a function in the thread of the database; return its result, and the cancellation that came meanwhile.

    With `sync_to_async` alone a cancelled task would end at once, while the function ran on, and wrote.
    """
    # As a reply: an asyncio task that raises SystemExit ends the event loop.
    running = asyncio.ensure_future(sync_to_async(_reply_of)(function, args, {}))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    reply = running.result()
    if reply.error is None:
        return cast(T, reply.value), cancelled
    if cancelled is not None and isinstance(reply.error, Exception):
        raise cancelled from reply.error
    raise reply.error


async def wait_for(function: Callable[..., T], *args: Any) -> T:
    """Call a function in the thread of the database, and do not end before it has, even if cancelled."""
    result, cancelled = await to_its_end(function, *args)
    if cancelled is not None:
        raise cancelled
    return result


def call(asked: CallFunction) -> Reply:
    """Call the function here and now."""
    token = inside_step.set(asked.step)
    try:
        return _reply_of(asked.function, asked.args, asked.kwargs)
    finally:
        inside_step.reset(token)


def refuse_event_loop(call: str) -> None:
    """Raise `SynchronousOnlyOperation` where an event loop runs in this thread, and name the call to await instead.

    Django would raise it at the first query, with advice that does not suit this code.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(
            f"context.{call}() was called on an event loop, as in an async def, and would hold up all that runs there: "
            f"use await context.a{call}(). If a plain def calls it, call that through sync_to_async."
        )


def flow() -> Flow:
    """Return the flow of control that runs here: it tells the main flow of a run from its threads and asyncio tasks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    return Flow(threading.get_ident(), task, _called_back() if task is None else 0)


def _called_back() -> int:
    """Return how many of this thread's frames are asgiref's, calling it back.

    It counts frames, as asgiref's own mark is a context variable: an asyncio task with another context lacks it.
    """
    count, frame = 0, sys._getframe().f_back
    while frame is not None:
        count += frame.f_globals.get("__name__") == _CALLED_BACK
        frame = frame.f_back
    return count


def stack() -> list[FrameType]:
    """Return the frames that run in this thread, innermost first, from the caller's caller on.

    The last is the one with which the thread began what it does now; in a pool, each piece of work has its own.
    """
    frames = [sys._getframe(2)]
    while (frame := frames[-1].f_back) is not None and frame.f_globals.get("__name__") not in _THREAD_MODULES:
        frames.append(frame)
    return frames


def _advance(protocol: Protocol, reply: Reply | None) -> tuple[CallFunction | Pause | None, Any]:
    """Let the step go on; return what it asks next, or `None` and its result. (StopIteration cannot cross an await.)"""
    try:
        return (next(protocol) if reply is None else protocol.send(reply)), None
    except StopIteration as end:
        return None, end.value


def _reply_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
    try:
        return Reply(value=function(*args, **kwargs))
    except BaseException as error:
        return Reply(error=error)


def _pause(asked: Pause) -> Reply:
    time.sleep(asked.seconds)
    return Reply()


async def _acall(asked: CallFunction) -> Reply:
    token = inside_step.set(asked.step)
    try:
        if inspect.iscoroutinefunction(asked.function):
            return Reply(value=await asked.function(*asked.args, **asked.kwargs))
        value = await sync_to_async(asked.function)(*asked.args, **asked.kwargs)
        return Reply(value=await value if inspect.isawaitable(value) else value)
    except GeneratorExit:  # the event loop is gone
        raise
    except BaseException as error:
        return Reply(error=error)
    finally:
        inside_step.reset(token)
