"""Attempts: how many a job has, how long it waits between them, and what is kept of a failed one."""

from __future__ import annotations

import traceback
from datetime import datetime

from gnlqueue import backoff as backoffs
from gnlqueue import payloads
from gnlqueue.backoff import Backoff
from gnlqueue.conf import settings
from gnlqueue.dialects import now as clock
from gnlqueue.exceptions import dotted
from gnlqueue.models import Job, JobAttempt
from gnlqueue.queue.claimed import ClaimedJob
from gnlqueue.registry import find_task

LONGEST_ERROR = 20_000  # characters kept of a traceback
LONGEST_REASON = 2_000  # characters kept in the job's last_error


def max_attempts(task_name: str, own: int | None) -> int:
    """Return how many attempts a job has: its own number, else its task's, else the setting's."""
    return max_attempts_if_known(task_name, own) or settings().MAX_ATTEMPTS


def max_attempts_if_known(task_name: str, own: int | None) -> int | None:
    """Return how many attempts a job has; `None` where only a process that knows its task can tell."""
    if own is not None:
        return own
    task = find_task(task_name)
    return None if task is None else task.options.max_attempts or settings().MAX_ATTEMPTS


def backoff_of(claimed: ClaimedJob) -> Backoff:
    """Return how the job backs off: as its enqueuer said, else as its task says, else 1 s doubling to 60 s."""
    stored = (claimed.options or {}).get("backoff")
    if stored is not None:
        return Backoff(**stored)
    task = find_task(claimed.task_name)
    return backoffs.DEFAULT if task is None else task.options.backoff or backoffs.DEFAULT


def describe(reason: str | BaseException) -> str:
    """Return one line for `last_error`: a text as it is, an exception as `ClassName: message`."""
    if isinstance(reason, BaseException):
        reason = "".join(traceback.format_exception_only(reason)).strip()
    return payloads.scrub(reason, LONGEST_REASON)


def record_attempt(job: Job | ClaimedJob, reason: str | BaseException, *, alias: str, now: datetime | None) -> None:
    """Keep the row of an attempt that failed, as part of the transaction that ends it."""
    exception_class, error = _kept(reason)
    attempt = JobAttempt(
        job_id=job.id,
        number=job.attempts,
        lease_token=job.lease_token,
        worker_id=job.worker_id or "",
        started_at=job.last_attempted_at or clock(now),
        ended_at=clock(now),
        exception_class=exception_class,
        error=error,
    )
    attempt.save(using=alias, force_insert=True)


def is_recorded(claimed: ClaimedJob, reason: str | BaseException) -> bool:
    """Tell whether the attempt is kept with this very reason: its holder has written it, and not whoever rescued it."""
    rows = JobAttempt.objects.using(claimed.database).filter(job_id=claimed.id, lease_token=claimed.lease_token)
    return _kept(reason) in rows.values_list("exception_class", "error")


def _kept(reason: str | BaseException) -> tuple[str, str]:
    """Return what is kept of a reason: the class of an exception, and the text or the traceback."""
    if isinstance(reason, str):
        return "", payloads.scrub(reason, LONGEST_ERROR)
    error = "".join(traceback.format_exception(reason))
    return dotted(type(reason))[:200], payloads.scrub(error, LONGEST_ERROR)
