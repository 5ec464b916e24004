"""What `context.using(…)` says about a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from gnlqueue.backoff import Backoff
from gnlqueue.conf import suggestion
from gnlqueue.durable.keys import can_name
from gnlqueue.options import exception_classes

OnDoubt = Literal["block", "rerun", "fail"]
Recover = Callable[..., Any]


class StepOptionsDict(TypedDict, total=False):
    """The options that `using()` takes; see `StepOptions`."""

    recover: Recover | None
    safe_errors: type[BaseException] | Iterable[type[BaseException]]
    final_errors: type[BaseException] | Iterable[type[BaseException]]
    on_doubt: OnDoubt
    max_attempts: int
    backoff: Backoff
    key: str | None
    pass_key_as: str | None
    match_args: bool
    how_to_check: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Options of one step.

    - `recover(*the step's arguments)` finds out what became of a doubtful effect, and returns `Happened(result)`,
      `NotHappened()` or `Unknown()`. "It is not there" proves nothing while the first call may still arrive.
    - `safe_errors` are exceptions after which the effect is known *not* to have happened; `final_errors` are a definite
      answer (a declined card): the failure is recorded for good.
    - `on_doubt` is what an unknown outcome leads to: "block" the job until a human decides, "rerun" the step at your
      own risk, or "fail" the job.
    - `max_attempts` and `backoff` say how often a step is tried within one attempt of the job, and after what pauses: a
      `step` after one of `safe_errors`, the other kinds after any error that is not one of `final_errors`.
    - `key` names a step that runs in a thread or an asyncio task; `pass_key_as` is the name of the argument in which
      the function receives its effect key.
    - With `match_args=False` the arguments are not compared on replay; `how_to_check` is shown to whoever must decide.
    """

    recover: Recover | None = None
    safe_errors: tuple[type[BaseException], ...] = ()
    final_errors: tuple[type[BaseException], ...] = ()
    on_doubt: OnDoubt = "block"
    max_attempts: int = 1
    backoff: Backoff = field(default_factory=Backoff)
    key: str | None = None
    pass_key_as: str | None = None
    match_args: bool = True
    how_to_check: str = ""

    def __post_init__(self) -> None:
        for name in ("safe_errors", "final_errors"):
            object.__setattr__(self, name, exception_classes(getattr(self, name), name))
        if self.recover is not None and not callable(self.recover):
            raise ValueError(f"recover must be a function, not {self.recover!r}.")
        if not isinstance(self.backoff, Backoff):
            raise ValueError(f"backoff of a step must be a gnlqueue.Backoff, not {self.backoff!r}.")
        if not isinstance(self.pass_key_as, str | None):
            raise ValueError(f"pass_key_as must be the name of an argument, not {self.pass_key_as!r}.")
        if self.on_doubt not in ("block", "rerun", "fail"):
            raise ValueError(f'on_doubt must be "block", "rerun" or "fail", not {self.on_doubt!r}.')
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise ValueError(f"max_attempts of a step must be an integer of at least 1, not {self.max_attempts!r}.")
        if self.key is not None and not can_name(self.key):
            raise ValueError(f"A step's key must be a string of 1 to 200 printable characters, not {self.key!r:.220}.")


def with_options(options: StepOptions, given: Mapping[str, Any]) -> StepOptions:
    """Return a copy of the options with the `given` ones replaced.

    Raises `TypeError` for an option that there is not, `ValueError` for one out of range.
    """
    for name in given:
        if name not in _NAMES:
            raise TypeError(
                f"A step has no option {name!r}{suggestion(name, _NAMES)}. Its options are: {', '.join(_NAMES)}."
            )
    return replace(options, **given)


_NAMES = tuple(StepOptionsDict.__annotations__)
