"""What people do to jobs and queues from outside. None of these verbs takes a job from a worker that holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models.functions import Coalesce

from gnlqueue.dialects import now as clock
from gnlqueue.exceptions import JobNotFound, WrongStatus
from gnlqueue.models import NOT_EFFECTS, WAITING, EntryStatus, Job, JobStatus, QueueState
from gnlqueue.options import Options, check_queue_name, check_run_after
from gnlqueue.queue import wakeups
from gnlqueue.queue.attempts import max_attempts
from gnlqueue.queue.claimed import ClaimedJob
from gnlqueue.queue.enqueueing import insert
from gnlqueue.queue.leaving import doubt_open_steps, send_ending, steps
from gnlqueue.queue.new_jobs import new_job
from gnlqueue.queue.transactions import alias_of, retried

CANCELLABLE = (JobStatus.SCHEDULED, JobStatus.READY, JobStatus.BLOCKED, JobStatus.DEAD)
RETRYABLE = (JobStatus.DEAD, JobStatus.CANCELLED)


class EnqueuedAgain(NamedTuple):
    """A job made from another, and the keys of the recorded effects of the old run that the new run will repeat."""

    job: Job
    repeats: list[str]


def get(job: Job | ClaimedJob | int, *, using: str | None = None) -> Job:
    """Return the job as it stands in the database now.

    Raises `JobNotFound` when there is none.
    """
    id, alias = _identify(job, using)
    found = Job.objects.using(alias).filter(pk=id).first()
    if found is None:
        raise JobNotFound(f"There is no job {id} on the database {alias!r}: it never existed, or it has been pruned.")
    return found


def cancel(job: Job | ClaimedJob | int, *, using: str | None = None, now: datetime | None = None) -> Job:
    """Cancel a job, and return it.

    A job that waits, is blocked or is dead is cancelled at once. A job in progress is asked to stop: its next context
    call raises `JobCancelled`; if its handler finishes first, the job is done.

    Raises `WrongStatus` for a job that is done already, `JobNotFound` for one that is gone.
    """
    id, alias = _identify(job, using)
    row = Job.objects.using(alias).filter(pk=id)
    at = clock(now)

    def write() -> int:
        return row.filter(status__in=CANCELLABLE).update(
            status=JobStatus.CANCELLED, finished_at=at, lease_expires_at=None, blocked_reason=None
        ) or row.with_status(JobStatus.IN_PROGRESS).update(cancel_requested_at=Coalesce("cancel_requested_at", at))

    # Once more where it moved between the two statements. Not for ever: in a transaction of the caller's `get` may see
    # the row as it was before.
    changed = retried(alias, write) or retried(alias, write)
    found = get(id, using=alias)
    if changed:
        send_ending(found, JobStatus(found.status), alias)
    return _expect(changed or found.status == JobStatus.CANCELLED, found, "cancelled", "it is finished")


def retry(job: Job | ClaimedJob | int, *, using: str | None = None, now: datetime | None = None) -> Job:
    """Make a dead or cancelled job ready again, its attempts counted from 0, and return it.

    Its journal is kept, so that steps recorded as done do not run again.

    Raises `WrongStatus` for a job in any other status, `JobNotFound` for one that is gone.
    """
    id, alias = _identify(job, using)
    row = Job.objects.using(alias).filter(pk=id, status__in=RETRYABLE)
    changed = retried(
        alias,
        lambda: row.update(
            status=JobStatus.READY,
            run_at=clock(now),
            attempts=0,
            crashes=0,
            finished_at=None,
            cancel_requested_at=None,
            unknown_since=None,
            blocked_reason=None,
        ),
    )
    found = _expect(changed, get(id, using=alias), "retried", "only dead and cancelled jobs can be")
    wakeups.wake(alias, [found.queue_name])
    return found


def reschedule(
    job: Job | ClaimedJob | int,
    run_after: datetime | timedelta,
    *,
    using: str | None = None,
    now: datetime | None = None,
) -> Job:
    """Let a waiting job start at another time (an aware datetime, or a timedelta from now), and return it.

    Raises `WrongStatus` for a job that does not wait, `JobNotFound` for one that is gone, `ValueError` for a time
    without a zone or a delay of more than a hundred years, `TypeError` for what is neither.
    """
    id, alias = _identify(job, using)
    check_run_after(run_after)
    run_at = run_after if isinstance(run_after, datetime) else clock(now, offset=run_after)
    row = Job.objects.using(alias).filter(pk=id, status__in=WAITING)
    changed = retried(alias, lambda: row.update(status=JobStatus.SCHEDULED, run_at=run_at))
    return _expect(changed, get(id, using=alias), "rescheduled", "only waiting jobs can be")


def unblock(job: Job | ClaimedJob | int, *, using: str | None = None, now: datetime | None = None) -> Job:
    """Make a blocked job ready, and return it; for whoever has settled what it waited for.

    Raises `WrongStatus` for a job that is not blocked, `JobNotFound` for one that is gone.
    """
    id, alias = _identify(job, using)
    row = Job.objects.using(alias).filter(pk=id).with_status(JobStatus.BLOCKED)
    changed = retried(alias, lambda: row.update(status=JobStatus.READY, run_at=clock(now), blocked_reason=None))
    found = _expect(changed, get(id, using=alias), "unblocked", "it is not blocked")
    wakeups.wake(alias, [found.queue_name])
    return found


def unblock_settled(job_id: int, *, alias: str) -> bool:
    """Make a blocked job ready if none of its steps is in doubt any more; tell whether it is.

    Part of the caller's transaction, which has locked the job's row. A job whose attempts are used up gets one more:
    somebody has just decided how it goes on.
    """
    blocked = Job.objects.using(alias).with_status(JobStatus.BLOCKED).filter(pk=job_id)
    job = blocked.first()
    if job is None or steps(job, EntryStatus.IN_DOUBT).exists():
        return False
    attempts = min(job.attempts, max_attempts(job) - 1)
    changed = blocked.update(status=JobStatus.READY, run_at=clock(), blocked_reason=None, attempts=attempts)
    wakeups.wake(alias, [job.queue_name])
    return changed == 1


def fail_blocked(job_id: int, reason: str, *, alias: str) -> bool:
    """Dead-letter a blocked job; what is in doubt stays so. Tell whether it was blocked.

    Part of the caller's transaction. A step that was caught in the middle, and not settled yet, is in doubt with it.
    """
    row = Job.objects.using(alias).filter(pk=job_id)
    dead = {"status": JobStatus.DEAD, "finished_at": clock(), "blocked_reason": None, "last_error": reason}
    if not row.with_status(JobStatus.BLOCKED).update(**dead):
        return False
    found = row.get()
    doubt_open_steps(found)
    send_ending(found, JobStatus.DEAD, alias)
    return True


def enqueue_again(
    job: Job | ClaimedJob | int,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    using: str | None = None,
    now: datetime | None = None,
) -> EnqueuedAgain:
    """Store a new job like an old one, with other arguments where they are given.

    The new job has a run of its own with an empty journal, so that the effects which the old run has recorded happen
    again: their keys are returned. Its `origin` is the old job, which stays as it is.

    Raises `JobNotFound` where the old job is gone, `PayloadError` for arguments that JSON cannot carry, `TypeError`
    when `args` is a string; under `STRICT_TRANSACTIONS` `EnqueuedOutsideTransaction`.
    """
    id, alias = _identify(job, using)
    old = get(id, using=alias)
    new = new_job(
        old.task_name,
        old.args if args is None else args,
        old.kwargs if kwargs is None else kwargs,
        Options(queue_name=old.queue_name, priority=old.priority, max_attempts=old.max_attempts),
        max_attempts=old.max_attempts,
        stored_options=old.options,
    )
    job = insert(new, alias, now, origin_id=old.pk)
    effects = steps(old, EntryStatus.DONE).exclude(kind__in=NOT_EFFECTS).order_by("position")
    return EnqueuedAgain(job, list(effects.values_list("key", flat=True)))


def pause(queue_name: str, *, using: str | None = None, now: datetime | None = None) -> None:
    """Let nothing more be claimed from a queue until it is resumed; what runs goes on.

    Raises `InvalidTask` for an invalid queue name.
    """
    alias = alias_of(using)
    state, _ = QueueState.objects.using(alias).get_or_create(queue_name=check_queue_name(queue_name))
    QueueState.objects.using(alias).filter(pk=state.pk).update(paused_at=Coalesce("paused_at", clock(now)))


def resume(queue_name: str, *, using: str | None = None) -> None:
    """Let workers claim from a paused queue again.

    Raises `InvalidTask` for an invalid queue name.
    """
    alias = alias_of(using)
    QueueState.objects.using(alias).filter(pk=check_queue_name(queue_name)).update(paused_at=None)
    wakeups.wake(alias, [queue_name])


def _identify(job: Job | ClaimedJob | int, using: str | None) -> tuple[int, str]:
    if isinstance(job, Job):
        return job.pk, using or alias_of(job._state.db)
    if isinstance(job, ClaimedJob):
        return job.id, using or job.database
    return job, alias_of(using)


def _expect(changed: object, job: Job, done: str, why: str) -> Job:
    if not changed:
        raise WrongStatus(f"{job} is {job.status} and cannot be {done}: {why}.")
    return job
