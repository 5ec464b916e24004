"""`JobContext`: what a task that asks for it learns about the job it runs for."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cached_property

from gnlqueue import queue
from gnlqueue.exceptions import JobCancelled, JobInterrupt, JobNotFound, JobPreempted
from gnlqueue.models import Job, JobStatus
from gnlqueue.queue import ClaimedJob

_current: ContextVar[JobContext | None] = ContextVar("gnlqueue_context", default=None)


class JobContext:
    """The run of one attempt, passed as `context` to tasks with `takes_context=True`.

    An interrupt is a fact of the run: once `check()` has raised one, every later call raises it again, and the attempt
    ends with it, whatever the handler caught or returned.
    """

    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed = claimed
        self.interrupt: JobInterrupt | None = None

    @property
    def job_id(self) -> int:
        """The job's id."""
        return self.claimed.id

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 is the first."""
        return self.claimed.attempts

    @property
    def run_id(self) -> str:
        """The id of the durable run, the same over all attempts."""
        return self.claimed.run_id

    @cached_property
    def job(self) -> Job:
        """The job's row, read when it is first asked for."""
        return queue.get(self.claimed)

    def check(self) -> None:
        """Raise when this attempt should stop; call it in long loops, as often as a small query is affordable.

        Raises `JobCancelled` when somebody asked to cancel, `JobPreempted` when the lease is lost.
        """
        if self.interrupt is None:
            self.interrupt = self._interrupt_now()
        if self.interrupt is not None:
            raise self.interrupt

    def _interrupt_now(self) -> JobInterrupt | None:
        try:
            job = queue.get(self.claimed)
        except JobNotFound as gone:
            return JobPreempted(str(gone))
        if job.status != JobStatus.IN_PROGRESS or job.lease_token != self.claimed.lease_token:
            return JobPreempted(f"Job {job.pk} is not held under token {self.claimed.lease_token} any more. Stop here.")
        if job.cancel_requested_at is not None:
            return JobCancelled(f"Somebody asked to cancel job {job.pk} at {job.cancel_requested_at:%H:%M:%S} UTC.")
        return None


def current_context() -> JobContext:
    """Return the context of the job that runs here, anywhere inside its task.

    Raises `LookupError` outside of a job.
    """
    context = _current.get()
    if context is None:
        raise LookupError("No job runs here: current_context() is for code that a task calls.")
    return context
