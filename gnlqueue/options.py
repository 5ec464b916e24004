"""What a task, or one call of it, may say about its jobs; checked where it is said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.conf import settings as django_settings

from gnlqueue.backoff import Backoff
from gnlqueue.conf import ATTEMPTS, suggestion
from gnlqueue.exceptions import InvalidTask
from gnlqueue.lengths import seconds
from gnlqueue.payloads import scrub

LONGEST_NAME = 200
PRIORITIES = range(-100, 101)

#: Lower case only, because "emails" and "Emails" would be one queue to MariaDB's collations and two to PostgreSQL.
QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9_.\-]{0,63}")


def check_queue_name(queue_name: str) -> str:
    """Return the name, or raise `InvalidTask` when it cannot name a queue."""
    if not isinstance(queue_name, str) or not QUEUE_NAME.fullmatch(queue_name):
        raise InvalidTask(
            f"{queue_name!r} is not a queue name: use 1 to 64 lower-case letters, digits, '_', '-' and '.', "
            "the first a letter or digit."
        )
    return queue_name


def _is_one_of(numbers: range, value: object) -> bool:
    """Tell whether a value is one of these numbers; to Python, `True` is 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value in numbers


def exception_classes(value: Any, name: str) -> tuple[type[BaseException], ...]:
    """Return one exception class, or some, as a tuple.

    Raises `ValueError` for anything else; `name` says in its message what they are.
    """
    classes = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise ValueError(f"{name} must be a tuple of exception classes, not {value!r}.")
    return classes


def check_run_after(run_after: datetime | timedelta, what: str = "run_after") -> None:
    """Check an earliest start: an aware datetime, or a timedelta from now; `what` names it in errors.

    Raises `TypeError` for anything else, `ValueError` for a time without a zone or a delay beyond a hundred years.
    """
    if isinstance(run_after, timedelta):
        seconds(max(run_after, timedelta()), what)
    elif not isinstance(run_after, datetime):
        raise TypeError(f"{what} must be an aware datetime or a timedelta from now, not {run_after!r}.")
    elif run_after.utcoffset() is None:
        raise ValueError(f"{what}={run_after!r} has no time zone: use django.utils.timezone.now() or a timedelta.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a task, or one call of it, says about its jobs.

    `timeout` limits one attempt, in seconds. `retry_for` and `give_up_on` are exception classes: with `retry_for` a job
    is tried again only after those, and never after those in `give_up_on`. The rest belongs to one call: `run_after`
    (the earliest start, an aware datetime or a timedelta from now), `idempotency_key`, and `database` (an alias).

    Raises `InvalidTask` for a value out of range or of the wrong type.
    """

    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    retry_for: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    run_after: datetime | timedelta | None = None
    idempotency_key: str | None = None
    database: str | None = None

    def __post_init__(self) -> None:
        check_queue_name(self.queue_name)
        if not _is_one_of(PRIORITIES, self.priority):
            raise InvalidTask(f"priority must be an integer from -100 to 100 (higher first), not {self.priority!r}.")
        if self.max_attempts is not None and not _is_one_of(ATTEMPTS, self.max_attempts):
            raise InvalidTask(f"max_attempts must be an integer from 1 to 1000, not {self.max_attempts!r}.")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidTask(f"backoff must be a gnlqueue.Backoff, not {self.backoff!r}.")
        try:
            self._normalise()
            if self.run_after is not None:
                check_run_after(self.run_after)
        except (TypeError, ValueError) as error:
            raise InvalidTask(str(error)) from None
        self._check_call()

    def _normalise(self) -> None:
        """Keep a length of time as seconds, and exception classes as a tuple."""
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds(self.timeout, "timeout"))
        if self.timeout == 0:
            raise ValueError("timeout must be more than 0 seconds; leave it out for none.")
        for name in ("retry_for", "give_up_on"):
            if getattr(self, name) != ():
                object.__setattr__(self, name, exception_classes(getattr(self, name), name))

    def _check_call(self) -> None:
        """Check what else belongs to one call."""
        if self.database is not None and self.database not in django_settings.DATABASES:
            hint = suggestion(str(self.database), django_settings.DATABASES)
            raise InvalidTask(f"database must be an alias of DATABASES, not {self.database!r}{hint}.")
        key = self.idempotency_key
        if key is not None and (
            not isinstance(key, str) or not 1 <= len(key) <= LONGEST_NAME or key != scrub(key, LONGEST_NAME)
        ):
            raise InvalidTask(
                f"idempotency_key must be a string of 1 to {LONGEST_NAME} characters, without NUL or lone "
                f"surrogates, not {key!r:.220}."
            )


class TaskOptions(TypedDict, total=False):
    """The options that `@task` takes; see `Options`."""

    queue_name: str
    priority: int
    max_attempts: int | None
    backoff: Backoff | None
    timeout: timedelta | float | None
    retry_for: type[BaseException] | Iterable[type[BaseException]]
    give_up_on: type[BaseException] | Iterable[type[BaseException]]


class CallOptions(TaskOptions, total=False):
    """The options that `.using()` takes; see `Options`."""

    run_after: datetime | timedelta | None
    idempotency_key: str | None
    database: str | None


TASK_OPTIONS = frozenset(TaskOptions.__annotations__)
CALL_OPTIONS = frozenset(CallOptions.__annotations__)

_RUN_AFTER = ": use .using(run_after=…) where you enqueue, an aware datetime or a timedelta from now"
_TIMEOUT = ": use timeout=…, the seconds of one attempt"
#: What to say to Celery's names of options, which no name of ours is close to.
_CELERY_HINTS = {
    "bind": ": use takes_context=True, with a first parameter named 'context'",
    "countdown": _RUN_AFTER,
    "delay": _RUN_AFTER,
    "dont_autoretry_for": ": use give_up_on=…",
    "eta": _RUN_AFTER,
    "max_retries": ": use max_attempts=…, where the first one counts too",
    "soft_time_limit": _TIMEOUT,
    "time_limit": _TIMEOUT,
}


def with_options(options: Options, given: Mapping[str, Any], allowed: frozenset[str]) -> Options:
    """Return a copy of the options with the `given` ones replaced; `allowed` are the names that may be given.

    Raises `InvalidTask` for an option that is unknown, out of range, or not allowed here.
    """
    for name in given:
        if name in CALL_OPTIONS and name not in allowed:
            raise InvalidTask(f"{name} belongs to one call: use .using({name}=…) where you enqueue.")
        if name not in allowed:
            hint = _CELERY_HINTS.get(name) or suggestion(name, allowed)
            raise InvalidTask(f"There is no option {name!r}{hint}.")
    return replace(options, **given)
