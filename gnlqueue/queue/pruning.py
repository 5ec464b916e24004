"""Deleting jobs that finished long ago, each with everything that is kept of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Exists

from gnlqueue.dialects import now as clock
from gnlqueue.lengths import seconds
from gnlqueue.models import (
    FINISHED,
    OUTCOME_UNKNOWN,
    Job,
    JobAttempt,
    JobQuerySet,
    JobStatus,
    RunJournalEntry,
    RunLock,
    run_id_of,
    run_id_of_outer_job,
)
from gnlqueue.options import check_queue_name
from gnlqueue.queue.transactions import alias_of, retried

PRUNED = (JobStatus.DONE, JobStatus.CANCELLED)

BATCH = 500  # jobs deleted in one transaction
PAUSE = 0.05  # seconds between two, for everybody else


def prune(
    older_than: timedelta,
    *,
    statuses: Iterable[JobStatus] = PRUNED,
    queue_name: str | None = None,
    limit: int | None = None,
    using: str | None = None,
    now: datetime | None = None,
) -> int:
    """Delete jobs that finished longer ago than `older_than`, each with its journal, and return how many.

    Done and cancelled ones unless `statuses` says otherwise (dead ones are kept for a human). A job with an entry in
    doubt is never deleted. Works in small transactions with pauses between them, so that others get their turn; `limit`
    bounds the number of jobs.

    Raises `ValueError` for a status in which jobs are not finished, or a length of time that is negative or longer than
    a hundred years; `InvalidTask` for an invalid queue name.
    """
    alias = alias_of(using)
    age = timedelta(seconds=seconds(older_than, "older_than"))
    wanted = [JobStatus(status) for status in statuses]
    if not set(wanted) <= set(FINISHED):
        raise ValueError(f"Only done, cancelled and dead jobs are pruned, not {', '.join(wanted)}.")
    old = Job.objects.using(alias).filter(finished_at__lt=clock(now, offset=-age))
    if queue_name is not None:
        old = old.filter(queue_name=check_queue_name(queue_name))
    pruned = 0
    for status in wanted:
        while limit is None or pruned < limit:
            size = BATCH if limit is None else min(BATCH, limit - pruned)
            rows = _prunable(old.with_status(status)).order_by("finished_at", "id")
            batch = retried(alias, partial(_prune, rows, size, alias))
            pruned += batch
            if batch < size or pruned == limit:
                break
            time.sleep(PAUSE)
    return pruned


def _prunable(rows: JobQuerySet) -> JobQuerySet:
    unknown = RunJournalEntry.objects.filter(run_id=run_id_of_outer_job(), status__in=OUTCOME_UNKNOWN)
    return rows.filter(~Exists(unknown))


def _prune(rows: JobQuerySet, size: int, alias: str) -> int:
    with transaction.atomic(using=alias):
        # Locked, so that no job is retried between the deletion of its journal and its own.
        ids = list(rows.locked().values_list("id", flat=True)[:size])
        if not ids:
            return 0
        run_ids = [run_id_of(id) for id in ids]
        RunJournalEntry.objects.using(alias).filter(run_id__in=run_ids).delete()
        RunLock.objects.using(alias).filter(pk__in=[*map(RunLock.key, run_ids)], owner__isnull=True).delete()
        JobAttempt.objects.using(alias).filter(job_id__in=ids).delete()
        return Job.objects.using(alias).filter(pk__in=ids, status__in=FINISHED)._raw_delete(alias)
