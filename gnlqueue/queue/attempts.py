"""Attempts: how many a job has, how long it waits between them, and what is kept of a failed one."""

from __future__ import annotations

import traceback
from datetime import datetime
from typing import NamedTuple

from django.db.models import QuerySet

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


def max_attempts(job: Job | ClaimedJob) -> int:
    """Return how many attempts a job has: its own number, else its task's, else the setting's."""
    return max_attempts_if_known(job) or settings().MAX_ATTEMPTS


def max_attempts_if_known(job: Job | ClaimedJob) -> int | None:
    """Return how many attempts a job has; `None` where only a process that knows its task can tell."""
    if job.max_attempts is not None:
        return job.max_attempts
    task = find_task(job.task_name)
    return None if task is None else task.options.max_attempts or settings().MAX_ATTEMPTS


def backoff_of(claimed: ClaimedJob) -> Backoff:
    """Return how the job backs off: as its enqueuer said, else as its task says, else 1 s doubling to 60 s."""
    stored = (claimed.options or {}).get("backoff")
    if stored is not None:
        return Backoff(**stored)
    task = find_task(claimed.task_name)
    return backoffs.DEFAULT if task is None else task.options.backoff or backoffs.DEFAULT


class Failure(NamedTuple):
    """What is kept of a failed attempt: one line for `last_error`, the class of the exception, and its traceback."""

    reason: str
    exception_class: str = ""
    error: str = ""


def failure_of(reason: str | BaseException | Failure) -> Failure:
    """Describe why an attempt failed: a text as it is, an exception as `ClassName: message` and by its traceback.

    Never raises, whatever the exception does when it is asked for its text. That is its author's code, and may take its
    time.
    """
    if isinstance(reason, Failure):
        return reason
    if isinstance(reason, str):
        return Failure(payloads.scrub(reason, LONGEST_REASON), "", payloads.scrub(reason, LONGEST_ERROR))
    try:
        return Failure(
            payloads.scrub("".join(traceback.format_exception_only(reason)).strip(), LONGEST_REASON),
            dotted(type(reason))[:200],
            payloads.scrub("".join(traceback.format_exception(reason)), LONGEST_ERROR),
        )
    except Exception:
        return without_text(reason, "that cannot be shown")


def without_text(error: BaseException | str, why: str) -> Failure:
    """Return what is kept of an error whose text must be left out: its class, and why the text is missing."""
    name = type(error).__name__ if isinstance(error, BaseException) else "An error"
    text = payloads.scrub(f"{name}, with a text {why}", LONGEST_REASON)
    return Failure(text, "", text)


def record_attempt(job: Job | ClaimedJob, failure: Failure, *, alias: str, now: datetime | None) -> None:
    """Keep the row of an attempt that failed, as part of the transaction that ends it."""
    attempt = JobAttempt(
        job_id=job.id,
        number=job.attempts,
        lease_token=job.lease_token,
        worker_id=job.worker_id or "",
        started_at=job.last_attempted_at or clock(now),
        ended_at=clock(now),
        exception_class=failure.exception_class,
        error=failure.error,
    )
    attempt.save(using=alias, force_insert=True)


def is_recorded(claimed: ClaimedJob, failure: Failure) -> bool:
    """Tell whether the attempt is kept with this very failure: its holder has written it, not whoever rescued it."""
    rows = attempts_under(claimed).values_list("exception_class", "error")
    return (failure.exception_class, failure.error) in rows


def attempts_under(claimed: ClaimedJob) -> QuerySet[JobAttempt]:
    """Return what is kept of the attempt: nothing, if it has not failed and nobody else ended it."""
    return JobAttempt.objects.using(claimed.database).filter(job_id=claimed.id, lease_token=claimed.lease_token)
