"""Every error of gnlqueue, in two trees.

What callers catch::

    GnlqueueError(Exception)
    ├── InvalidTask            a function or an option that cannot be a task
    ├── UnknownTask            no task of that name is registered
    ├── DuplicateTask          two functions under one name
    ├── PayloadError           arguments or a result that cannot be carried as JSON
    ├── IdempotencyConflict    the key belongs to a job with another task or other arguments
    ├── LeaseLost              the caller does not hold the job any more
    ├── JobNotFound            the job's row is gone
    ├── RunLocked              somebody else holds the run lock
    ├── RunBlocked             a run outside a job has a step in doubt
    ├── StepFailed             a durable step failed
    ├── JournalMismatch        the journal holds another step under this key
    ├── AlreadyResolved        somebody else decided first
    ├── WrongStatus            the verb does not apply to a job in this status
    └── DatabaseNotReady       the queue's tables are missing

What a task may raise to decide for itself::

    Retry(Exception)           run this job again, later
    GiveUp(Exception)          do not run this job again

A warning, which is raised as an error under `GNLQUEUE["STRICT_TRANSACTIONS"]`::

    EnqueuedOutsideTransaction(UserWarning)

What stops a run from outside; only ever raised inside a job, where no `except Exception` swallows it::

    JobInterrupt(BaseException)
    ├── JobBlocked             a step is in doubt: the job waits for a human
    ├── JobSuspended           the run sleeps
    ├── JobPreempted           the lease is lost
    ├── JobCancelled           somebody asked to cancel
    ├── JobGivenUp             the run decided that the job fails for good
    └── JobTimedOut            the attempt ran longer than its `timeout`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from gnlqueue.lengths import seconds


class GnlqueueError(Exception):
    """Base of everything that callers of gnlqueue may want to catch."""


class InvalidTask(GnlqueueError):
    """A function, a name or an option that cannot make a task; raised where the task is declared."""


class UnknownTask(GnlqueueError):
    """No task of that name is registered in this process."""


class DuplicateTask(GnlqueueError):
    """Two functions were registered under one name."""


class PayloadError(GnlqueueError):
    """A value that cannot be carried as JSON, or is too large; the message names its path."""


class IdempotencyConflict(GnlqueueError):
    """The idempotency key belongs to a job with another task or other arguments."""


class LeaseLost(GnlqueueError):
    """The caller does not hold the job any more, so nothing was written; the message says who ended it."""


class JobNotFound(GnlqueueError):
    """There is no such job: it never existed, or it has been pruned."""


class RunLocked(GnlqueueError):
    """Somebody else holds the run lock."""


class RunBlocked(GnlqueueError):
    """A run outside a job has a step whose outcome is unknown."""


class StepFailed(GnlqueueError):
    """A durable step failed; it did not happen, except that an `idempotent_step` may have.

    `error_class` is the dotted name of the class of what the step raised, `classes` has those of its bases too, and
    `message` is its text; all are the same on the first run, where `__cause__` is the exception itself, and on replay.
    After a `final` failure no other attempt tries the step again.
    """

    def __init__(self, key: str, classes: Sequence[str], message: str, *, final: bool = False) -> None:
        self.key = key
        self.final = final
        self.classes = tuple(classes)
        self.error_class = self.classes[0] if self.classes else ""
        self.message = message
        super().__init__(f"The step {key!r} failed with {self.error_class}: {message}")

    def is_a(self, *classes: type[BaseException]) -> bool:
        """Tell whether what the step raised is of one of these classes; on replay too, where the exception is gone."""
        return any(dotted(kind) in self.classes for kind in classes)


class JournalMismatch(GnlqueueError):
    """The journal holds another kind of step, or other arguments, under this key."""


class AlreadyResolved(GnlqueueError):
    """Somebody else resolved this entry first."""


class WrongStatus(GnlqueueError):
    """The verb does not apply to a job in this status; nothing was changed."""


class DatabaseNotReady(GnlqueueError):
    """The database has not been migrated."""


class EnqueuedOutsideTransaction(UserWarning):
    """A job was enqueued on one database while a transaction was open on another, and so outlives its rollback."""


class Retry(Exception):
    """Raise inside a task to run the job again later; the attempt counts, and `max_attempts` still holds.

    `after` is the delay, a `timedelta` or a number of seconds. A negative one counts as 0: it was computed from a time
    that has passed. Without it the task's backoff decides.

    Raises `ValueError` for anything else, which makes it an ordinary failed attempt.
    """

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason or "the task asked to be retried")
        if isinstance(after, timedelta):
            after = after.total_seconds()
        if isinstance(after, int | float) and after < 0:
            after = 0
        self.after = None if after is None else seconds(after, "Retry(after=)")


class GiveUp(Exception):
    """Raise inside a task to dead-letter the job at once, whatever attempts it has left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task gave up")


class JobInterrupt(BaseException):
    """Base of what stops a run from outside. Do not catch it: it is a fact of the run, and is raised again."""


class JobBlocked(JobInterrupt):
    """The job waits for a human; `reason` is `in_doubt` or `mismatch`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class JobSuspended(JobInterrupt):
    """The run sleeps `until` a time, or for a length of time; no worker is held meanwhile."""

    def __init__(self, message: str, until: datetime | timedelta) -> None:
        super().__init__(message)
        self.until = until


class JobPreempted(JobInterrupt):
    """The lease is lost, and another worker may run the job; or a step could not be recorded for a whole lease."""


class JobCancelled(JobInterrupt):
    """Somebody asked to cancel the job while it ran."""


class JobGivenUp(JobInterrupt):
    """The run decided that the job fails for good: its attempts are used up, or a doubtful step says so."""


class JobTimedOut(JobInterrupt):
    """The attempt ran longer than its `timeout`; it counts as failed."""


def dotted(what: Callable[..., Any]) -> str:
    """Return the dotted name of a class or a function; by that name the class of an error is stored."""
    return f"{what.__module__}.{what.__qualname__}"
