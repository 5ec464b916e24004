"""`JobContext`: the run of a job, as a task that asks for it receives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import cached_property
from typing import Any

from gnlqueue import queue
from gnlqueue.durable import protocol
from gnlqueue.durable.effects import identity_of_job
from gnlqueue.durable.entries import Entry
from gnlqueue.durable.fences import JobFence
from gnlqueue.durable.run import Run
from gnlqueue.exceptions import JobGivenUp, JobSuspended
from gnlqueue.models import OUTCOME_UNKNOWN, Job, RunJournalEntry
from gnlqueue.queue import ClaimedJob, progress
from gnlqueue.queue.attempts import max_attempts
from gnlqueue.queue.transactions import in_own_transaction

current: ContextVar[JobContext | None] = ContextVar("gnlqueue_context", default=None)


class JobContext(Run):
    """The run of one attempt, passed as `context` to tasks with `takes_context=True`.

    `lease` is how long a journal write extends the job's lease; `stopping` tells whether the worker is shutting down:
    then no step begins.
    """

    def __init__(self, claimed: ClaimedJob, lease: timedelta, stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__(
            claimed.run_id,
            JobFence(claimed, lease),
            settling=claimed.attempts > max_attempts(claimed),
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

    def set_progress(self, value: Any) -> None:
        """Store how far the job has come: for `job.progress`, and for whoever looks at its page in the admin.

        Any value that JSON can carry, such as "120 of 500". It costs one small UPDATE and its commit, so call it every
        second rather than for each row. It stays until the next call, even in the next attempt; `None` removes it.

        Raises what `check` raises, so that a loop need not call both; `PayloadError` when JSON cannot carry the value;
        and `RuntimeError` inside `atomic()`, where nobody else would see it and a request to cancel would have to wait.
        """
        protocol.refuse_event_loop("set_progress")
        self._set_progress(value)

    async def aset_progress(self, value: Any) -> None:
        """Do what `set_progress` does, from asynchronous code."""
        await protocol.wait_for(self._set_progress, value)

    def _set_progress(self, value: Any) -> None:
        self._raise_if_stopped()
        if in_own_transaction(self.fence.database):
            raise RuntimeError(
                f"set_progress was called inside atomic() on {self.fence.database!r}: nobody else would see it before "
                "the commit, and a request to cancel would have to wait. Call it outside."
            )
        if not progress.set_progress(self.claimed, value):
            self._check()

    def check_may_begin(self, key: str) -> None:
        super().check_may_begin(key)
        if self._stopping():
            self.stop(JobSuspended("The worker is shutting down: the run goes on elsewhere.", timedelta()))

    def check_journal(self, recorded: list[Entry]) -> None:
        if any(entry.lease_token >= self.claimed.lease_token for entry in recorded):
            self.stop(
                self.fence.why_lost()
                or JobGivenUp(
                    f"The run {self.run_id!r} has entries of claims that are yet to come, so its id was used before (a "
                    "sequence was reset, or a row deleted without its journal). Delete these entries, then retry."
                )
            )

    def _identity(self) -> str:
        return identity_of_job(self.run_id, self.claimed.enqueued_at)


def current_context() -> JobContext:
    """Return the context of the job that is running here, from anywhere inside its task.

    Raises `LookupError` outside a job.
    """
    context = current.get()
    if context is None:
        raise LookupError("No job is running here: current_context() is for code that a task calls.")
    return context


def with_open_step(claimed: Sequence[ClaimedJob]) -> set[str]:
    """Return the run ids of those jobs, all of one database, that have a step whose outcome is unknown."""
    if not claimed:
        return set()
    entries = RunJournalEntry.objects.using(claimed[0].database).filter(run_id__in=[each.run_id for each in claimed])
    return set(entries.filter(status__in=OUTCOME_UNKNOWN).values_list("run_id", flat=True))
