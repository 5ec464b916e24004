"""Every guarded UPDATE by which a job leaves `in_progress`, side by side.

A holder's write carries the guard `held` (id, `in_progress`, lease token) in its one statement, and the number of rows
it changed is the answer. No read comes before a write that trusts it. Whatever ends an ownership makes the guard match
no row.

=================  ======================================================  ===================  =============
verb               to                                                      attempt              guard
=================  ======================================================  ===================  =============
complete           done                                                    counts               held
fail               scheduled; dead at max_attempts, blocked with a step    counts               held
                   in doubt; cancelled if asked
release            ready; cancelled if asked                               given back           held
put_off            scheduled; cancelled if asked                           given back           held
suspend            scheduled; cancelled if asked                           given back           held
block              blocked; ready where it was resolved meanwhile;         given back           held
                   cancelled if asked
confirm_cancel     cancelled                                               counts               held
postpone_unknown   scheduled; dead after a grace time, blocked with a      given back           held
                   step in doubt; cancelled if asked
end_attempt        ready or scheduled; dead at max_attempts, or once       counts, or is given  expired, held
                   more ready, then blocked, with a step in doubt;         back: see `crashes`
                   cancelled if asked
=================  ======================================================  ===================  =============
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Case, Value, When
from django.db.models.functions import Coalesce

from gnlqueue import dialects, payloads, signals
from gnlqueue.backoff import Backoff
from gnlqueue.conf import settings
from gnlqueue.dialects import now as clock
from gnlqueue.dialects.base import Done
from gnlqueue.lengths import seconds
from gnlqueue.models import EntryStatus, Job, JobQuerySet, JobStatus
from gnlqueue.options import check_run_after
from gnlqueue.queue import wakeups
from gnlqueue.queue.attempts import (
    LONGEST_REASON,
    Failure,
    backoff_of,
    failure_of,
    max_attempts,
    max_attempts_if_known,
    record_attempt,
)
from gnlqueue.queue.claimed import ClaimedJob, Pair, database_of, held, held_pairs, lost
from gnlqueue.queue.leaving import (
    GIVEN_BACK,
    NO_LEASE,
    doubt_open_steps,
    leave,
    send_ending,
    steps,
    unless_cancelled,
)
from gnlqueue.queue.transactions import retried


class LostAttempt(NamedTuple):
    """An attempt that ended with its worker, and what the job is now; `max_attempts` is `None` where nobody knows."""

    job_id: int
    task_name: str
    status: JobStatus
    number: int
    max_attempts: int | None
    error: str


_READY: dict[str, Any] = {"status": JobStatus.READY}


def complete(claimed: ClaimedJob, result: Any = None, *, now: datetime | None = None) -> None:
    """Record that the job is done, with its result (JSON).

    A lease that expired, but on which nobody acted, still counts: the guard decides, not the clock.

    Raises `PayloadError` when JSON cannot carry the result, `LeaseLost` or `JobNotFound` when the job is not held.
    """
    if complete_many([(claimed, result)], now=now):
        raise lost(claimed)


def complete_many(done: Sequence[tuple[ClaimedJob, Any]], *, now: datetime | None = None) -> list[ClaimedJob]:
    """Record that jobs of one database are done, in one transaction, and return those that were not held any more.

    One whose outcome is stored already, under its token, counts as recorded: that is what a commit looks like whose
    acknowledgement was lost.

    Raises `PayloadError` when JSON cannot carry a result.
    """
    if not done:
        return []
    alias = database_of(*(claimed for claimed, _ in done))
    most = settings().MAX_PAYLOAD_BYTES
    rows = [
        Done(*claimed.pair, None if result is None else payloads.encode(result, "result", limit=most))
        for claimed, result in done
    ]

    def write() -> list[ClaimedJob]:
        written = dialects.of(alias).complete(connections[alias], rows, now)
        return _unrecorded(done, alias) if written < len(done) else []

    return retried(alias, write)


def _unrecorded(done: Iterable[tuple[ClaimedJob, Any]], alias: str) -> list[ClaimedJob]:
    """Return the jobs that are not done under their holder's token: the write just before has found fewer than all."""
    tokens = dict(
        Job.objects.using(alias)
        .with_status(JobStatus.DONE)
        .filter(pk__in=[each.id for each, _ in done])
        .values_list("id", "lease_token")
    )
    return [claimed for claimed, _ in done if tokens.get(claimed.id) != claimed.lease_token]


def fail(
    claimed: ClaimedJob,
    reason: str | BaseException | Failure,
    *,
    backoff: Backoff | None = None,
    after: timedelta | float | None = None,
    final: bool = False,
    now: datetime | None = None,
) -> Job:
    """Record that the attempt failed: the job is scheduled again, or dead once `max_attempts` are used up.

    `reason` is a text or the exception, whose traceback is kept. The next attempt comes `after` a given delay, else
    after the `backoff` given here, or the job's, or the task's (1 s, doubling, at most 60 s, less some jitter). With
    `final` the job is dead at once. If somebody asked to cancel it meanwhile, it is cancelled instead.

    Raises `LeaseLost` or `JobNotFound` when the job is not held, `ValueError` for a delay out of range.
    """
    database_of(claimed)  # anything but a holder's proof is refused first
    failure = failure_of(reason)
    dead = final or claimed.attempts >= max_attempts(claimed)
    if after is not None:
        delay = timedelta(seconds=seconds(after, "after"))
    else:
        delay = (backoff or backoff_of(claimed)).delay(claimed.attempts)
    status = JobStatus.DEAD if dead else JobStatus.SCHEDULED
    changes: dict[str, Any] = {
        "crashes": 0,
        "unknown_since": None,
        "last_error": failure.reason,
        **NO_LEASE,
    }
    changes |= {"finished_at": clock(now)} if dead else {"run_at": clock(now, offset=delay)}
    return leave(claimed, status, changes, record=failure, now=now)


def release(claimed: ClaimedJob, *, now: datetime | None = None) -> None:
    """Give the job back without counting the attempt; it is ready at once.

    Raises `LeaseLost` or `JobNotFound` when the job is not held.
    """
    if release_many([claimed], now=now):
        raise lost(claimed)


def release_many(claimed: Sequence[ClaimedJob], *, now: datetime | None = None) -> int:
    """Give jobs of one database back without counting the attempts, and return how many were not held any more."""
    if not claimed:
        return 0
    alias = database_of(*claimed)
    return len(claimed) - release_pairs([each.pair for each in claimed], alias=alias, now=now)


def release_pairs(pairs: Sequence[Pair], *, alias: str, skip_locked: bool = False, now: datetime | None = None) -> int:
    """Give back the jobs of some (id, lease token) pairs without counting the attempts, and return how many.

    With `skip_locked` it waits for no row: one that is locked stays as it is.
    """
    if not pairs:
        return 0
    jobs = Job.objects.using(alias)
    somebody_listens = bool(signals.job_finished.receivers)
    at = dialects.read_clock(alias) if somebody_listens and now is None else now
    changes = {**unless_cancelled(JobStatus.READY, at), **GIVEN_BACK}

    def write() -> int:
        with transaction.atomic(using=alias):
            mine = jobs.filter(held_pairs(pairs))
            if skip_locked and dialects.of(alias).locks_rows:
                free = list(mine.order_by("id").locked().values_list("id", flat=True))
                mine = mine.filter(pk__in=free)
            released = mine.update(**changes)
            if released and somebody_listens:
                for job in jobs.with_status(JobStatus.CANCELLED).filter(pk__in=[id for id, _ in pairs], finished_at=at):
                    send_ending(job, JobStatus.CANCELLED, alias)
            return released

    released = retried(alias, write)
    if released:
        wakeups.wake(alias, [wakeups.ANY_QUEUE])
    return released


def put_off(claimed: ClaimedJob, delay: timedelta) -> None:
    """Give back a job that has not begun, to come again after a delay, without counting the attempt.

    Raises `LeaseLost` or `JobNotFound` when the job is not held.
    """
    job = leave(claimed, JobStatus.SCHEDULED, {"run_at": clock(offset=delay), **GIVEN_BACK})
    send_ending(job, JobStatus(job.status), claimed.database)


def suspend(claimed: ClaimedJob, until: datetime | timedelta, *, now: datetime | None = None) -> JobStatus:
    """Put the job to sleep until an aware datetime, or for a timedelta, without counting the attempt.

    Returns what the job is then: scheduled, or cancelled where somebody asked for that.

    Raises `LeaseLost` or `JobNotFound` when the job is not held, `ValueError` for a time without a zone or a delay of
    more than a hundred years, `TypeError` for what is neither.
    """
    check_run_after(until, "until")
    wakes = Value(until) if isinstance(until, datetime) else clock(now, offset=until)
    changes = {"run_at": wakes, "crashes": 0, "unknown_since": None, **GIVEN_BACK}
    return JobStatus(leave(claimed, JobStatus.SCHEDULED, changes, now=now).status)


def block(claimed: ClaimedJob, reason: str, error: str = "", *, now: datetime | None = None) -> JobStatus:
    """Let the job wait for a human, without counting the attempt; `reason` is `in_doubt` or `mismatch`.

    Returns what the job is then: blocked; ready where it is `in_doubt` but none of its steps is (any more); cancelled
    where somebody asked for that, and then the step stays in doubt.

    Raises `LeaseLost` or `JobNotFound` when the job is not held.
    """
    alias = database_of(claimed)
    jobs = Job.objects.using(alias)
    changes = {
        **unless_cancelled(JobStatus.BLOCKED, now),
        "blocked_reason": Case(When(cancel_requested_at__isnull=True, then=Value(reason)), default=None),
        "crashes": 0,
        "unknown_since": None,
        "last_error": payloads.scrub(error, LONGEST_REASON) or None,
        **GIVEN_BACK,
    }

    def write() -> JobStatus | None:
        with transaction.atomic(using=alias):
            blocked = jobs.filter(pk=claimed.id).with_status(JobStatus.BLOCKED)
            # The job's row first: whoever resolves locks it first too, so that one of us sees the other's work.
            if not jobs.filter(held(claimed)).update(**changes):
                # An earlier try may have been committed without our hearing of it.
                mine = blocked.filter(lease_token=claimed.lease_token, last_error=changes["last_error"])
                return JobStatus.BLOCKED if mine.exists() else None
            # No step is open any more: one that is not ended is of an earlier attempt, and this one left it out.
            doubt_open_steps(claimed, now)
            if reason == "in_doubt" and not steps(claimed, EntryStatus.IN_DOUBT).exists():
                most = max_attempts(claimed) - 1  # one is left to go on with
                ready = {**_READY, "blocked_reason": None, "attempts": min(claimed.attempts - 1, most)}
                if blocked.update(**ready):
                    return JobStatus.READY
            return JobStatus.BLOCKED if blocked.exists() else JobStatus.CANCELLED

    written = retried(alias, write)
    if written is None:
        raise lost(claimed)
    return written


def confirm_cancel(claimed: ClaimedJob, *, now: datetime | None = None) -> None:
    """Record that the job stopped because somebody asked to cancel it.

    Raises `LeaseLost` or `JobNotFound` when the job is not held.
    """
    leave(claimed, JobStatus.CANCELLED, {"finished_at": clock(now), "crashes": 0, **NO_LEASE})


def postpone_unknown(
    claimed: ClaimedJob, *, delay: timedelta, grace: timedelta, now: datetime | None = None
) -> JobStatus:
    """Schedule a job again whose task this process does not know, uncounted; dead once `grace` has passed.

    During a rolling deploy old workers meet new tasks; the new workers will know them. Returns what the job is then:
    scheduled; dead, or blocked with a step in doubt; cancelled where somebody asked for that.

    Raises `LeaseLost` or `JobNotFound` when the job is not held.
    """
    since = claimed.unknown_since
    dead = since is not None and claimed.last_attempted_at - since > grace
    error = f"No worker has known the task {claimed.task_name!r}" + (
        f" since {since:%Y-%m-%d %H:%M:%S} UTC." if since else "."
    )
    changes: dict[str, Any] = {
        "last_error": error,
        "unknown_since": Coalesce("unknown_since", clock(now)),
        **GIVEN_BACK,
    }
    changes |= {"finished_at": clock(now)} if dead else {"run_at": clock(now, offset=delay)}
    status = JobStatus.DEAD if dead else JobStatus.SCHEDULED
    record = failure_of(error) if dead else None
    return JobStatus(leave(claimed, status, changes, record=record, now=now).status)


def end_attempt(
    job: Job,
    guard: JobQuerySet,
    error: str,
    delay: timedelta,
    *,
    alias: str,
    now: datetime | None = None,
    crashes: int = 0,
    counts: bool = True,
) -> LostAttempt | None:
    """End an attempt whose worker is gone, inside the caller's transaction; `None` where `guard` matches it no more.

    Attempts left: the job goes back after `delay`, at once without one. None left: dead. Cancel was asked for:
    cancelled. It is kept as a `JobAttempt`; `counts` says whether it counts.
    """
    most = max_attempts_if_known(job)
    used = job.attempts if counts else job.attempts - 1
    if job.cancel_requested_at is not None:
        changes: dict[str, Any] = {"status": JobStatus.CANCELLED, "finished_at": clock(now)}
    elif most is None or used < most:  # None: a worker that knows the task will say how many it has
        changes = {"status": JobStatus.SCHEDULED, "run_at": clock(now, offset=delay)} if delay else _READY
    elif steps(job, EntryStatus.STARTED).exists():
        # One more claim, only to settle what became of the step that was caught in the middle; then a human does.
        settled_in_vain = used > most
        changes = {"status": JobStatus.BLOCKED, "blocked_reason": "in_doubt"} if settled_in_vain else _READY
    else:
        changes = {"status": JobStatus.DEAD, "finished_at": clock(now)}
    changes = {**changes, "attempts": used, "crashes": crashes, "unknown_since": None, "last_error": error, **NO_LEASE}
    written = guard.filter(pk=job.pk, lease_token=job.lease_token).order_by().update(**changes)
    if not written:
        return None
    status = JobStatus(changes["status"])
    record_attempt(job, failure_of(error), alias=alias, now=now)
    if status in {JobStatus.BLOCKED, JobStatus.CANCELLED}:
        doubt_open_steps(job, now)
    send_ending(job, status, alias)
    return LostAttempt(job.pk, job.task_name, status, job.attempts, most, error)
