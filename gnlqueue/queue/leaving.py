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
from gnlqueue.queue.attempts import Failure, attempts_under, is_recorded, record_attempt
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
    to: JobStatus,
    changes: dict[str, Any],
    *,
    record: Failure | None = None,
    now: datetime | None = None,
) -> Job:
    """Give the job the status `to`, or make it cancelled where somebody asked for that, in one guarded UPDATE.

    It makes the other changes too, and in the same transaction the row of the failed attempt. Returns the job as it was
    written: after the commit it may be somebody else's at once.

    If it becomes dead, and an earlier attempt left a step open, nobody knows that step's outcome: it is then in doubt,
    and the job is blocked instead. (A job is dead with a step in doubt only where somebody has said so: a human by
    `FailJob`, or the code by `on_doubt="fail"`.)

    What is written already, under this token, counts as written: its commit succeeded, and only the acknowledgement was
    lost.

    Raises `LeaseLost` or `JobNotFound` when the job is not held.
    """
    alias = database_of(claimed)
    jobs = Job.objects.using(alias)
    changes = {**unless_cancelled(to, now), **changes}

    def write() -> Job | None:
        with transaction.atomic(using=alias):
            if not jobs.filter(held(claimed)).update(**changes):
                has_left = is_recorded(claimed, record) if record is not None else _has_left(claimed, to, changes)
                return _as_left(jobs.get(pk=claimed.id), claimed, to) if has_left else None
            if record is not None:
                record_attempt(claimed, record, alias=alias, now=now)
            if to == JobStatus.DEAD and doubt_open_steps(claimed, now):
                jobs.filter(pk=claimed.id).with_status(JobStatus.DEAD).update(
                    status=JobStatus.BLOCKED, blocked_reason="in_doubt", finished_at=None
                )
            return jobs.get(pk=claimed.id)

    job = retried(alias, write)
    if job is None:
        raise lost(claimed)
    return job


def _has_left(claimed: ClaimedJob, to: JobStatus, changes: dict[str, Any]) -> bool:
    """Tell whether its holder has written these changes before: whoever takes a job from its holder keeps a record.

    Only `release` keeps none, and that is for the holder itself, or for one that is gone. A job that others have made
    ready or claimed since is not recognised any more.
    """
    left = Job.objects.using(claimed.database).filter(
        pk=claimed.id,
        lease_token=claimed.lease_token,
        lease_expires_at=None,
        status__in=(to, JobStatus.CANCELLED),
        attempts=claimed.attempts - 1 if "attempts" in changes else claimed.attempts,
    )
    return left.exists() and not attempts_under(claimed).exists()


def _as_left(job: Job, claimed: ClaimedJob, to: JobStatus) -> Job:
    """Return the job with the status in which its holder left it: what others made of it since, they tell of."""
    ways = {to, JobStatus.BLOCKED} if to == JobStatus.DEAD else {to}
    if job.cancel_requested_at is not None:  # not set by who cancels a job that waits
        ways.add(JobStatus.CANCELLED)
    if job.lease_token != claimed.lease_token or job.status not in ways:
        job.status = to
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
