"""Keeping leases alive. No renewal waits for a row: one that is locked is left for the next beat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connections, transaction

from gnlqueue import dialects
from gnlqueue.dialects import Held
from gnlqueue.dialects import now as clock
from gnlqueue.lengths import seconds
from gnlqueue.models import Job, JobStatus
from gnlqueue.queue.claimed import ClaimedJob, Pair, database_of, held, lost
from gnlqueue.queue.transactions import retried


def extend(claimed: ClaimedJob, lease: timedelta | float, *, now: datetime | None = None) -> ClaimedJob:
    """Renew the lease for `lease` seconds from now, and return the job with its new end.

    Raises `LeaseLost` or `JobNotFound` when the job is not held any more, `ValueError` for a lease out of range.
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


def renew(pairs: Sequence[Pair], lease: timedelta, *, alias: str) -> set[Pair]:
    """Renew the leases of those (job id, lease token) pairs that are held, and return them.

    One that is not among them is lost; or its row is locked just now, and it is renewed at the next beat.
    """
    return retried(alias, lambda: _renew(sorted(pairs), lease, alias)) if pairs else set()


def held_by(worker_id: str, *, alias: str) -> list[Pair]:
    """Return the (job id, lease token) pairs that a worker holds, also those of a claim whose answer it never got."""
    rows = Job.objects.using(alias).with_status(JobStatus.IN_PROGRESS).filter(worker_id=worker_id)
    return list(rows.values_list("id", "lease_token"))


def _renew(pairs: list[Pair], lease: timedelta, alias: str) -> set[Pair]:
    # SQL, not a queryset: the heartbeat process, which does this, shares the memory of what it does not touch.
    connection, dialect = connections[alias], dialects.of(alias)
    table, write = Job._meta.db_table, f"SET lease_expires_at = {dialect.now(lease)} WHERE"
    held_now, params = Held(pairs).as_sql(None, connection)
    if not dialect.locks_rows:
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} {write} {held_now} RETURNING id, lease_token", params)
            return set(cursor.fetchall())
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id, lease_token FROM {table} WHERE {held_now} ORDER BY id FOR UPDATE SKIP LOCKED", params
        )
        renewed = set(cursor.fetchall())
        if renewed:
            places = ", ".join(["%s"] * len(renewed))
            cursor.execute(f"UPDATE {table} {write} id IN ({places})", sorted(id for id, _ in renewed))
        return renewed
