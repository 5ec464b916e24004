"""Keeping leases alive. No renewal waits for a row: one that is locked is being written by its own holder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db import connections, transaction

from gnlqueue import dialects
from gnlqueue.backoff import seconds
from gnlqueue.dialects import now as clock
from gnlqueue.models import Job
from gnlqueue.queue.claimed import ClaimedJob, Pair, database_of, held, held_pairs, lost
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


def _renew(pairs: list[Pair], lease: timedelta, alias: str) -> tuple[set[Pair], set[Pair]]:
    mine = Job.objects.using(alias).filter(held_pairs(pairs))
    expires = clock(offset=lease)
    if not dialects.of(alias).locks_rows:
        mine.update(lease_expires_at=expires)
        renewed = set(mine.values_list("id", "lease_token"))
        return renewed, set(pairs) - renewed
    with transaction.atomic(using=alias):
        skip = connections[alias].features.has_select_for_update_skip_locked
        free = list(mine.order_by("id").select_for_update(skip_locked=skip).values_list("id", "lease_token"))
        if free:
            Job.objects.using(alias).filter(pk__in=[id for id, _ in free]).update(lease_expires_at=expires)
    renewed = set(free)
    return renewed, _lost(set(pairs) - renewed, alias)


def _lost(missing: Collection[Pair], alias: str) -> set[Pair]:
    if not missing:
        return set()
    held_still = Job.objects.using(alias).filter(held_pairs(list(missing)))
    return set(missing) - set(held_still.values_list("id", "lease_token"))
