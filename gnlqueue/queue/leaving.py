"""How a holder lets a job go: one guarded UPDATE, and in the same transaction what is kept of the attempt.

The verbs in `transitions` say which columns change; here is what they have in common.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Case, DateTimeField, F, Q, QuerySet, Value, When

from gnlqueue import signals
from gnlqueue.dialects import now as clock
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry
from gnlqueue.queue.attempts import Failure, is_recorded, record_attempt
from gnlqueue.queue.claimed import ClaimedJob, database_of, held, lost
from gnlqueue.queue.transactions import is_manual, retried

NO_LEASE: dict[str, Any] = {"lease_expires_at": None}
GIVEN_BACK: dict[str, Any] = {**NO_LEASE, "attempts": F("attempts") - 1}

_ASKED_TO_CANCEL = Q(cancel_requested_at__isnull=False)


def unless_cancelled(status: JobStatus, now: datetime | None = None) -> dict[str, Any]:
    """Return the changes that make it this status, or `cancelled` where somebody asked for that while the job ran."""
    return {
        "status": Case(When(_ASKED_TO_CANCEL, then=Value(JobStatus.CANCELLED.value)), default=Value(status.value)),
        "finished_at": Case(When(_ASKED_TO_CANCEL, then=clock(now)), default=None, output_field=DateTimeField()),
    }


def steps(job: Job | ClaimedJob, status: EntryStatus) -> QuerySet[RunJournalEntry]:
    """Return the job's journal entries of one status."""
    alias = job.database if isinstance(job, ClaimedJob) else job._state.db
    return RunJournalEntry.objects.using(alias).filter(run_id=job.run_id, status=status)


def doubt_open_steps(job: Job | ClaimedJob, now: datetime | None = None) -> int:
    """Record that nobody knows the outcome of the job's steps that began and did not end; return how many."""
    return steps(job, EntryStatus.STARTED).update(status=EntryStatus.IN_DOUBT, finished_at=clock(now))


def leave(
    claimed: ClaimedJob,
    changes: dict[str, Any],
    *,
    record: Failure | None = None,
    for_good: bool = False,
    read: bool = False,
    now: datetime | None = None,
) -> Job | None:
    """Make one guarded UPDATE, and in the same transaction the row of the failed attempt.

    With `read` the job is returned as it was written: after the commit it may be somebody else's at once.

    With `for_good` the changes make the job dead. If an earlier attempt left a step open, nobody knows its outcome: the
    step is then in doubt, and the job is blocked instead. (A job is dead with a step in doubt only where somebody has
    said so: a human by `FailJob`, or the code by `on_doubt="fail"`.)

    A failed attempt that is recorded already, under its token, counts as written: its commit succeeded, and only the
    acknowledgement was lost.

    Raises `LeaseLost` or `JobNotFound` when the job is not held.
    """
    alias = database_of(claimed)
    jobs = Job.objects.using(alias)

    def write() -> tuple[bool, Job | None]:
        with transaction.atomic(using=alias):
            written = bool(jobs.filter(held(claimed)).update(**changes))
            if written and record is not None:
                record_attempt(claimed, record, alias=alias, now=now)
            if written and for_good and doubt_open_steps(claimed, now):
                jobs.filter(pk=claimed.id).with_status(JobStatus.DEAD).update(
                    status=JobStatus.BLOCKED, blocked_reason="in_doubt", finished_at=None
                )
            written = written or (record is not None and is_recorded(claimed, record))
            return written, jobs.get(pk=claimed.id) if written and read else None

    written, job = retried(alias, write)
    if not written:
        raise lost(claimed)
    return job


def send_ending(job: Job, status: JobStatus, alias: str) -> None:
    """Send the signal of a job that ended, or blocked, without a worker to say so; after the surrounding commit.

    Not in a transaction that is ended by hand, in which nothing says when that is.
    """
    if is_manual(alias):
        return
    said: dict[str, Any]
    if status == JobStatus.BLOCKED:
        signal, said = signals.job_blocked, {"reason": "in_doubt"}
    elif status in {JobStatus.DEAD, JobStatus.CANCELLED}:
        signal, said = signals.job_finished, {"status": status, "database": alias}
    else:
        return
    if signal.receivers:
        tell = partial(signals.send, signal, job_id=job.pk, task_name=job.task_name, **said)
        transaction.on_commit(tell, using=alias, robust=True)
