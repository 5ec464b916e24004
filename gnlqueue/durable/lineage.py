"""Which failures have reached an asyncio task from below: from tasks that it began, and threads that it awaits.

    task = asyncio.create_task(child())     # a step fails in child()
    await asyncio.wait([task])              # child() has ended: its failure has reached the code that began it

Asyncio does not remember which task began which, so the worker's event loop has `begin` as its task factory: it makes a
`Branch` for each task, and puts it into the task's context. A thread that gets a copy of this context, as from
`to_thread`, belongs to the branch too. So does an asyncio task that gets one without `begin`, as on an event loop in
such a thread. But there may be several of these, and what has reached the branch has not reached each of them.
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

#: The numbers of the failures that may still be asked about; what branches have noted of others is dropped in time.
_noted: set[int] = set()


class Branch:
    """An asyncio task that `begin` made."""

    __slots__ = ("__weakref__", "_below", "above", "seen", "task_ref")

    def __init__(self, parent: Branch | None) -> None:
        #: The branches above it that were alive when it began, nearest first; keeps none of them alive.
        self.above: tuple[weakref.ref[Branch], ...] = ()
        #: The numbers of the failures that had reached its parent when that began this one.
        self.seen: frozenset[int] = frozenset()
        #: `None` until the task exists: one that begins eagerly runs before that.
        self.task_ref: weakref.ref[asyncio.Task[Any]] | None = None
        self._below: dict[int, Callable[[], bool]] = {}
        if parent is not None:
            # Only those still alive: where each task ends by beginning the next, the line would grow without end.
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
        """Note a failure, for this branch and those above it.

        `has_left` tells whether it has left the thread or the task where it happened, and so reached this branch;
        `None` where that is the branch's own task.
        """
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
        """Tell whether a failure has reached this branch from below, or had reached its parent when that began it."""
        has_left = self._below.get(failure)
        return failure in self.seen or (has_left is not None and has_left())


#: Not always the branch of the task that runs: asgiref gives a task that it begins the context of who waits for it.
_branch: ContextVar[Branch | None] = ContextVar("gnlqueue_branch", default=None)

_in_given_context: weakref.WeakKeyDictionary[asyncio.Task[Any], Branch] = weakref.WeakKeyDictionary()

_MOMENT = 100  # milliseconds, for a task to get from beginning a thread to awaiting it

_mark: ContextVar[object] = ContextVar("gnlqueue_mark")


def begin(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Task[T]:
    """Begin an asyncio task as the loop would without us, and make it a branch below the one that runs now.

    A context that is passed stays as it is: others may share it.
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
    """Note a failure that is raised here, in an asyncio task, or in a thread (`None`), until `forget` is called."""
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
    """Forget a failure: nobody asks about it any more."""
    _noted.discard(failure)


def has_seen(failure: int, task: object = None) -> bool:
    """Tell whether a failure has reached the branch of this task, or (`None`) the one that this thread belongs to."""
    branch = _of(task)
    return branch is not None and branch.has_seen(failure)


def _of(task: object) -> Branch | None:
    """Return the branch of an asyncio task, if it has one, or (`None`) the one that this thread belongs to."""
    branch = _branch.get()
    if not isinstance(task, asyncio.Task):
        return branch
    if branch is not None:
        if branch.task_ref is None:  # it is beginning, eagerly: nothing else runs in this context yet
            return branch
        for each in (branch, *(ref() for ref in branch.above)):
            if each is not None and each.task is task:
                return each
    return _in_given_context.get(task)


def _is_over(ref: weakref.ref[T], is_over: Callable[[T], bool]) -> Callable[[], bool]:
    """Return a function that tells whether something is over, or gone, and that does not keep it alive."""
    return lambda: (it := ref()) is None or is_over(it)


def _is_closed(coro: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED


def _awaiting(branch: Branch) -> Coroutine[Any, Any, Any] | None:
    """Return the coroutine in which a branch awaits this thread, as `to_thread` does; `None` where none is known to.

    It is the innermost one that the task awaits, and has the context of this thread among its variables. The task may
    have begun the thread only just now, or not exist yet, where it began eagerly: so this waits a moment. A task that
    is still running after that awaits nothing.
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
