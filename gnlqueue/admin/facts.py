"""The state of the queues and their workers now. However many jobs there are, few rows are read, each by an index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from gnlqueue.admin import queue_names
from gnlqueue.admin.base import CAP, CappedCount
from gnlqueue.admin.looks import Count, First, FirstAmong, Question, ask
from gnlqueue.finding import order_of
from gnlqueue.models import (
    FINISHED,
    EntryStatus,
    Job,
    JobQuerySet,
    JobStatus,
    QueueState,
    RunJournalEntry,
    WorkerProcess,
)
from gnlqueue.options import QUEUE_NAME
from gnlqueue.queue.candidates import ORDER

MOST_WORKERS = 500  # that are shown
MOST_CURRENT_JOBS = 1000
LONGEST_UNKNOWN_BACKOFF = timedelta(minutes=6)  # a job of an unknown task comes back within five minutes and a bit
AMONG = 1000  # jobs that are due next, among which those of unknown tasks are looked for


class CurrentJob(NamedTuple):
    """A job in progress."""

    id: int
    task_name: str
    queue_name: str
    worker_id: str | None
    attempts: int
    last_attempted_at: datetime | None
    lease_expires_at: datetime | None


class CurrentTask(NamedTuple):
    """The jobs of one task that a worker works on, and the one that it began first."""

    name: str
    jobs: list[CurrentJob]
    oldest: CurrentJob


@dataclass
class Worker:
    """A registered worker process, whether it is heard from, and what it works on."""

    process: WorkerProcess
    live: bool
    jobs: list[CurrentJob] = field(default_factory=list)

    @property
    def queues(self) -> list[str]:
        """The names of the queues that it serves."""
        return [str(name) for name in self.process.queues]

    @property
    def tasks(self) -> list[CurrentTask]:
        """What it works on, by task; first what has been going on for longest."""
        jobs: defaultdict[str, list[CurrentJob]] = defaultdict(list)
        for job in sorted(self.jobs, key=lambda job: (job.last_attempted_at is None, job.last_attempted_at, job.id)):
            jobs[job.task_name].append(job)
        return [CurrentTask(name, its, its[0]) for name, its in jobs.items()]


@dataclass
class Workers:
    """The registered workers, live ones first, and the jobs that somebody else holds."""

    all: list[Worker]
    others: list[CurrentJob]
    cut: bool

    @property
    def live(self) -> list[Worker]:
        """Those that are heard from."""
        return [worker for worker in self.all if worker.live]

    def serving(self, queue_name: str) -> list[Worker]:
        """Return the live ones that serve a queue."""
        return [worker for worker in self.live if queue_name in worker.queues]


def read_workers(alias: str, now: datetime) -> Workers:
    """Read the registered workers and what they hold. One without a heartbeat for the length of its lease is silent."""
    processes = list(WorkerProcess.objects.using(alias).order_by("worker_id")[: MOST_WORKERS + 1])
    workers = [Worker(each, live=each.is_live(now)) for each in processes[:MOST_WORKERS]]
    in_progress = Job.objects.using(alias).with_status(JobStatus.IN_PROGRESS).order_by("queue_name", "id")
    jobs = [CurrentJob(*row) for row in in_progress.values_list(*CurrentJob._fields)[:MOST_CURRENT_JOBS]]
    by_id = {worker.process.worker_id: worker for worker in workers}
    others: list[CurrentJob] = []
    for job in jobs:
        worker = by_id.get(job.worker_id or "")
        (others if worker is None else worker.jobs).append(job)
    workers.sort(key=lambda worker: not worker.live)
    return Workers(workers, others, cut=len(processes) > MOST_WORKERS or len(jobs) == MOST_CURRENT_JOBS)


@dataclass
class Queue:
    """The state of a queue."""

    name: str
    ready: CappedCount
    due: CappedCount  # scheduled jobs that no claim has promoted yet
    scheduled: CappedCount
    running: CappedCount
    oldest: datetime | None
    unknown_task: str | None
    paused_at: datetime | None
    workers: list[Worker]

    @property
    def can_be_paused(self) -> bool:
        """Whether its name is a valid one: rows that were not stored by us may hold anything."""
        return QUEUE_NAME.fullmatch(self.name) is not None

    @property
    def waiting(self) -> CappedCount:
        """How many jobs could start now."""
        return self.ready.plus(self.due)

    @property
    def slots(self) -> int:
        """How many jobs its live workers can run at once."""
        return sum(worker.process.concurrency for worker in self.workers)

    @property
    def state(self) -> str:
        """Its state in one word, which has a badge."""
        if self.paused_at is not None:
            return "paused"
        return "running" if self.workers else "unserved"


class Queues(NamedTuple):
    """The state of the queues, and whether there are more than were read."""

    all: list[Queue]
    cut: bool


def read_queues(alias: str, now: datetime, workers: Workers) -> Queues:
    """Read the queues that a task, a worker or an operator names, and those in which jobs wait or run."""
    paused = dict(QueueState.objects.using(alias).values_list("queue_name", "paused_at"))
    still = [name for name, since in paused.items() if since is not None]
    served = {name for worker in workers.all for name in worker.queues}
    names, cut = queue_names.find(alias, still, {*served, *paused})
    scheduled = Job.objects.using(alias).with_status(JobStatus.SCHEDULED).order_by("run_at", "id")
    in_progress = Job.objects.using(alias).with_status(JobStatus.IN_PROGRESS).order_by("id")
    questions: dict[tuple[str, str], Question] = {}
    for name in names:
        its = scheduled.filter(queue_name=name)
        due = its.filter(run_at__lte=now)
        soon = its.filter(run_at__lte=now + LONGEST_UNKNOWN_BACKOFF)
        questions[name, "ready"] = Count(_ready(alias, name), CAP)
        questions[name, "due"] = Count(due)
        questions[name, "scheduled"] = Count(its.filter(run_at__gt=now))
        questions[name, "running"] = Count(in_progress.filter(queue_name=name))
        questions[name, "oldest_due"] = First(due, "run_at")
        questions[name, "unknown_task"] = FirstAmong(soon, "task_name", having="unknown_since", among=AMONG)
    answers = ask(alias, questions)
    oldest = _oldest_ready(alias, [name for name in names if answers[name, "ready"]])
    queues = [
        Queue(
            name=name,
            ready=answers[name, "ready"],
            due=answers[name, "due"],
            scheduled=answers[name, "scheduled"],
            running=answers[name, "running"],
            oldest=min(filter(None, (oldest.get(name), answers[name, "oldest_due"])), default=None),
            unknown_task=answers[name, "unknown_task"],
            paused_at=paused.get(name),
            workers=workers.serving(name),
        )
        for name in names
    ]
    return Queues(queues, cut)


def estimate_uncounted(queues: Queues, ready: CappedCount) -> None:
    """Estimate how many jobs are ready in the one queue that was not counted to its end: all less the others'.

    The database's statistics are right for one status; PostgreSQL's may be far off for one status in one queue.
    """
    beyond = [each for each in queues.all if each.ready.more]
    if len(beyond) == 1 and ready.estimate is not None and not queues.cut:
        (queue,) = beyond
        others = sum(each.ready.number for each in queues.all if each is not queue)
        number, roughly = queue.ready.number, ready.estimate - others
        queue.ready = CappedCount.of(number, number, lambda: roughly, more=True)


def _ready(alias: str, queue_name: str) -> JobQuerySet:
    return Job.objects.using(alias).with_status(JobStatus.READY).filter(queue_name=queue_name).order_by(*ORDER)


def _oldest_ready(alias: str, queue_names: Sequence[str]) -> dict[str, datetime]:
    """Return since when the longest waiting ready job of each queue has been due.

    The index has them by priority, then by time: so one row of each priority is read, one statement for all queues.
    """
    oldest: defaultdict[str, list[datetime]] = defaultdict(list)
    left = {name: _ready(alias, name) for name in queue_names}
    while left:
        questions: dict[tuple[str, str], Question] = {}
        for name, rows in left.items():
            questions[name, "priority"] = First(rows, "priority")
            questions[name, "run_at"] = First(rows, "run_at")
        answers = ask(alias, questions)
        for name in list(left):
            priority, run_at = answers[name, "priority"], answers[name, "run_at"]
            if run_at is None or priority is None:
                del left[name]
            else:
                oldest[name].append(run_at)
                left[name] = _ready(alias, name).filter(priority__lt=priority)
    return {name: min(times) for name, times in oldest.items()}


def count_statuses(alias: str) -> dict[str, CappedCount]:
    """Count, up to a cap, the jobs of each status, the steps `in_doubt` and the jobs blocked by a `mismatch`.

    A status with more than that costs another statement, which estimates how many.
    """
    jobs = Job.objects.using(alias)
    questions: dict[str, Question] = {}
    for status in JobStatus:
        its = jobs.with_status(status)
        rows = its.filter(finished_at__isnull=False) if status in FINISHED else its
        questions[status.value] = Count(rows.order_by(*order_of(status, alias)), CAP, like=its)
    in_doubt = RunJournalEntry.objects.using(alias).filter(status=EntryStatus.IN_DOUBT)
    questions["in_doubt"] = Count(in_doubt.order_by("started_at", "id"))
    blocked = jobs.with_status(JobStatus.BLOCKED)
    questions["mismatch"] = Count(blocked.filter(blocked_reason="mismatch").order_by("id"))
    return ask(alias, questions)
