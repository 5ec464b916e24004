"""Enqueueing: the one INSERT that every way of making a job comes down to."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from django.db import IntegrityError, connections, transaction
from django.db.models.base import ModelState

from gnlqueue import dialects, payloads, signals
from gnlqueue.backoff import Backoff
from gnlqueue.conf import settings
from gnlqueue.dialects.base import INSERTED, NewRow
from gnlqueue.exceptions import EnqueuedOutsideTransaction, IdempotencyConflict
from gnlqueue.models import Job, JobStatus
from gnlqueue.options import Options
from gnlqueue.queue import wakeups
from gnlqueue.queue.transactions import alias_of, in_own_transaction, retried
from gnlqueue.registry import Call, check_name, dotted

BATCH = 500  # rows of one INSERT
BATCH_BYTES = 4 * 1024 * 1024  # of their arguments
MOST_OPTIONS = 100_000  # bytes

_DUPLICATE_KEY = 1062


class NewJob(NamedTuple):
    """A job about to be inserted, checked; `args` and `kwargs` also as the JSON text that is stored."""

    task_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    args_text: str
    kwargs_text: str
    options: dict[str, Any] | None
    max_attempts: int | None
    said: Options

    @property
    def key_hash(self) -> str | None:
        key = self.said.idempotency_key
        return None if key is None else hashlib.sha256(key.encode()).hexdigest()


def enqueue(
    task_name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    queue_name: str = "default",
    priority: int = 0,
    run_after: datetime | timedelta | None = None,
    max_attempts: int | None = 5,
    backoff: Backoff | None = None,
    timeout: timedelta | float | None = None,
    idempotency_key: str | None = None,
    using: str | None = None,
    now: datetime | None = None,
) -> Job:
    """Store a job for a task of any name, registered here or not, and return it.

    `run_after` is the earliest start: an aware datetime, or a timedelta from now. `timeout` is seconds of one attempt.
    `max_attempts` is the job's own number; with `None` it is what its task says.
    With an `idempotency_key` that has been used already, the job of that key is returned, with `created` False; a
    second inserter waits for the first one's transaction.

    Raises `InvalidTask` for an option out of range, `PayloadError` for arguments that JSON cannot carry,
    `IdempotencyConflict` when the key's job has another task or other arguments, `TypeError` when `args` is a text.
    """
    if isinstance(args, str | bytes):
        raise TypeError(f"args is a list or a tuple, not {args!r:.100}; a single argument is [{args!r:.100}].")
    said = Options(
        queue_name=queue_name,
        priority=priority,
        max_attempts=max_attempts,
        backoff=backoff,
        timeout=timeout,  # type: ignore[arg-type]  # Options makes seconds of it
        run_after=run_after,
        idempotency_key=idempotency_key,
    )
    options = _stored_options({"backoff": said.backoff, "timeout": said.timeout})
    return _insert_one(
        _new(check_name(task_name), args, kwargs or {}, said, max_attempts, options), alias_of(using), now
    )


def enqueue_call(call: Call) -> Job:
    """Store the job of a bound call; see `gnlqueue.registry.Task.enqueue`."""
    return _insert_one(_from_call(call), alias_of(call.task.options.database), None)


def enqueue_calls(calls: Iterable[Call]) -> list[int]:
    """Store the jobs of bound calls, all or none of each database's, and return their ids in order."""
    by_database: dict[str, tuple[list[int], list[NewJob]]] = {}  # with the places that they have here
    aliases = cache(alias_of)  # which asks the router
    total = 0
    for total, call in enumerate(calls, start=1):
        if not isinstance(call, Call):
            raise TypeError(f"enqueue_many() takes bound calls, made with task.bind(…), not {call!r}.")
        places, new = by_database.setdefault(aliases(call.task.options.database), ([], []))
        places.append(total - 1)
        new.append(_from_call(call))
    ids = [0] * total
    for database, (places, new) in by_database.items():
        for place, id in zip(places, _insert_many(new, database), strict=True):
            ids[place] = id
    return ids


def _from_call(call: Call) -> NewJob:
    task = call.task
    own = task.overrides  # only what this call changed is stored; the rest is the task's when the job runs
    return _new(task.name, call.args, call.kwargs, task.options, own.get("max_attempts"), _stored_options(own))


def _new(
    task_name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    said: Options,
    max_attempts: int | None,
    options: dict[str, Any] | None,
) -> NewJob:
    limit = settings().MAX_PAYLOAD_BYTES
    args, kwargs = list(args), dict(kwargs)
    return NewJob(
        task_name=task_name,
        args=args,
        kwargs=kwargs,
        args_text=payloads.encode(args, "args", limit=limit),
        kwargs_text=payloads.encode(kwargs, "kwargs", limit=limit),
        options=options,
        max_attempts=max_attempts,
        said=said,
    )


def _stored_options(own: Mapping[str, Any]) -> dict[str, Any] | None:
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


def _insert_one(new: NewJob, alias: str, now: datetime | None) -> Job:
    _warn_outside_transaction(alias)
    job = retried(alias, lambda: _insert(new, alias, now))
    if job.created:
        signals.send(signals.job_enqueued, job=job)
    return job


def _insert(new: NewJob, alias: str, now: datetime | None) -> Job:
    insert = _execute_insert if new.key_hash is None else _insert_unless_taken
    rows = insert([new], alias, now)
    if not rows:
        return _of_same_key(new, alias, now)
    wakeups.announce(alias, [new])  # before all else here: idle workers wait for it
    return _job(new, alias, rows[0])


def _insert_many(new: list[NewJob], alias: str) -> list[int]:
    _warn_outside_transaction(alias)
    ids, made = retried(alias, lambda: _insert_all(new, alias))
    if signals.job_enqueued.receivers:
        jobs = Job.objects.using(alias).in_bulk([ids[place] for place in made])
        for place in made:
            signals.send(signals.job_enqueued, job=jobs[ids[place]])
    return ids


def _insert_all(new: list[NewJob], alias: str) -> tuple[list[int], list[int]]:
    """Insert in batches, in one transaction; jobs with an idempotency key one by one.

    Returns the ids, and the places of those that are new.
    """
    ids = [0] * len(new)
    plain = [place for place, each in enumerate(new) if each.said.idempotency_key is None]
    made = set(plain)
    with transaction.atomic(using=alias):
        for places in _batches(plain, new):
            rows = _execute_insert([new[place] for place in places], alias, None, returned=("id",))
            for place, id in zip(places, sorted(row[0] for row in rows), strict=True):  # RETURNING has no order
                ids[place] = id
        wakeups.announce(alias, [new[place] for place in plain])
        for place, each in enumerate(new) if len(plain) < len(new) else ():
            if place not in made:
                job = _insert(each, alias, None)
                ids[place] = job.pk
                if job.created:
                    made.add(place)
    return ids, sorted(made)


def _batches(places: Sequence[int], new: Sequence[NewJob]) -> Iterator[list[int]]:
    """Group the places into INSERTs that are bounded in rows and in bytes."""
    batch: list[int] = []
    room = BATCH_BYTES
    for place in places:
        size = _bytes(new[place].args_text) + _bytes(new[place].kwargs_text)
        if batch and (len(batch) == BATCH or size > room):
            yield batch
            batch, room = [], BATCH_BYTES
        batch.append(place)
        room -= size
    if batch:
        yield batch


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _insert_unless_taken(new: Sequence[NewJob], alias: str, now: datetime | None) -> list[tuple[Any, ...]]:
    """Insert a job with a key; no row where the key is taken. The caller's transaction stays usable."""
    if connections[alias].vendor != "mysql":
        return _execute_insert(new, alias, now, unless_taken=True)
    try:
        with transaction.atomic(using=alias):  # not INSERT IGNORE, which also ignores what it had to cut
            return _execute_insert(new, alias, now)
    except IntegrityError as error:
        if error.args[0] != _DUPLICATE_KEY:
            raise
        return []


def _of_same_key(new: NewJob, alias: str, now: datetime | None) -> Job:
    with transaction.atomic(using=alias):
        rows = Job.objects.using(alias).filter(key_hash=new.key_hash)
        job = rows.first()
        if job is None and connections[alias].vendor == "mysql":
            job = _committed_meanwhile(new, alias)
    if job is None:  # pruned in between
        return _insert(new, alias, now)
    if job.task_name != new.task_name or not payloads.same([job.args, job.kwargs], [new.args, new.kwargs]):
        raise IdempotencyConflict(
            f"The idempotency key {new.said.idempotency_key!r} belongs to job {job.pk}, which runs {job.task_name} "
            f"with other arguments or is another task than {new.task_name}. One key is for one call of one task: put "
            "what makes the calls differ into the key."
        )
    return job


def _committed_meanwhile(new: NewJob, alias: str) -> Job | None:
    """Return the key's job, also one that the snapshot of a REPEATABLE READ transaction does not show yet."""
    sql = f"SELECT * FROM {Job._meta.db_table} WHERE key_hash = %s LOCK IN SHARE MODE"
    # Shared, as each that met the key holds such a lock already: two that asked for more would deadlock.
    return next(iter(Job.objects.using(alias).raw(sql, [new.key_hash])), None)


_RETURNED = ("id", "run_at", "enqueued_at")


def _execute_insert(
    new: Sequence[NewJob],
    alias: str,
    now: datetime | None,
    *,
    unless_taken: bool = False,
    returned: Sequence[str] = _RETURNED,
) -> list[tuple[Any, ...]]:
    """Run the INSERT and return these columns of each row, first the id; only that where a database returns nothing."""
    connection, dialect = connections[alias], dialects.of(alias)
    returning = dialect.supports_returning(connection)
    if len(new) > 1 and not returning:
        return [row for each in new for row in _execute_insert([each], alias, now)]
    source, params = dialect.new_rows(connection, [_row(each) for each in new], now)
    sql = f"INSERT INTO {Job._meta.db_table} ({', '.join(INSERTED)}) {source}"
    if unless_taken:
        sql += " ON CONFLICT (key_hash) WHERE key_hash IS NOT NULL DO NOTHING"
    with connection.cursor() as cursor:
        if not returning:
            cursor.execute(sql, params)
            return [(cursor.lastrowid,)]
        cursor.execute(f"{sql} RETURNING {', '.join(returned)}", params)
        return [(row[0], *map(dialect.time, row[1:])) for row in cursor.fetchall()]


def _row(new: NewJob) -> NewRow:
    said, run_after = new.said, new.said.run_after
    return NewRow(
        new.task_name,
        said.queue_name,
        new.args_text,
        new.kwargs_text,
        said.priority,
        _status(new),
        new.max_attempts,
        None if new.options is None else payloads.encode(new.options, "options", limit=MOST_OPTIONS),
        said.idempotency_key,
        new.key_hash,
        run_after if isinstance(run_after, datetime) else None,
        run_after if isinstance(run_after, timedelta) else timedelta(),
    )


_READY, _SCHEDULED = JobStatus.READY.value, JobStatus.SCHEDULED.value


def _status(new: NewJob) -> str:
    """A job that should wait is scheduled; `claim` promotes it when the database's clock says so."""
    return _READY if new.said.run_after is None else _SCHEDULED


def _job(new: NewJob, alias: str, row: tuple[Any, ...]) -> Job:
    """Return the inserted row as a `Job` without reading it again; what was not returned loads on access."""
    said = new.said
    job = Job.__new__(Job)  # `Job.from_db` sets one field after the other, which takes a tenth of the whole call
    job._state = ModelState()
    job._state.adding, job._state.db = False, alias
    job.__dict__.update(
        _AT_FIRST,
        **dict(zip(_RETURNED, row, strict=False)),
        task_name=new.task_name,
        queue_name=said.queue_name,
        args=new.args,
        kwargs=new.kwargs,
        priority=said.priority,
        status=_status(new),
        max_attempts=new.max_attempts,
        options=new.options,
        idempotency_key=said.idempotency_key,
        key_hash=new.key_hash,
        created=True,
    )
    return job


_AT_FIRST: dict[str, Any] = {
    **dict.fromkeys(("attempts", "crashes", "lease_token"), 0),
    **dict.fromkeys(
        (
            "lease_expires_at", "worker_id", "started_at", "last_attempted_at", "finished_at", "cancel_requested_at",
            "unknown_since", "blocked_reason", "progress", "origin_id", "result", "last_error",
        )
    ),
}  # fmt: skip


def _warn_outside_transaction(alias: str) -> None:
    """Tell of an enqueue that would survive the rollback of a transaction that is open on another database."""
    if len(connections.settings) == 1 or in_own_transaction(alias):
        return
    for other in connections.all(initialized_only=True):
        if other.alias != alias and in_own_transaction(other.alias):
            message = (
                f"A job is enqueued on the database {alias!r} while a transaction is open on {other.alias!r}, and not "
                f"on {alias!r}: if that transaction rolls back, the job runs all the same. Enqueue after it, with "
                f"transaction.on_commit(…, using={other.alias!r}), or open atomic(using={alias!r}) too."
            )
            if settings().STRICT_TRANSACTIONS:
                raise EnqueuedOutsideTransaction(message)
            warnings.warn(message, EnqueuedOutsideTransaction, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """Return the `stacklevel` with which a warning names the line outside of this package that led to it."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("gnlqueue."):
        frame, levels = frame.f_back, levels + 1
    return levels
