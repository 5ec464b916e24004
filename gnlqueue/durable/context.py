"""`JobContext`: the run of a job, as a task that asks for it receives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import cached_property

from gnlqueue import queue
from gnlqueue.durable.effects import identity_of_job
from gnlqueue.durable.entries import Entry
from gnlqueue.durable.fences import JobFence
from gnlqueue.durable.run import Run
from gnlqueue.exceptions import JobGivenUp, JobSuspended
from gnlqueue.models import EntryStatus, Job, RunJournalEntry
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.attempts import max_attempts

current: ContextVar[JobContext | None] = ContextVar("gnlqueue_context", default=None)


class JobContext(Run):
    """The run of one attempt, passed as `context` to tasks with `takes_context=True`.

    `lease` is how long a journal write extends the job's lease; `stopping` says whether the worker shuts down, after
    which no step begins.
    """

    def __init__(self, claimed: ClaimedJob, lease: timedelta, stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__(
            claimed.run_id,
            JobFence(claimed, lease),
            settling=claimed.attempts > max_attempts(claimed.task_name, claimed.max_attempts),
        )
        self.claimed = claimed
        self._stopping = stopping

    @property
    def job_id(self) -> int:
        """The job's id."""
        return self.claimed.id

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 is the first."""
        return self.claimed.attempts

    @cached_property
    def job(self) -> Job:
        """The job's row, read when it is first asked for."""
        return queue.get(self.claimed)

    def begin_only_if_wanted(self, key: str) -> None:
        super().begin_only_if_wanted(key)
        if self._stopping():
            self.stop(JobSuspended("The worker shuts down: the run goes on elsewhere.", timedelta()))

    def check_journal(self, recorded: list[Entry]) -> None:
        if any(entry.lease_token >= self.claimed.lease_token for entry in recorded):
            self.stop(
                self.fence.why_lost()
                or JobGivenUp(
                    f"The run {self.run_id!r} has entries of claims that are still to come: its id was used before (a "
                    "sequence was reset, or a row deleted without its journal). Delete these entries, then retry."
                )
            )

    def _identity(self) -> str:
        return identity_of_job(self.run_id, self.claimed.enqueued_at)


def current_context() -> JobContext:
    """Return the context of the job that runs here, anywhere inside its task.

    Raises `LookupError` outside of a job.
    """
    context = current.get()
    if context is None:
        raise LookupError("No job runs here: current_context() is for code that a task calls.")
    return context


def with_open_step(claimed: Sequence[ClaimedJob]) -> set[str]:
    """Return the run ids of those jobs, all of one database, that have a step whose outcome is unknown."""
    if not claimed:
        return set()
    entries = RunJournalEntry.objects.using(claimed[0].database).filter(run_id__in=[each.run_id for each in claimed])
    unknown = [EntryStatus.STARTED, EntryStatus.IN_DOUBT]
    return set(entries.filter(status__in=unknown).values_list("run_id", flat=True))
