"""What has to be known to say why a job isn't running: a few short reads.

The place in the queue is looked for among the next thousand jobs, in the order in which they are claimed, which is
that of the claim's own index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.http import HttpRequest

from gnlqueue.models import OUTCOME_UNKNOWN, Job, JobStatus, QueueState, RunJournalEntry, StepKind, WorkerProcess
from gnlqueue.queue.candidates import ORDER

FARTHEST = 1000  # jobs before this one that are counted
MOST_WORKERS = 500  # rows that are read


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read besides the job itself, and for whom."""

    request: HttpRequest
    now: datetime
    job: Job
    entries: Sequence[RunJournalEntry] = ()  #: those that are open: started or in doubt
    mismatch: RunJournalEntry | None = None
    paused_at: datetime | None = None
    workers: Sequence[WorkerProcess] = ()
    before: int | None = None  #: jobs that are claimed first; `None`: more than were counted
    more_urgent: int = 0  #: those of them with a higher priority
    sleeping: RunJournalEntry | None = None

    @property
    def alive(self) -> list[WorkerProcess]:
        """The workers that have been heard from within their lease."""
        return [worker for worker in self.workers if worker.is_live(self.now)]

    @property
    def serving(self) -> list[WorkerProcess]:
        """Those of them that serve the job's queue."""
        return [worker for worker in self.alive if self.job.queue_name in (worker.queues or [])]

    def holder(self) -> WorkerProcess | None:
        """The row of the worker that had the job last."""
        return next((worker for worker in self.workers if worker.worker_id == self.job.worker_id), None)


def facts_of(
    request: HttpRequest,
    job: Job,
    now: datetime,
    *,
    mismatch: RunJournalEntry | None,
    last: RunJournalEntry | None,
    alias: str,
) -> Facts:
    """Read what the answer needs; nothing for a finished job. `last` is the newest entry of the job's journal."""
    if job.status in {JobStatus.DONE, JobStatus.CANCELLED}:
        return Facts(request, now, job)
    open_ones = RunJournalEntry.objects.using(alias).filter(run_id=job.run_id, status__in=OUTCOME_UNKNOWN)
    entries = list(open_ones.defer("result").order_by("position", "id")[:20])
    if job.status in {JobStatus.DEAD, JobStatus.BLOCKED}:
        return Facts(request, now, job, entries, mismatch)
    paused = QueueState.objects.using(alias).filter(pk=job.queue_name).values_list("paused_at", flat=True).first()
    workers = list(WorkerProcess.objects.using(alias).order_by("-heartbeat_at")[:MOST_WORKERS])
    before, more_urgent = _place(job, alias) if job.status == JobStatus.READY else (0, 0)
    sleeping = last if last is not None and last.kind == StepKind.SLEEP and job.status == JobStatus.SCHEDULED else None
    return Facts(request, now, job, entries, None, paused, workers, before, more_urgent, sleeping)


def _place(job: Job, alias: str) -> tuple[int | None, int]:
    ready = Job.objects.using(alias).with_status(JobStatus.READY).filter(queue_name=job.queue_name)
    first = ready.order_by(*ORDER).values_list("id", "priority")[: FARTHEST + 1]
    ids = list(first)
    more_urgent = sum(priority > job.priority for _id, priority in ids)
    found = [place for place, (id, _priority) in enumerate(ids) if id == job.pk]
    if not found and len(ids) <= FARTHEST:  # it has just been claimed: none came first
        return 0, 0
    return (found[0] if found else None), more_urgent
