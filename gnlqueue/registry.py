"""Tasks: the functions that jobs run, and the names they are found by.

A job's row carries a name, never code; a worker looks the name up here. Apps' `tasks.py` are imported when the app
registry is ready, which registers what `@task` decorates.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from gnlqueue.conf import suggestion
from gnlqueue.exceptions import DuplicateTask, InvalidTask, UnknownTask, dotted
from gnlqueue.options import CALL_OPTIONS, LONGEST_NAME, TASK_OPTIONS, CallOptions, Options, TaskOptions, with_options

if TYPE_CHECKING:
    from gnlqueue.durable.context import JobContext
    from gnlqueue.models import Job

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_tasks: dict[str, Task[..., Any]] = {}
_aliases: dict[str, str] = {}
_queues: set[str] = set()


@dataclass(frozen=True, slots=True)
class Call:
    """A task with its arguments, as a value: for `enqueue_many`, schedules and assertions in tests.

    Raises `TypeError` when the arguments do not fit the function's signature.
    """

    task: Task[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task.check_arguments(self.args, self.kwargs)

    def enqueue(self) -> Job:
        """Enqueue it; see `Task.enqueue`."""
        try:
            job: Job = _enqueueing().enqueue_call(self)
        except SynchronousOnlyOperation:
            raise SynchronousOnlyOperation(
                f"{self.task.name} was enqueued from asynchronous code, which may not wait for the database: write "
                "`await task.aenqueue(…)`, or `await sync_to_async(call.enqueue)()` for a bound call."
            ) from None
        return job


@dataclass(frozen=True)
class Task(Generic[P, R]):
    """A registered function. Calling it just calls the function; `enqueue` makes a job of it.

    `func` is `None` for an external task, which another project runs. The names of the attributes are those of
    Django's own tasks.
    """

    name: str
    func: Callable[..., Any] | None
    takes_context: bool = False
    options: Options = field(default_factory=Options)
    #: What `using()` changed; it travels with the job, while the rest is looked up when the job runs.
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._function()(*args, **kwargs)
        return result

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function here and now, from synchronous code, also when it is an `async def`."""
        function = self._function()
        return (async_to_sync(function) if self.is_async else function)(*args, **kwargs)

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function here and now, from asynchronous code, also when it is a plain `def`."""
        function = self._function()
        return await (function if self.is_async else sync_to_async(function))(*args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return the task with these arguments as a value.

        Raises `TypeError` when they do not fit the function's signature.
        """
        return Call(self, args, kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Task[P, R]:
        """Return the task with other options; the arguments are those of `Options`.

        Raises `InvalidTask` for an option that is unknown or out of range.
        """
        changed = with_options(self.options, options, CALL_OPTIONS)
        given = {name: getattr(changed, name) for name in options}
        return replace(self, options=changed, overrides={**self.overrides, **given})

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Store a job that calls the function with these arguments, and return it.

        Once this returns (and the surrounding transaction commits) the job is never lost.

        Raises `TypeError` when the arguments do not fit the signature, `PayloadError` when JSON cannot carry them,
        `IdempotencyConflict` when the key is another job's; under `STRICT_TRANSACTIONS` `EnqueuedOutsideTransaction`.
        """
        return self.bind(*args, **kwargs).enqueue()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Do what `enqueue` does, from asynchronous code."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    @property
    def module_path(self) -> str:
        """The dotted path of the function, as in Django's own tasks."""
        return self.name if self.func is None else dotted(self.func)

    @cached_property
    def is_async(self) -> bool:
        """Whether the function is an `async def`."""
        return inspect.iscoroutinefunction(self.func)

    @cached_property
    def positional_names(self) -> list[str]:
        """The names of the arguments that may be passed by position; none for an external task."""
        return [
            each.name for each in self._parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` when the arguments do not fit the function; an external task takes any."""
        if self._signature is None or (not kwargs and len(args) in self._fitting):
            return
        try:
            self._signature.bind(*((None,) if self.takes_context else ()), *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None

    @cached_property
    def _signature(self) -> inspect.Signature | None:
        return None if self.func is None else inspect.signature(self.func)

    @cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        """What a caller may pass: without the context."""
        return list(self._signature.parameters.values() if self._signature else ())[self.takes_context :]

    @cached_property
    def _fitting(self) -> range:
        """How many positional arguments alone fit: what most calls pass, and quicker to see than by the signature."""
        required = [each for each in self._parameters if each.default is each.empty]
        if any(each.kind is each.KEYWORD_ONLY for each in required):
            return range(0)
        names = self.positional_names
        return range(sum(each.name in names for each in required), len(names) + 1)

    def _function(self) -> Callable[..., Any]:
        if self.func is None:
            raise UnknownTask(f"{self.name!r} is an external task: another project has its function.")
        return self.func


# The overloads let a type checker see through `takes_context`: the caller never passes the context itself.
@overload
def task(func: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    name: str | None = None,
    aliases: Iterable[str] = (),
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[Concatenate[JobContext, P], R]], Task[P, R]]: ...
@overload
def task(
    *, name: str | None = None, aliases: Iterable[str] = (), **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(
    func: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    aliases: Iterable[str] = (),
    takes_context: bool = False,
    **options: Unpack[TaskOptions],
) -> Any:
    """Make a task of a module-level function, with or without options.

    `name` and `aliases` let the function move while jobs under its old name still wait; the default name is the
    function's dotted path. The options are those of `Options`, without the ones that belong to one call. With
    `takes_context=True` the function's first parameter, named `context`, receives the `JobContext`.

    Raises `InvalidTask` or `DuplicateTask` when the module is imported, where the mistake is.
    """

    def decorate(function: Callable[..., Any]) -> Task[..., Any]:
        _check_function(function, takes_context)
        made: Task[..., Any] = Task(
            name=check_name(name or dotted(function)),
            func=function,
            takes_context=takes_context,
            options=with_options(Options(), options, TASK_OPTIONS),
        )
        register(made, aliases)
        return made

    return decorate if func is None else decorate(func)


def _check_function(function: Callable[..., Any], takes_context: bool) -> None:
    if not inspect.isfunction(function):
        raise InvalidTask(f"@task goes on a function, not on {function!r}.")
    where = dotted(function)
    if function.__name__ == "<lambda>":
        raise InvalidTask(f"{where} has no name by which a worker could find it: write a function with def.")
    if "<locals>" in function.__qualname__:
        raise InvalidTask(f"{where} is defined inside another function, where no worker can find it: move it out.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(f"{where} is a generator: calling it would run nothing. Return a value instead of yielding.")
    first = next(iter(inspect.signature(function).parameters), None)
    if takes_context and first != "context":
        raise InvalidTask(f"{where} has takes_context=True, so its first parameter must be named 'context'.")
    if not takes_context and first == "context":
        raise InvalidTask(f"{where} has a first parameter 'context': add takes_context=True, or rename it.")


def check_name(name: str) -> str:
    """Return the name, or raise `InvalidTask` when it cannot name a task."""
    if not isinstance(name, str) or not re.fullmatch(rf"[\w.:\-]{{1,{LONGEST_NAME}}}", name):
        raise InvalidTask(
            f"{name!r:.220} is not a task name: use 1 to {LONGEST_NAME} letters, digits, '_', '-', '.' and ':'."
        )
    return name


def register(made: Task[..., Any], aliases: Iterable[str] = ()) -> None:
    """Add a task under its name and aliases. The same function again (of a reloaded module) replaces the old one."""
    for each in (made.name, *map(check_name, aliases)):
        known = _tasks.get(_aliases.get(each, each))
        if known is not None and known.module_path != made.module_path:
            raise DuplicateTask(
                f"The task name {each!r} is taken by {known.module_path}; {made.module_path} needs another name=."
            )
    _tasks[made.name] = made
    for each in aliases:
        _aliases[each] = made.name


def external_task(name: str, **options: Unpack[CallOptions]) -> Task[..., Any]:
    """Return a task that another project on the same database runs; the name is not looked up here.

    Give its `queue_name`, so that only that project's workers claim it. Options are those of `Options`.

    Raises `InvalidTask` for what cannot name a task, and for an option that is unknown or out of range.
    """
    return Task(name=check_name(name), func=None).using(**options)


def find_task(name: str) -> Task[..., Any] | None:
    """Return the task registered under a name or an alias, or `None`."""
    return _tasks.get(_aliases.get(name, name))


def get_task(name: str) -> Task[..., Any]:
    """Return the task registered under a name or an alias.

    Raises `UnknownTask`, with the closest name there is.
    """
    found = find_task(name)
    if found is None:
        raise UnknownTask(
            f"No task {name!r} is registered{suggestion(name, [*_tasks, *_aliases])}. Tasks are registered by "
            "importing the tasks.py of each installed app; one that another project runs is an external_task()."
        )
    return found


def registered() -> dict[str, Task[..., Any]]:
    """Return all tasks by name, sorted."""
    return dict(sorted(_tasks.items()))


def serve_queues(queue_names: Iterable[str]) -> None:
    """Add queues to those that a worker without `--queues` serves, even if no task names them."""
    _queues.update(queue_names)


def default_queues() -> list[str]:
    """Return the queues of a worker that is given none: each that a registered task names, and `default`."""
    return sorted({"default", *_queues, *(task.options.queue_name for task in _tasks.values())})


def enqueue(task: Task[P, Any] | str, *args: P.args, **kwargs: P.kwargs) -> Job:
    """Store a job that runs `task` (a task, or the name of a registered one), and return it; see `Task.enqueue`.

    Raises `UnknownTask` for a name that is not registered, `InvalidTask` for what is neither a task nor a name; and
    what `Task.enqueue` raises.
    """
    return _as_task(task).enqueue(*args, **kwargs)


async def aenqueue(task: Task[P, Any] | str, *args: P.args, **kwargs: P.kwargs) -> Job:
    """Do what `enqueue` does, from asynchronous code."""
    return await _as_task(task).aenqueue(*args, **kwargs)


def enqueue_many(calls: Iterable[Call]) -> list[int]:
    """Store a job for each bound call, with one INSERT per batch, and return their ids in the same order.

    All of them or none: the batches share one transaction (where `.using(database=…)` names several databases, one on
    each). Use `task.bind(…)` to make the calls.

    Raises `TypeError` for anything but a bound call, `PayloadError` for arguments that JSON cannot carry,
    `IdempotencyConflict` when a key is another job's; under `STRICT_TRANSACTIONS` `EnqueuedOutsideTransaction`.
    """
    try:
        ids: list[int] = _enqueueing().enqueue_calls(calls)
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(
            "enqueue_many() was called from asynchronous code, which may not wait for the database: write "
            "`await sync_to_async(gnlqueue.enqueue_many)(calls)`."
        ) from None
    return ids


def _as_task(task: Task[..., Any] | str) -> Task[..., Any]:
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        return get_task(task)
    raise InvalidTask(
        f"enqueue() takes a task or its name, not {task!r}. Is the function decorated with @gnlqueue.task?"
    )


@cache
def _enqueueing() -> Any:
    """The one late import: models need the app registry, and tasks are declared before it is ready."""
    from gnlqueue.queue import enqueueing

    return enqueueing
