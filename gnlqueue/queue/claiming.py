"""Claiming: promote what is due, rescue what was lost, then take the next ready jobs under a fresh lease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

from django.db import connections, transaction
from django.db.models import Q

from gnlqueue import dialects
from gnlqueue.dialects import now as clock
from gnlqueue.dialects.base import Candidates
from gnlqueue.lengths import seconds
from gnlqueue.models import Job, JobQuerySet, JobStatus, WorkerProcess
from gnlqueue.options import check_queue_name
from gnlqueue.queue import crashes
from gnlqueue.queue.candidates import Floor, compiled, compiled_one
from gnlqueue.queue.claimed import ClaimedJob
from gnlqueue.queue.transactions import alias_of, retried
from gnlqueue.queue.transitions import LostAttempt

#: Rows that one promotion or rescue takes at the most, so that a million due at one second do not stall a claim.
AT_ONCE = 200

#: For how long a job whose lease has run out is left to a worker that still beats.
LOCKED_AT_MOST = timedelta(hours=1)


def claim(
    queue_name: str = "default",
    *,
    worker_id: str,
    lease: timedelta | float = 60,
    using: str | None = None,
    now: datetime | None = None,
) -> ClaimedJob | None:
    """Claim the next job of a queue for `lease` seconds, or return `None` when there is none; see `claim_many`."""
    batch = claim_many(queue_name, worker_id=worker_id, lease=lease, limit=1, using=using, now=now)
    return batch[0] if batch else None


def claim_many(
    queue_name: str = "default",
    *,
    worker_id: str,
    lease: timedelta | float = 60,
    limit: int,
    using: str | None = None,
    now: datetime | None = None,
) -> list[ClaimedJob]:
    """Claim up to `limit` jobs of a queue for `lease` seconds each, in the order in which they are to run.

    Scheduled jobs that are due are promoted and expired leases are rescued first. Any number of workers may claim at
    once: no job is ever given to two. Each claim adds 1 to the job's attempts and to its lease token. A job that
    crashed its worker twice in a row is returned alone.

    Raises `InvalidTask` for an invalid queue name, `ValueError` for a limit, a lease or a worker id out of range.
    """
    alias = alias_of(using)
    _checked(queue_name, worker_id, lease, limit)
    promote([queue_name], alias=alias, now=now)
    rescue([queue_name], alias=alias, now=now)
    return claim_ready(queue_name, worker_id=worker_id, lease=lease, limit=limit, alias=alias, now=now)


def claim_ready(
    queue_name: str,
    *,
    worker_id: str,
    lease: timedelta | float,
    limit: int,
    alias: str,
    now: datetime | None = None,
    beyond: Floor | None = None,
) -> list[ClaimedJob]:
    """Do what `claim_many` does, without promoting and rescuing: for a worker that does these on its own schedule.

    With `beyond` only what has the priority of this floor and does not come before it; see `candidates`.
    """
    length = _checked(queue_name, worker_id, lease, limit)
    return _claim(compiled(alias, queue_name, limit, beyond), worker_id, length, alias, now)


def claim_one(id: int, queue_name: str, *, worker_id: str, lease: timedelta, alias: str) -> ClaimedJob | None:
    """Claim this job of a queue, or return `None` when it is not to be claimed now; one that is due is promoted."""
    due = Job.objects.using(alias).with_status(JobStatus.SCHEDULED).filter(pk=id, run_at__lte=clock())
    retried(alias, lambda: due.update(status=JobStatus.READY))
    return next(iter(_claim(compiled_one(alias, queue_name, id), worker_id, lease, alias, None)), None)


def _claim(which: Candidates, worker_id: str, lease: timedelta, alias: str, now: datetime | None) -> list[ClaimedJob]:
    dialect = dialects.of(alias)
    rows = retried(alias, lambda: dialect.claim(connections[alias], which, worker_id=worker_id, lease=lease, now=now))
    return [ClaimedJob.from_row(row, alias) for row in rows]


def _checked(queue_name: str, worker_id: str, lease: timedelta | float, limit: int) -> timedelta:
    """Return the length of the lease, or raise what a claim raises for arguments that make no sense."""
    check_queue_name(queue_name)
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit!r}.")
    if not worker_id or len(worker_id) > 100:
        raise ValueError(f"worker_id must be a string of 1 to 100 characters, not {worker_id!r}.")
    return timedelta(seconds=seconds(lease, "lease"))


def promote(queue_names: Sequence[str], *, alias: str, now: datetime | None = None) -> int:
    """Make scheduled jobs that are due ready, the longest due first, and return how many (at most 200 a queue)."""
    due = (name for name in queue_names if _first(_DUE, name, alias, now))
    return sum(retried(alias, partial(_promote, name, alias, now)) for name in due)


def _promote(queue_name: str, alias: str, now: datetime | None) -> int:
    due = Job.objects.using(alias).with_status(JobStatus.SCHEDULED).filter(run_at__lte=clock(now))
    due = due.filter(queue_name=queue_name).order_by("run_at", "id")
    with transaction.atomic(using=alias):
        ids = due.locked().values_list("id", flat=True)[:AT_ONCE]
        if not dialects.of(alias).locks_rows:  # SQLite: one statement, which takes the write lock before it reads
            return due.filter(pk__in=ids).order_by().update(status=JobStatus.READY)
        return Job.objects.using(alias).filter(pk__in=list(ids)).update(status=JobStatus.READY)


def rescue(queue_names: Sequence[str], *, alias: str, now: datetime | None = None) -> list[LostAttempt]:
    """Take jobs whose lease has expired from their worker, and return them (at most 200 a queue).

    Each goes back to the queue, or is dead or cancelled, as `crashes.end_lost_attempts` says. A row that is locked, by
    its owner or by somebody else's transaction, is left alone. So is one that was locked until now, so that its worker,
    which is alive, could not renew its lease: see `_of_live_workers`.
    """
    names = [name for name in queue_names if _first(_EXPIRED, name, alias, now)]
    if not names:
        return []
    expired = Job.objects.using(alias).with_status(JobStatus.IN_PROGRESS).filter(lease_expires_at__lt=clock(now))
    lost = [expired.filter(queue_name=name).order_by("id") for name in names]
    lost_by_worker: Counter[str | None] = Counter()
    for rows in lost if len(lost) > 1 else ():  # what a worker held in several queues it has lost together
        lost_by_worker.update(rows.values_list("worker_id", flat=True)[:AT_ONCE])
    rescued = (retried(alias, partial(_rescue, rows, lost_by_worker, alias, now)) for rows in lost)
    return list(chain.from_iterable(rescued))


def _rescue(
    expired: JobQuerySet, lost_by_worker: Mapping[str | None, int], alias: str, now: datetime | None
) -> list[LostAttempt]:
    with transaction.atomic(using=alias):
        rows = expired.exclude(_of_live_workers(alias, now)).locked()[:AT_ONCE]
        return crashes.end_lost_attempts(rows, expired, alias=alias, now=now, lost_by_worker=lost_by_worker)


def _of_live_workers(alias: str, now: datetime | None) -> Q:
    """Return the jobs of workers that have beaten since the jobs' leases ran out, and have not fallen silent since.

    A worker renews its leases before it notes its beat, but waits for no row: such a job's row was locked, for longer
    than a lease. The next beat renews it. If none does so for an hour, the worker does not hold the job, whatever it
    says.
    """
    at = now or dialects.read_clock(alias)
    kept = Q(pk__in=())  # none
    for worker in WorkerProcess.objects.using(alias):
        if worker.is_live(at):
            locked = Q(lease_expires_at__gt=at - LOCKED_AT_MOST, lease_expires_at__lt=worker.heartbeat_at)
            kept |= Q(worker_id=worker.worker_id) & locked
    return kept


#: What a worker looks for all the time, each by its index. Not by `EXISTS`, which has no order: without it PostgreSQL,
#: expecting to meet a row soon, reads the whole table.
_DUE = "status = 'scheduled' AND run_at <= {at} ORDER BY run_at, id"
_EXPIRED = "status = 'in_progress' AND lease_expires_at < {at} ORDER BY id"
_SCHEDULED = "status = 'scheduled' ORDER BY run_at, id"


def _first(
    which: str, queue_name: str, alias: str, now: datetime | None = None, columns: str = "id"
) -> tuple[Any, ...] | None:
    """Return the first row of a queue that is one of these; a look needs no lock.

    In SQL: what Django has for putting a query together would be two megabytes of each worker process.
    """
    connection = connections[alias]
    at, times = dialects.of(alias).at(connection, now)
    where = f"queue_name = %s AND {which.format(at=at)} LIMIT 1"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {Job._meta.db_table} WHERE {where}", [queue_name, *times])
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def seconds_until_due(queue_names: Sequence[str], *, alias: str) -> float | None:
    """Return how long it takes until the next scheduled job of these queues is due; `None` when there is none.

    Asked by an idle worker, so that it need not poll faster than jobs come.
    """
    dialect = dialects.of(alias)
    first = (_first(_SCHEDULED, name, alias, columns=f"run_at, {dialect.now()}") for name in queue_names)
    due = ((dialect.time(run_at) - dialect.time(now)).total_seconds() for run_at, now in filter(None, first))
    return min(due, default=None)
