"""gnlqueue: durable background jobs for Django, in the database your project already has.

    import gnlqueue

    @gnlqueue.task
    def send_receipt(order_id: int) -> None: ...

    send_receipt.enqueue(order.pk)

`gnlqueue.queue` has the verbs on jobs, `manage.py runworker` runs jobs. This module can be imported before Django's app
registry is ready; the names that need models are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnlqueue.answers import FailJob, GoOn, Happened, NotHappened, Unknown, UseRecorded
from gnlqueue.backoff import Backoff
from gnlqueue.exceptions import (
    AlreadyResolved,
    DatabaseNotReady,
    DuplicateTask,
    EnqueuedOutsideTransaction,
    GiveUp,
    GnlqueueError,
    IdempotencyConflict,
    InvalidTask,
    JobBlocked,
    JobCancelled,
    JobGivenUp,
    JobInterrupt,
    JobNotFound,
    JobPreempted,
    JobSuspended,
    JobTimedOut,
    JournalMismatch,
    LeaseLost,
    PayloadError,
    Retry,
    RunBlocked,
    RunLocked,
    StepFailed,
    UnknownTask,
    WrongStatus,
)
from gnlqueue.registry import Call, Task, aenqueue, enqueue, enqueue_many, external_task, task

if TYPE_CHECKING:
    from gnlqueue import queue
    from gnlqueue.durable.context import JobContext, current_context
    from gnlqueue.durable.locks import durable_run, run_lock
    from gnlqueue.durable.resolving import in_doubt, resolve
    from gnlqueue.durable.run import Run
    from gnlqueue.queue import ClaimedJob

__version__ = "0.1.0"

_LAZY = {
    "ClaimedJob": "gnlqueue.queue.claimed",
    "JobContext": "gnlqueue.durable.context",
    "Run": "gnlqueue.durable.run",
    "current_context": "gnlqueue.durable.context",
    "durable_run": "gnlqueue.durable.locks",
    "in_doubt": "gnlqueue.durable.resolving",
    "resolve": "gnlqueue.durable.resolving",
    "run_lock": "gnlqueue.durable.locks",
}


def __getattr__(name: str) -> Any:
    if name == "queue":
        return import_module("gnlqueue.queue")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AlreadyResolved",
    "Backoff",
    "Call",
    "ClaimedJob",
    "DatabaseNotReady",
    "DuplicateTask",
    "EnqueuedOutsideTransaction",
    "FailJob",
    "GiveUp",
    "GnlqueueError",
    "GoOn",
    "Happened",
    "IdempotencyConflict",
    "InvalidTask",
    "JobBlocked",
    "JobCancelled",
    "JobContext",
    "JobGivenUp",
    "JobInterrupt",
    "JobNotFound",
    "JobPreempted",
    "JobSuspended",
    "JobTimedOut",
    "JournalMismatch",
    "LeaseLost",
    "NotHappened",
    "PayloadError",
    "Retry",
    "Run",
    "RunBlocked",
    "RunLocked",
    "StepFailed",
    "Task",
    "Unknown",
    "UnknownTask",
    "UseRecorded",
    "WrongStatus",
    "aenqueue",
    "current_context",
    "durable_run",
    "enqueue",
    "enqueue_many",
    "external_task",
    "in_doubt",
    "queue",
    "resolve",
    "run_lock",
    "task",
]
