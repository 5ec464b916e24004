"""Enqueueing: the one INSERT that every way of making a job comes down to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models.base import ModelState

from gnlqueue import dialects, payloads, signals
from gnlqueue.backoff import Backoff
from gnlqueue.dialects.base import INSERTED
from gnlqueue.exceptions import IdempotencyConflict
from gnlqueue.models import Job
from gnlqueue.options import Options
from gnlqueue.queue import wakeups
from gnlqueue.queue.new_jobs import NewJob, from_call, new_job, options_to_store
from gnlqueue.queue.transactions import alias_of, retried, warn_outside_transaction
from gnlqueue.registry import Call, check_name

BATCH = 500  # rows of one INSERT
BATCH_BYTES = 4 * 1024 * 1024  # of their arguments

_DUPLICATE_KEY = 1062


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

    `run_after` is the earliest start: an aware datetime, or a timedelta from now. `timeout` limits one attempt. With
    `max_attempts=None` the task decides. With an `idempotency_key` that has been used already, the job of that key is
    returned, with `created` False; a second inserter waits for the first one's transaction.

    Raises `InvalidTask` for an option out of range, `PayloadError` for arguments that JSON cannot carry,
    `IdempotencyConflict` when the key's job has another task or other arguments, `TypeError` when `args` is a string;
    under `STRICT_TRANSACTIONS` `EnqueuedOutsideTransaction`.
    """
    options = Options(
        queue_name=queue_name,
        priority=priority,
        max_attempts=max_attempts,
        backoff=backoff,
        timeout=timeout,  # type: ignore[arg-type]  # Options makes seconds of it
        run_after=run_after,
        idempotency_key=idempotency_key,
    )
    new = new_job(
        check_name(task_name),
        args,
        kwargs or {},
        options,
        max_attempts=max_attempts,
        stored_options=options_to_store({"backoff": options.backoff, "timeout": options.timeout}),
    )
    return insert(new, alias_of(using), now)


def enqueue_call(call: Call) -> Job:
    """Store the job of a bound call; see `gnlqueue.registry.Task.enqueue`."""
    return insert(from_call(call), alias_of(call.task.options.database))


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
        new.append(from_call(call))
    ids = [0] * total
    for database, (places, new) in by_database.items():
        for place, id in zip(places, _insert_many(new, database), strict=True):
            ids[place] = id
    return ids


def insert(new: NewJob, alias: str, now: datetime | None = None, *, origin_id: int | None = None) -> Job:
    """Store a job, and return it; where its idempotency key is taken, the job of that key.

    `origin_id` is the job that it is made from, if there is one.

    Raises `IdempotencyConflict` where that has another task or other arguments; under `STRICT_TRANSACTIONS`
    `EnqueuedOutsideTransaction`.
    """
    warn_outside_transaction(alias)
    write = _insert_or_get if origin_id is None else partial(_insert_made_from, origin_id)
    job = retried(alias, lambda: write(new, alias, now))
    if job.created:
        signals.send(signals.job_enqueued, job=job)
    return job


def _insert_made_from(origin_id: int, new: NewJob, alias: str, now: datetime | None) -> Job:
    with transaction.atomic(using=alias):
        job = _insert_or_get(new, alias, now)
        Job.objects.using(alias).filter(pk=job.pk).update(origin=origin_id)
    job.origin_id = origin_id
    return job


def _insert_or_get(new: NewJob, alias: str, now: datetime | None) -> Job:
    execute = _execute_insert if new.key_hash is None else _insert_unless_taken
    rows = execute([new], alias, now)
    if not rows:
        return _of_same_key(new, alias, now)
    wakeups.announce(alias, [new])  # before all else here: idle workers wait for it
    return _job(new, alias, rows[0])


def _insert_many(new: list[NewJob], alias: str) -> list[int]:
    warn_outside_transaction(alias)
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
    plain = [place for place, each in enumerate(new) if each.options.idempotency_key is None]
    keyed = [place for place, each in enumerate(new) if each.options.idempotency_key is not None]
    made = list(plain)
    with transaction.atomic(using=alias):
        for places in _batches(plain, new):
            rows = _execute_insert([new[place] for place in places], alias, None, returned=("id",))
            for place, id in zip(places, sorted(row[0] for row in rows), strict=True):  # RETURNING has no order
                ids[place] = id
        wakeups.announce(alias, [new[place] for place in plain])
        for place in keyed:
            job = _insert_or_get(new[place], alias, None)
            ids[place] = job.pk
            if job.created:
                made.append(place)
    return ids, sorted(made)


def _batches(places: Sequence[int], new: Sequence[NewJob]) -> Iterator[list[int]]:
    """Group the places into INSERTs that are bounded in rows and in bytes."""
    batch: list[int] = []
    room = BATCH_BYTES
    for place in places:
        size = payloads.size_of(new[place].args_text) + payloads.size_of(new[place].kwargs_text)
        if batch and (len(batch) == BATCH or size > room):
            yield batch
            batch, room = [], BATCH_BYTES
        batch.append(place)
        room -= size
    if batch:
        yield batch


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
        return _insert_or_get(new, alias, now)
    if job.task_name != new.task_name or not payloads.same([job.args, job.kwargs], [new.args, new.kwargs]):
        other = "has other arguments" if job.task_name == new.task_name else f"runs {job.task_name}"
        raise IdempotencyConflict(
            f"The idempotency key {new.options.idempotency_key!r} belongs to job {job.pk}, which {other}: "
            f"{new.task_name} was not enqueued. One key is for one call of one task: put what makes the calls differ "
            "into the key."
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
    source, params = dialect.new_rows(connection, [each.row() for each in new], now)
    sql = f"INSERT INTO {Job._meta.db_table} ({', '.join(INSERTED)}) {source}"
    if unless_taken:
        sql += " ON CONFLICT (key_hash) WHERE key_hash IS NOT NULL DO NOTHING"
    with connection.cursor() as cursor:
        if not returning:
            cursor.execute(sql, params)
            return [(cursor.lastrowid,)]
        cursor.execute(f"{sql} RETURNING {', '.join(returned)}", params)
        return [(row[0], *map(dialect.time, row[1:])) for row in cursor.fetchall()]


def _job(new: NewJob, alias: str, row: tuple[Any, ...]) -> Job:
    """Return the inserted row as a `Job` without reading it again; what was not returned loads on access."""
    options = new.options
    job = Job.__new__(Job)  # `Job.from_db` sets one field after the other, which takes a tenth of the whole call
    job._state = ModelState()
    job._state.adding, job._state.db = False, alias
    job.__dict__.update(
        _AT_FIRST,
        **dict(zip(_RETURNED, row, strict=False)),
        task_name=new.task_name,
        queue_name=options.queue_name,
        args=new.args,
        kwargs=new.kwargs,
        priority=options.priority,
        status=new.status,
        max_attempts=new.max_attempts,
        options=new.stored_options,
        idempotency_key=options.idempotency_key,
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
