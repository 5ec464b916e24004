"""Django's own tasks, for the tests of the backend."""

import asyncio
from typing import Any

from django.tasks import task

import gnlqueue
from gnlqueue import queue


@task
def give(value: Any = None) -> Any:
    return value


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task(takes_context=True, priority=7)
def fail_first(context: Any, how_often: int) -> list[Any]:
    result = context.task_result
    if context.attempt <= how_often:
        raise OSError("printer on fire")
    return [context.attempt, result.id, result.status, len(result.errors), len(set(result.worker_ids)), result.args]


@task(takes_context=True)
async def afail_first(context: Any, how_often: int) -> list[Any]:
    await asyncio.sleep(0)
    if context.attempt <= how_often:
        raise OSError("printer on fire")
    return [context.attempt, context.task_result.status]


@task
def leave(code: int) -> None:
    raise SystemExit(code)


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
def return_bytes(size: int) -> Any:
    return {"list": [b"bytes" * size]} if size else object()


@task
def take_step() -> str:
    return gnlqueue.current_context().step("one", lambda: "stepped")


@task
def cancel_itself() -> None:
    context = gnlqueue.current_context()
    queue.cancel(context.job)
    context.check()


def undecorated() -> None: ...
