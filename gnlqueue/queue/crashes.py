"""Attempts that ended with their worker, and which job is to blame.

When a process dies that ran several jobs, nobody can tell which of them killed it. None of them pays for it with an
attempt, but each has one more crash to its name, and from the second in a row on a job runs alone: then a crash costs
an attempt. A job that had run to its end is not to blame while another one was running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

from django.db import transaction

from gnlqueue import backoff as backoffs
from gnlqueue.models import Job, JobQuerySet
from gnlqueue.queue import transitions, wakeups
from gnlqueue.queue.claimed import Pair, held_pairs
from gnlqueue.queue.transactions import retried
from gnlqueue.queue.transitions import LostAttempt

_COLUMNS = (
    "id", "task_name", "attempts", "max_attempts", "crashes", "cancel_requested_at", "lease_token", "worker_id",
    "last_attempted_at",
)  # fmt: skip


def end_lost_attempts(
    lost_rows: JobQuerySet,
    guard: JobQuerySet,
    *,
    alias: str,
    now: datetime | None = None,
    innocent: Collection[Pair] = (),
    lost_by_worker: Mapping[str | None, int],
) -> list[LostAttempt]:
    """End attempts whose worker is gone, inside the caller's transaction, and return them.

    `lost_rows` says which (and locks them where rows can be locked); `guard` is the condition that the UPDATE carries
    once more. A job goes back at once after its first crash, later with backoff. The crash is counted; the attempt
    counts only if the worker is not known to have held another job, those that are `innocent` left out.
    `lost_by_worker` is how many jobs each worker has lost, as far as the caller can see: that may be more than these
    rows.
    """
    rows = list(lost_rows.only(*_COLUMNS))
    to_blame = Counter(job.worker_id for job in rows if (job.pk, job.lease_token) not in innocent)
    to_blame |= Counter(lost_by_worker)  # the larger number of each
    ended = []
    for job in rows:
        crashes = job.crashes + 1
        delay = timedelta() if crashes == 1 else backoffs.DEFAULT.delay(crashes - 1)
        error = f"The worker {job.worker_id} died or lost contact while it held the job."
        guilty = False
        if (job.pk, job.lease_token) in innocent:
            error += " This job had run to its end, and another one was running: the attempt does not count."
        elif to_blame[job.worker_id] > 1:
            error += f" It held {to_blame[job.worker_id]} jobs, and nobody knows which did it: no attempt counts."
        else:
            guilty = True
        ended.append(
            transitions.end_attempt(job, guard, error, delay, alias=alias, now=now, crashes=crashes, counts=guilty)
        )
    return [each for each in ended if each is not None]


def end_crashed(worker_id: str, begun: Sequence[Pair], ended: Sequence[Pair] = (), *, alias: str) -> list[LostAttempt]:
    """End the attempts of a worker process that is known to be dead, without waiting for the leases to expire.

    `begun` and `ended` are (id, lease token) pairs: the jobs that were running, and those that had run to their end but
    whose outcome was not written. The latter are blamed only if nothing was running. Returns those that it ended. A job
    that is not held any more is left alone. So is one whose row is locked: call this again with the same pairs, because
    who is to blame depends on all of them.
    """
    innocent = set(ended) if begun else set()
    lost: dict[str | None, int] = {worker_id: len(begun or ended)}

    def end(free: JobQuerySet, mine: JobQuerySet) -> list[LostAttempt]:
        return end_lost_attempts(free, mine, alias=alias, innocent=innocent, lost_by_worker=lost)

    return _end_held([*begun, *ended], end, alias)


def end_overdue(pairs: Sequence[Pair], *, alias: str) -> list[LostAttempt]:
    """Fail attempts that ran over their timeout, so that their worker process was ended; return those that it failed.

    One that is not held any more is left alone, and so is one whose row is locked.
    """
    error = "It ran longer than its timeout and could not be interrupted; its worker process was ended."

    def end(free: JobQuerySet, mine: JobQuerySet) -> list[LostAttempt]:
        ended = [
            transitions.end_attempt(job, mine, error, backoffs.DEFAULT.delay(job.attempts), alias=alias)
            for job in free.only(*_COLUMNS)
        ]
        return [each for each in ended if each is not None]

    return _end_held(pairs, end, alias)


def _end_held(
    pairs: Sequence[Pair], end: Callable[[JobQuerySet, JobQuerySet], list[LostAttempt]], alias: str
) -> list[LostAttempt]:
    """End attempts in one transaction, and wake who may run the jobs again.

    `end` is called with those whose rows nobody else has locked, and with the guard.
    """
    if not pairs:
        return []
    mine = Job.objects.using(alias).filter(held_pairs(pairs)).order_by("id")

    def write() -> list[LostAttempt]:
        with transaction.atomic(using=alias):
            return end(mine.locked(), mine)

    ended = retried(alias, write)
    if ended:
        wakeups.wake(alias, [wakeups.ANY_QUEUE])
    return ended
