"""What is looked for, as a value that can be shown, frozen in a form, and carried by a background job."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db.models import F, OuterRef, Q, Subquery, Value
from django.db.models.fields.json import KeyTransform, KeyTransformExact
from django.db.models.functions import Coalesce

from gnlqueue.models import JobAttempt, JobStatus, key_hash_of
from gnlqueue.registry import registered

#: Stands for jobs that ended without an exception: a worker died, a reason was given as text.
NO_ERROR = "-"

#: No job has a time beyond these, which leave every database and every time zone room to convert them.
EARLIEST, LATEST = datetime(1000, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)

#: What a database takes for a number.
LARGEST = 2**63 - 1

#: A job's last failed attempt says how it failed; earlier ones may have failed otherwise.
LATEST_ERROR = Coalesce(
    Subquery(JobAttempt.objects.filter(job_id=OuterRef("pk")).order_by("-id").values("exception_class")[:1]), Value("")
)


class Span(NamedTuple):
    """A span of time; both ends belong to it, `None` is open."""

    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def between(cls, since: datetime | None, until: datetime | None) -> Span:
        """Return the span between two times that somebody typed; the year 1 and the year 9999 are brought nearer."""
        return cls(*(end and min(max(end, EARLIEST), LATEST) for end in (since, until)))

    def matches(self, column: str) -> Q:
        """Return the condition that a column lies in the span."""
        found = Q()
        if self.since is not None:
            found &= Q(**{f"{column}__gte": self.since})
        if self.until is not None:
            found &= Q(**{f"{column}__lte": self.until})
        return found


#: No bound at all.
ALWAYS = Span()


class Argument(NamedTuple):
    """An argument by its name, passed by keyword or by position, and the value that it has (a scalar)."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Criteria:
    """What is looked for; all of it holds for a job that is found. Empty: every job."""

    statuses: tuple[str, ...] = ()
    queue_name: str | None = None
    task_name: str | None = None
    task_contains: str | None = None
    worker_id: str | None = None
    worker_contains: str | None = None
    #: Classes of the exception that ended the last failed attempt, one of which it is; or `NO_ERROR` alone.
    errors: tuple[str, ...] = ()
    enqueued: Span = ALWAYS
    run: Span = ALWAYS
    finished: Span = ALWAYS
    arguments: tuple[Argument, ...] = ()
    ids: tuple[int, ...] | None = None
    key: str | None = None
    #: The cut-off of a bulk action: what was enqueued, or finished, later is not meant.
    last_id: int | None = None
    as_of: datetime | None = None
    #: A task whose jobs are not meant.
    without_task: str | None = None

    def __bool__(self) -> bool:
        return self != Criteria()

    def as_json(self) -> dict[str, Any]:
        """Return what is not empty, as JSON; `from_json` makes the same criteria of it."""
        empty = asdict(Criteria())
        return {name: _plain(value) for name, value in asdict(self).items() if value != empty[name]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Criteria:
        """Return the criteria that were stored.

        Raises `ValueError` or `TypeError` for what is none.
        """
        if unknown := set(stored) - set(_READ):
            raise ValueError(f"Criteria have no {', '.join(sorted(unknown))}.")
        return cls(**{name: _READ[name](value) for name, value in dict(stored).items()})

    @property
    def key_hash(self) -> str | None:
        """The hash by which the table knows the idempotency key."""
        return None if self.key is None else key_hash_of(self.key)

    def condition(self) -> Q:
        """Return all of it as one condition on jobs, which needs the annotation `latest_error` where errors matter."""
        found = Q()
        for column, value in (
            ("queue_name", self.queue_name),
            ("task_name", self.task_name),
            ("task_name__icontains", self.task_contains),
            ("worker_id", self.worker_id),
            ("worker_id__icontains", self.worker_contains),
            ("status__in", self.statuses or None),
            ("pk__in", self.ids),
            ("key_hash", self.key_hash),
            ("pk__lte", self.last_id),
        ):
            if value is not None:
                found &= Q(**{column: value})
        if self.without_task is not None:
            found &= ~Q(task_name=self.without_task)
        if self.errors:
            found &= Q(latest_error__in=[""] if self.errors == (NO_ERROR,) else self.errors)
        if self.as_of is not None:
            found &= Q(finished_at__isnull=True) | Q(finished_at__lte=self.as_of)
        for argument in self.arguments:
            found &= _has(argument)
        return (
            found
            & self.enqueued.matches("enqueued_at")
            & self.run.matches("run_at")
            & self.finished.matches("finished_at")
        )


class UnescapedKey(KeyTransform):
    """The value under a key that stands in the column with its letters as they are; Django looks for escapes."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL and its parameters."""
        return self._with_letters(*super().as_sqlite(compiler, connection, **context))

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL and its parameters."""
        return self._with_letters(*super().as_mysql(compiler, connection, **context))

    def _with_letters(self, sql: str, params: Any) -> tuple[str, tuple[Any, ...]]:
        escaped, plain = (f"$.{json.dumps(self.key_name, ensure_ascii=is_escaped)}" for is_escaped in (True, False))
        return sql, tuple(plain if each == escaped else each for each in params)


class Carries:
    """The condition that a JSON column has a value under a key, also under one that Django would take for a lookup."""

    conditional = True

    def __init__(self, column: str, key: str, value: Any, transform: type[KeyTransform] = KeyTransform) -> None:
        self.column, self.key, self.value, self.transform = column, key, value, transform

    def resolve_expression(self, *args: Any, **kwargs: Any) -> KeyTransformExact:
        """Return the comparison, for which Django has to know the column first."""
        return KeyTransformExact(
            self.transform(self.key, F(self.column)).resolve_expression(*args, **kwargs), self.value
        )


def _has(argument: Argument) -> Q:
    """Return the condition that a job was enqueued with this argument: `5` is found as a number and as a text."""
    value = argument.value
    values = [value] if isinstance(value, str) else [value, _as_text(value)]
    found = Q()
    for each in values:
        found |= Q(Carries("kwargs", argument.name, each))
        if not argument.name.isascii():  # `enqueue` stores letters, Django's own field escapes
            found |= Q(Carries("kwargs", argument.name, each, UnescapedKey))
        for task_name, place in _places(argument.name):
            found |= Q(task_name=task_name) & Q(Carries("args", str(place), each))
    return found


def _as_text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _places(name: str) -> list[tuple[str, int]]:
    """Return the tasks that take an argument of this name by position, and at which place."""
    return [
        (task.name, task.positional_names.index(name))
        for task in registered().values()
        if name in task.positional_names
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


# --- reading what was stored ------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Return a text that every database takes."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is not a text.")
    value.encode()  # raises ValueError for half a surrogate pair
    if "\0" in value:
        raise ValueError("NUL")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r:.100} is not a number.")
    if abs(value) > LARGEST:
        raise ValueError("The number is too large.")
    return value


def _span(ends: Any) -> Span:
    return Span.between(*(end and datetime.fromisoformat(end) for end in ends))


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(_text, values))


def _statuses(values: Any) -> tuple[str, ...]:
    statuses = _texts(values)
    if wrong := set(statuses) - set(JobStatus.values):
        raise ValueError(f"There is no status {', '.join(wrong)}.")
    return statuses


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(_number, values)))


def _arguments(values: Any) -> tuple[Argument, ...]:
    return tuple(_argument(*each) for each in values)


def _argument(name: Any, value: Any) -> Argument:
    """Return an argument whose value is a scalar that JSON can carry."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value}.")
    if value is not None and not isinstance(value, float):
        value = _text(value) if isinstance(value, str) else _number(value)
    return Argument(_text(name), value)


#: How each criterion is made of its JSON; what is empty has not been stored.
_READ: dict[str, Callable[[Any], Any]] = {
    "statuses": _statuses,
    "errors": _texts,
    "arguments": _arguments,
    "ids": _numbers,
    "last_id": _number,
    "as_of": datetime.fromisoformat,
    **dict.fromkeys(("enqueued", "run", "finished"), _span),
    **dict.fromkeys(
        ("queue_name", "task_name", "task_contains", "worker_id", "worker_contains", "key", "without_task"), _text
    ),
}
