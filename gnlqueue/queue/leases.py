"""Keeping leases alive. No renewal waits for a row: one that is locked is left for the next beat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue import dialects
from gnlqueue.dialects import Held
from gnlqueue.dialects import now as clock
from gnlqueue.lengths import seconds
from gnlqueue.models import Job, JobStatus
from gnlqueue.queue.claimed import ClaimedJob, Pair, database_of, held, lost
from gnlqueue.queue.transactions import retried


def extend(claimed: ClaimedJob, lease: timedelta | float, *, now: datetime | None = None) -> ClaimedJob:
    """Renew the lease for `lease` seconds from now, and return the job with its new end.

    Raises `LeaseLost` or `JobNotFound` when the job is not held any more.
    """
    alias = database_of(claimed)
    length = timedelta(seconds=seconds(lease, "lease"))
    rows = Job.objects.using(alias).filter(held(claimed))
    if not retried(alias, lambda: rows.update(lease_expires_at=clock(now, offset=length))):
        raise lost(claimed)
    job = Job.objects.using(alias).only("lease_expires_at").get(pk=claimed.id)
    return claimed._replace(lease_expires_at=job.lease_expires_at or claimed.lease_expires_at)


def keep(claimed: ClaimedJob, lease: timedelta, *, unless_cancelled: bool) -> bool:
    """Renew the lease as part of the caller's transaction, and tell whether the job is held.

    The last statement of a transaction that writes something for the holder: what it wrote counts only with it. With
    `unless_cancelled` a job that somebody asked to cancel does not count as held.
    """
    rows = Job.objects.using(claimed.database).filter(held(claimed))
    if unless_cancelled:
        rows = rows.filter(cancel_requested_at__isnull=True)
    return rows.update(lease_expires_at=clock(offset=lease)) == 1


def renew(pairs: Sequence[Pair], lease: timedelta, *, alias: str) -> tuple[set[Pair], set[Pair]]:
    """Renew the leases of (job id, lease token) pairs; return which were renewed, and which are lost.

    In neither set: the row is locked by its own holder just now, and is renewed at the next beat.
    """
    if not pairs:
        return set(), set()
    return retried(alias, lambda: _renew(sorted(pairs), lease, alias))


def held_by(worker_id: str, *, alias: str) -> list[Pair]:
    """Return the (job id, lease token) pairs that a worker holds, also those of a claim whose answer it never got."""
    rows = Job.objects.using(alias).with_status(JobStatus.IN_PROGRESS).filter(worker_id=worker_id)
    return list(rows.values_list("id", "lease_token"))


def _renew(pairs: list[Pair], lease: timedelta, alias: str) -> tuple[set[Pair], set[Pair]]:
    connection, dialect = connections[alias], dialects.of(alias)
    write = f"UPDATE {Job._meta.db_table} SET lease_expires_at = {dialect.now(lease)} WHERE"
    if not dialect.locks_rows:
        guard, params = Held(pairs).as_sql(None, connection)
        with connection.cursor() as cursor:
            cursor.execute(f"{write} {guard}", params)
        renewed = _held_of(pairs, connection)
        return renewed, set(pairs) - renewed
    with transaction.atomic(using=alias):
        skip = connection.features.has_select_for_update_skip_locked
        renewed = _held_of(pairs, connection, f"ORDER BY id {connection.ops.for_update_sql(skip_locked=skip)}")
        if renewed:
            with connection.cursor() as cursor:
                places = ", ".join(["%s"] * len(renewed))
                cursor.execute(f"{write} id IN ({places})", sorted(id for id, _ in renewed))
    missing = sorted(set(pairs) - renewed)
    return renewed, set(missing) - _held_of(missing, connection) if missing else set()


def _held_of(pairs: list[Pair], connection: BaseDatabaseWrapper, end: str = "") -> set[Pair]:
    """Return those of the pairs that are held; `end` is how the SELECT ends.

    SQL, not a queryset: the heartbeat process, which does this, shares the memory of what it does not touch.
    """
    guard, params = Held(pairs).as_sql(None, connection)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id, lease_token FROM {Job._meta.db_table} WHERE {guard} {end}", params)
        return set(cursor.fetchall())
