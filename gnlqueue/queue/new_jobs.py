"""Jobs that are about to be inserted: checked, and in the form in which they will be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gnlqueue import payloads
from gnlqueue.conf import settings
from gnlqueue.dialects.base import NewRow
from gnlqueue.exceptions import dotted
from gnlqueue.models import JobStatus, key_hash_of
from gnlqueue.options import Options
from gnlqueue.registry import Call

MOST_OPTIONS = 100_000  # bytes

_READY, _SCHEDULED = JobStatus.READY.value, JobStatus.SCHEDULED.value


class NewJob(NamedTuple):
    """A job about to be inserted, checked; what is stored as JSON also as its text."""

    task_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    args_text: str
    kwargs_text: str
    options: Options
    stored_options: dict[str, Any] | None
    stored_options_text: str | None
    max_attempts: int | None

    @property
    def key_hash(self) -> str | None:
        """The hash by which the table knows the idempotency key."""
        key = self.options.idempotency_key
        return None if key is None else key_hash_of(key)

    @property
    def status(self) -> str:
        """Scheduled where it should wait; `claim` promotes it when the database's clock says so."""
        return _READY if self.options.run_after is None else _SCHEDULED

    def row(self) -> NewRow:
        """Return what the INSERT says of it."""
        options, run_after = self.options, self.options.run_after
        return NewRow(
            self.task_name,
            options.queue_name,
            self.args_text,
            self.kwargs_text,
            options.priority,
            self.status,
            self.max_attempts,
            self.stored_options_text,
            options.idempotency_key,
            self.key_hash,
            run_after if isinstance(run_after, datetime) else None,
            run_after if isinstance(run_after, timedelta) else timedelta(),
        )


def new_job(
    task_name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    *,
    max_attempts: int | None,
    stored_options: dict[str, Any] | None,
) -> NewJob:
    """Return a job to insert. The row keeps `max_attempts` and `stored_options`; the task has the rest when it runs.

    Raises `PayloadError` for arguments that JSON cannot carry, and for options that are too long; `TypeError` when
    `args` is a string.
    """
    if isinstance(args, str | bytes):
        raise TypeError(
            f"args must be a list or a tuple, not {args!r:.100}; pass a single argument as [{args!r:.100}]."
        )
    limit = settings().MAX_PAYLOAD_BYTES
    args, kwargs = list(args), dict(kwargs)
    return NewJob(
        task_name=task_name,
        args=args,
        kwargs=kwargs,
        args_text=payloads.encode(args, "args", limit=limit),
        kwargs_text=payloads.encode(kwargs, "kwargs", limit=limit),
        options=options,
        stored_options=stored_options,
        stored_options_text=None if stored_options is None else _options_text(stored_options),
        max_attempts=max_attempts,
    )


def _options_text(stored_options: dict[str, Any]) -> str:
    fewer = ": name fewer exception classes in retry_for and give_up_on."
    return payloads.encode(stored_options, "options", limit=MOST_OPTIONS, advice=fewer)


def from_call(call: Call) -> NewJob:
    """Return the job of a bound call.

    Raises `PayloadError` for arguments that JSON cannot carry.
    """
    task = call.task
    own = task.overrides  # only what this call changed is stored; the rest is the task's when the job runs
    return new_job(
        task.name,
        call.args,
        call.kwargs,
        task.options,
        max_attempts=own.get("max_attempts"),
        stored_options=options_to_store(own),
    )


def options_to_store(own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options that travel with the job, as JSON; exception classes by their dotted names."""
    if not own:
        return None
    options: dict[str, Any] = {}
    if own.get("backoff") is not None:
        options["backoff"] = own["backoff"].as_options()
    if own.get("timeout") is not None:
        options["timeout"] = own["timeout"]
    for name in ("retry_for", "give_up_on"):
        if own.get(name):
            options[name] = [dotted(each) for each in own[name]]
    return options or None
