"""Questions that people ask of the queue; no job's path leads through here."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Count, Q

from gnlqueue.dialects import now as clock
from gnlqueue.models import Job, JobQuerySet, JobStatus
from gnlqueue.options import check_queue_name
from gnlqueue.queue.transactions import alias_of

STATS = ("ready", "scheduled", "in_progress", "expired", "blocked", "done", "dead", "cancelled", "total")


def stats(queue_name: str | None = None, *, using: str | None = None, now: datetime | None = None) -> dict[str, int]:
    """Return how many jobs there are of each kind, of one queue or of all.

    A scheduled job that is due counts as `ready`, though no claim has promoted it yet; `expired` are those in progress
    whose lease has run out, and `in_progress` the others. Counts every row, which takes a while with millions of jobs.

    Raises `InvalidTask` for an invalid queue name.
    """
    jobs = Job.objects.using(alias_of(using))
    if queue_name is not None:
        jobs = jobs.filter(queue_name=check_queue_name(queue_name))
    at = clock(now)
    rows = jobs.values("status").annotate(
        all=Count("pk"),
        due=Count("pk", filter=Q(run_at__lte=at)),
        late=Count("pk", filter=Q(lease_expires_at__lt=at)),
    )
    found = {row["status"]: row for row in rows.order_by()}
    counts = {status: found[status]["all"] if status in found else 0 for status in JobStatus.values}
    due = found[JobStatus.SCHEDULED]["due"] if JobStatus.SCHEDULED in found else 0
    late = found[JobStatus.IN_PROGRESS]["late"] if JobStatus.IN_PROGRESS in found else 0
    counts["ready"] += due
    counts["scheduled"] -= due
    counts["in_progress"] -= late
    counts["expired"] = late
    counts["total"] = sum(counts.values())
    return {name: counts[name] for name in STATS}


def dead(queue_name: str | None = None, limit: int = 100, *, using: str | None = None) -> list[Job]:
    """Return dead-lettered jobs, newest first, at most `limit`; those of one queue if it is named.

    Raises `InvalidTask` for an invalid queue name.
    """
    return list(dead_letters(queue_name, None, using=using)[:limit])


def dead_letters(queue_name: str | None, task_name: str | None, *, using: str | None) -> JobQuerySet:
    """Return dead-lettered jobs, newest first, of a queue and of a task if these are named; not read yet."""
    jobs = Job.objects.using(alias_of(using)).with_status(JobStatus.DEAD).filter(finished_at__isnull=False)
    if queue_name is not None:
        jobs = jobs.filter(queue_name=check_queue_name(queue_name))
    if task_name is not None:
        jobs = jobs.filter(task_name=task_name)
    return jobs.order_by("-finished_at", "-id")
