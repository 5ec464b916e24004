"""Running one job, and saying what came of it. Nothing here writes the outcome: that is `outcomes`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync, sync_to_async

from gnlqueue import payloads, signals
from gnlqueue.conf import settings
from gnlqueue.durable.context import JobContext, current, with_open_step
from gnlqueue.exceptions import (
    GiveUp,
    InvalidTask,
    JobBlocked,
    JobCancelled,
    JobGivenUp,
    JobInterrupt,
    JobPreempted,
    JobSuspended,
    JobTimedOut,
    Retry,
    StepFailed,
    UnknownTask,
    dotted,
)
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.attempts import Failure, failure_of, max_attempts
from gnlqueue.registry import Task, get_task
from gnlqueue.worker.timeouts import Timeouts

logger = logging.getLogger("gnlqueue.worker")


class Ending(Enum):
    """What came of an attempt."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    PREEMPTED = "lease lost"
    UNKNOWN_TASK = "unknown task"


class Outcome(NamedTuple):
    """What came of an attempt, to be written under the guard; at once, if it has steps.

    `seconds` is how long it ran. `failure` is what is kept of the error; it is made where the task runs, because an
    exception's text comes from its author's code, which may take a while. `final` says that there is no further
    attempt, and `why` says why not, where the error itself does not.
    """

    claimed: ClaimedJob
    ending: Ending
    seconds: float = 0.0
    result: Any = None
    error: BaseException | str | None = None
    failure: Failure | None = None
    after: timedelta | float | None = None
    final: bool = False
    why: str = ""
    has_steps: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What a worker's attempts run under: `stopping` says whether it shuts down; a step renews the lease by `lease`."""

    timeouts: Timeouts
    lease: timedelta
    stopping: Callable[[], bool]


def prepare(claimed: ClaimedJob) -> Task[..., Any] | Outcome:
    """Return the job's task, or the outcome right away if it cannot be run."""
    try:
        task = get_task(claimed.task_name)
    except UnknownTask:
        return Outcome(claimed, Ending.UNKNOWN_TASK)
    if claimed.attempts > max_attempts(claimed) and not with_open_step([claimed]):
        # Rescued by a process that did not know the task, and so could not know its limit.
        return Outcome(claimed, Ending.FAILED, error="All attempts were used up by crashes.", final=True)
    return task


def run_sync(claimed: ClaimedJob, task: Task[..., Any], terms: Terms) -> Outcome:
    """Run a job's task in this thread."""
    if task.is_async:
        return async_to_sync(run_async)(claimed, task, terms)
    began, timeouts = time.monotonic(), terms.timeouts
    context = JobContext(claimed, terms.lease, terms.stopping)
    timeout = timeout_of(claimed, task)
    try:
        signals.send(signals.job_started, job=claimed)
        outside = current.set(context)
        try:
            if timeout is None:
                result = task.call(*_arguments(task, context), **claimed.kwargs)
            else:
                try:
                    timeouts.enter(claimed, timeout)
                    result = task.call(*_arguments(task, context), **claimed.kwargs)
                finally:
                    timeouts.leave(claimed)
        finally:
            current.reset(outside)
    except BaseException as error:
        timeouts.leave(claimed)  # once more, if the interrupt arrived inside of it
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # somebody's Ctrl-C; in any other thread the task itself raised it
        context.end()
        return _raised(context, task, error, began)
    try:
        context.end()
        context.look_back()
    except BaseException as error:
        return _raised(context, task, error, began)
    return _returned(context, task, result, began)


async def run_async(claimed: ClaimedJob, task: Task[..., Any], terms: Terms) -> Outcome:
    """Run a job's `async def` task on this event loop."""
    began, timeouts = time.monotonic(), terms.timeouts
    context = JobContext(claimed, terms.lease, terms.stopping)
    timeout = timeout_of(claimed, task)
    try:
        if signals.job_started.receivers:  # which may use the ORM
            await sync_to_async(signals.send)(signals.job_started, job=claimed)
        outside = current.set(context)
        try:
            called = task.acall(*_arguments(task, context), **claimed.kwargs)
            result = await (called if timeout is None else _limited(called, claimed, timeout, timeouts))
        finally:
            current.reset(outside)
    except BaseException as error:  # KeyboardInterrupt too: it would end the event loop for all
        if context.has_steps:  # a branch that the handler did not wait for may still be inside one
            await sync_to_async(context.end, thread_sensitive=False)()
        return _raised(context, task, error, began)
    if context.has_steps:
        try:
            await sync_to_async(context.end, thread_sensitive=False)()
            await sync_to_async(context.look_back)()  # in the thread whose connections are looked after
        except BaseException as error:
            return _raised(context, task, error, began)
    return _returned(context, task, result, began)


async def _limited(called: Awaitable[Any], claimed: ClaimedJob, limit: float, timeouts: Timeouts) -> Any:
    """Return what `called` returns, within `limit` seconds."""
    timeouts.enter(claimed, limit, interrupt=False)
    try:
        async with asyncio.timeout(limit) as end:
            return await called
    except TimeoutError:
        if end.expired():
            raise JobTimedOut(f"It ran longer than {limit:g} s.") from None
        raise
    finally:
        timeouts.leave(claimed)


def timeout_of(claimed: ClaimedJob, task: Task[..., Any]) -> float | None:
    """Return the seconds that one attempt may take: the job's own, else its task's; `None` for any."""
    own = (claimed.options or {}).get("timeout")
    return own if own is not None else task.options.timeout


def _arguments(task: Task[..., Any], context: JobContext) -> list[Any]:
    return [context, *context.claimed.args] if task.takes_context else context.claimed.args


def _returned(context: JobContext, task: Task[..., Any], result: Any, began: float) -> Outcome:
    if context.interrupt is not None:  # a handler that caught it has not undone it
        return _raised(context, task, context.interrupt, began)
    claimed = context.claimed
    if result is not None:
        if (what := _not_run(result, task)) is not None:
            error = InvalidTask(
                f"{task.module_path} returned {what}, which nobody runs: none of its work was done. Is it wrapped in a "
                "decorator that is not made for this kind of function? Let the decorator await or exhaust what it "
                "wraps, or return the value itself."
            )
            return _raised(context, task, error, began)._replace(final=True, why="the next would do the same")
        try:
            payloads.encode(result, "result", limit=settings().MAX_PAYLOAD_BYTES)
        except Exception as error:  # a PayloadError, or what an object of the task's own raised
            # The work is done: running it again for its result would do it twice.
            logger.warning(
                "job %s (%s) is done, but its result was not stored: %s", claimed.id, claimed.task_name, error
            )
            result = None
    return Outcome(claimed, Ending.DONE, time.monotonic() - began, result=result, has_steps=context.has_steps)


def _not_run(result: Any, task: Task[..., Any]) -> str | None:
    """Say what a task returned, if that is its own body, not run yet; return `None` if it is a value.

    Only the call can tell: a decorator around an `async def` may return the coroutine, or may have run it. A generator
    of another name is something that the task made, after its work.
    """
    try:
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            return "a generator" if result.__name__ == getattr(task.func, "__name__", None) else None
        if not inspect.isawaitable(result):
            return None
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that nobody has awaited it
            return "a coroutine"
    except Exception:  # of an object that computes what it is when it is asked: a value, which cannot be stored
        return None
    return "an awaitable"


def end_copy(pid: int, outcome: Outcome) -> None:
    """End this process if it is not `pid`: the task forked it, and the copy has come to the end of the task too."""
    if os.getpid() == pid:
        return
    status = outcome.error.code if isinstance(outcome.error, SystemExit) else outcome.ending is not Ending.DONE
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status if isinstance(status, int) else status is not None)


def _raised(context: JobContext, task: Task[..., Any], error: BaseException, began: float) -> Outcome:
    claimed, error = context.claimed, context.interrupt or error
    outcome = partial(Outcome, claimed, seconds=time.monotonic() - began, has_steps=context.has_steps)
    if isinstance(error, JobCancelled):
        return outcome(Ending.CANCELLED)
    if isinstance(error, JobBlocked):
        return outcome(Ending.BLOCKED, error=error)
    if isinstance(error, JobSuspended):
        return outcome(Ending.SUSPENDED, error=error)
    if isinstance(error, JobPreempted):
        return outcome(Ending.PREEMPTED, error=error)
    if isinstance(error, JobTimedOut) and not str(error):
        error = JobTimedOut(f"It ran longer than {timeout_of(claimed, task):g} s.").with_traceback(error.__traceback__)
    if isinstance(error, Retry):
        return outcome(Ending.FAILED, error=error, failure=failure_of(error), after=error.after)
    why = "" if isinstance(error, JobInterrupt | GiveUp) else _why_final(claimed, task, error)
    final = bool(why) or isinstance(error, GiveUp | JobGivenUp)
    return outcome(Ending.FAILED, error=error, failure=failure_of(error), final=final, why=why)


def _why_final(claimed: ClaimedJob, task: Task[..., Any], error: BaseException) -> str:
    """Say which option, of the job or else of its task, rules out another attempt after this exception; "" for none."""
    names = {dotted(kind) for kind in type(error).__mro__}
    if isinstance(error, StepFailed):  # look through to what the step raised, on replay too
        if error.final:
            return "failed for good"
        names.update(error.classes)
    options = claimed.options or {}
    give_up_on = options.get("give_up_on") or [dotted(kind) for kind in task.options.give_up_on]
    retry_for = options.get("retry_for") or [dotted(kind) for kind in task.options.retry_for]
    if not names.isdisjoint(give_up_on):
        return "in give_up_on"
    return "not in retry_for" if retry_for and names.isdisjoint(retry_for) else ""
