"""What failed below an asyncio task, in one that it began or in a thread that it awaits, and has come to it since.

Asyncio does not remember which task began which, so the worker's event loop does: `begin` is its task factory. It makes
a `Branch` of each, and puts it into its context. A thread that gets a copy of that, as from `to_thread`, knows the
branch too. So does an asyncio task that gets one and that `begin` did not make, as on an event loop in such a thread.
But that may be one of several, and what has come to the branch has not come to each of them.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

#: The numbers of the failures that may still be asked about: of the others no branch keeps anything for long.
_noted: set[int] = set()


class Branch:
    """An asyncio task that `begin` made."""

    __slots__ = ("__weakref__", "_below", "above", "seen", "task_ref")

    def __init__(self, parent: Branch | None) -> None:
        #: The branches that it descends from, and that lived when it began, nearest first; keeps none of them alive.
        self.above: tuple[weakref.ref[Branch], ...] = ()
        #: The numbers of the failures that its parent had seen when it began this one.
        self.seen: frozenset[int] = frozenset()
        self.task_ref: weakref.ref[asyncio.Task[Any]] | None = None  #: `None` until it exists: it may run before
        self._below: dict[int, Callable[[], bool]] = {}
        if parent is not None:
            # Only those that live, or a task that ends by beginning the next one would make an endless line.
            self.above = (weakref.ref(parent), *(ref for ref in parent.above if ref() is not None))
            if parent.seen or parent._below:
                known = _noted.intersection([*parent.seen, *parent._below])
                self.seen = frozenset(number for number in known if parent.has_seen(number))

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task itself, while it lives."""
        return self.task_ref() if self.task_ref is not None else None

    def has_ended(self) -> bool:
        """Tell whether the task has returned or raised something."""
        task = self.task
        return self.task_ref is not None and (task is None or task.done())

    def note(self, failure: int, has_left: Callable[[], bool] | None) -> None:
        """Note a failure; `has_left` tells when it has come to this branch, `None` where it began in its own task."""
        if has_left is not None:
            self._note_below(failure, has_left)
        for ref in self.above:
            if (above := ref()) is not None:
                above._note_below(failure, self.has_ended)

    def _note_below(self, failure: int, has_left: Callable[[], bool]) -> None:
        for number in set(self._below) - _noted:
            self._below.pop(number, None)
        self._below[failure] = has_left

    def has_seen(self, failure: int) -> bool:
        """Tell whether a failure has come to this branch from below, or to who began it, before that."""
        has_left = self._below.get(failure)
        return failure in self.seen or (has_left is not None and has_left())


#: Not every task has its own here: asgiref gives the one that it begins the context of who waits for it.
_branch: ContextVar[Branch | None] = ContextVar("gnlqueue_branch", default=None)

_in_given_context: weakref.WeakKeyDictionary[asyncio.Task[Any], Branch] = weakref.WeakKeyDictionary()

_MOMENT = 100  # milliseconds, for a task to get from beginning a thread to awaiting it

_mark: ContextVar[object] = ContextVar("gnlqueue_mark")


def begin(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Task[T]:
    """Begin an asyncio task as the loop would without us, as a branch of the one that runs now.

    A context that is given stays as it is: others may share it.
    """
    branch = Branch(_of(asyncio.current_task(loop)) or _branch.get())
    given = options.pop("context", None)
    context = copy_context() if given is None else given
    if given is None:
        context.run(_branch.set, branch)
    task = asyncio.Task(coro, loop=loop, context=context, **options)
    branch.task_ref = weakref.ref(task)
    if given is not None:
        _in_given_context[task] = branch
    return task


def note(failure: int, task: object) -> None:
    """Note a failure that is raised here, in this asyncio task, or in a thread: `None`; until it is forgotten."""
    _noted.add(failure)
    branch = _branch.get()
    if isinstance(task, asyncio.Task):
        if (own := _of(task)) is not None:
            own.note(failure, None)
        elif branch is not None:
            branch.note(failure, _is_over(weakref.ref(task), asyncio.Task.done))
    elif branch is not None and (awaiting := _awaiting(branch)) is not None:
        branch.note(failure, _is_over(weakref.ref(awaiting), _is_closed))


def forget(failure: int) -> None:
    """Keep nothing of a failure: nobody asks about it any more."""
    _noted.discard(failure)


def has_seen(failure: int, task: object = None) -> bool:
    """Tell whether a failure has come to the branch that this task is, or that this thread belongs to."""
    branch = _of(task)
    return branch is not None and branch.has_seen(failure)


def _of(task: object) -> Branch | None:
    """Return the branch that an asyncio task is, if any; `None` stands for a thread: the branch that it belongs to."""
    branch = _branch.get()
    if not isinstance(task, asyncio.Task):
        return branch
    if branch is not None:
        if branch.task_ref is None:  # it begins, eagerly: nothing else runs in this context yet
            return branch
        for each in (branch, *(ref() for ref in branch.above)):
            if each is not None and each.task is task:
                return each
    return _in_given_context.get(task)


def _is_over(ref: weakref.ref[T], is_over: Callable[[T], bool]) -> Callable[[], bool]:
    """Return what tells whether something is over, or gone, without keeping it alive."""
    return lambda: (it := ref()) is None or is_over(it)


def _is_closed(coro: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED


def _awaiting(branch: Branch) -> Coroutine[Any, Any, Any] | None:
    """Return the coroutine by which a branch awaits this thread, as `to_thread` does; `None` where none is known to.

    It is the innermost one, and has given its context to the thread. The task may be on its way there, as it began the
    thread just before, or not even be made, where it began eagerly: this waits for a moment. A task that runs on does
    not await anything.
    """
    awaited: Any = None
    for _ in range(_MOMENT):
        task = branch.task
        awaited = task.get_coro() if task is not None else None
        is_running = inspect.iscoroutine(awaited) and awaited.cr_running
        if branch.task_ref is not None and not is_running:
            break
        time.sleep(0.001)
    while inspect.iscoroutine(awaited) and inspect.iscoroutine(awaited.cr_await):
        awaited = awaited.cr_await
    frame = awaited.cr_frame if inspect.iscoroutine(awaited) else None
    if frame is None:
        return None
    mark = object()
    token = _mark.set(mark)
    try:
        # By type: isinstance() would evaluate a lazy object. A list, as another thread may look at this frame, too.
        contexts = [each for each in list(frame.f_locals.values()) if type(each) is Context]
        return awaited if any(each.get(_mark) is mark for each in contexts) else None
    finally:
        _mark.reset(token)
