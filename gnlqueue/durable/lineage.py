"""Which asyncio task began which: what a task raises goes to the one that began it.

Asyncio does not remember that, so the worker's event loop does: `begin` is its task factory.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

_Refs = tuple[weakref.ref[asyncio.Task[Any]], ...]

#: Of each asyncio task, those it descends from and that lived when it began, nearest first; keeps none of them alive.
_ancestors: weakref.WeakKeyDictionary[asyncio.Task[Any], _Refs] = weakref.WeakKeyDictionary()


def begin(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Task[T]:
    """Begin an asyncio task as the loop would without us, and note who began it.

    One that starts eagerly is noted after its first stretch: what it begins in there knows it, but none above it. One
    that is begun from outside of any task, as by `run_coroutine_threadsafe`, has no parent.
    """
    parent = asyncio.current_task(loop)
    task = asyncio.Task(coro, loop=loop, **options)
    if parent is not None:
        # Only those that live, or a task that ends by beginning the next one would make an endless line.
        further = [ref for ref in _ancestors.get(parent, ()) if ref() is not None]
        _ancestors[task] = (weakref.ref(parent), *further)
    return task


def descends_from(task: asyncio.Task[Any], ancestor: asyncio.Task[Any]) -> bool:
    """Tell whether a task is known to have been begun by the other one, or by one that descends from it."""
    return any(ref() is ancestor for ref in _ancestors.get(task, ()))
