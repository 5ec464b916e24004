"""The steps that a handler calls: the public face of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack, cast

from gnlqueue.durable.options import StepOptions, StepOptionsDict, with_options
from gnlqueue.models import StepKind

if TYPE_CHECKING:
    from gnlqueue.durable.run import Run

T = TypeVar("T")


class Asked(NamedTuple):
    """A step as the handler asks for it."""

    kind: StepKind
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepOptions


class Steps:
    """The steps of a run, under the options that `using()` gave."""

    _options: StepOptions

    @property
    def _run(self) -> Run:
        raise NotImplementedError

    def using(self, **options: Unpack[StepOptionsDict]) -> Steps:
        """Return the same steps under other options, see `StepOptions`: `context.using(recover=…).step(…)`.

        Raises `TypeError` for an option that there is not, `ValueError` for one out of range.
        """
        return _StepsWithOptions(self._run, with_options(self._options, options))

    def step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` at most once in the life of the run, and return its result, now and on every replay.

        Its start is stored before the call and its result after it. If the run dies in between, or the function
        raises something that proves nothing, the outcome is unknown: `recover` decides, else the job is blocked and
        asks. The result is what JSON makes of it.

        Raises `StepFailed` when it is known not to have happened, or the interrupt that stops the run.
        """
        return cast(T, self._run.run_step(Asked(StepKind.STEP, name, function, args, kwargs, self._options)))

    def idempotent_step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` until it has returned once, and return its result; a crash in between runs it again.

        Raises `StepFailed` when it failed, or the interrupt that stops the run.
        """
        return cast(T, self._run.run_step(Asked(StepKind.IDEMPOTENT, name, function, args, kwargs, self._options)))

    def atomic_step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` in one transaction with its own record: exactly once, for writes in the queue's database.

        `on_commit` hooks of the function run at most once, and are not part of it. Writes on another alias are
        refused, and so is a COMMIT; a function that commits in a hidden way may be in doubt, like a `step`.

        Raises `StepFailed` when it failed and was rolled back, or the interrupt that stops the run.
        """
        return cast(T, self._run.run_step(Asked(StepKind.ATOMIC, name, function, args, kwargs, self._options)))

    async def astep(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Do what `step` does, with an `async def` function."""
        return cast(T, await self._run.arun_step(Asked(StepKind.STEP, name, function, args, kwargs, self._options)))

    async def aidempotent_step(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Do what `idempotent_step` does, with an `async def` function."""
        return cast(
            T, await self._run.arun_step(Asked(StepKind.IDEMPOTENT, name, function, args, kwargs, self._options))
        )

    async def aatomic_step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Do what `atomic_step` does, from asynchronous code; the function itself is a plain `def`."""
        return cast(T, await self._run.arun_step(Asked(StepKind.ATOMIC, name, function, args, kwargs, self._options)))


class _StepsWithOptions(Steps):
    def __init__(self, run: Run, options: StepOptions) -> None:
        self._theirs = run
        self._options = options

    @property
    def _run(self) -> Run:
        return self._theirs
