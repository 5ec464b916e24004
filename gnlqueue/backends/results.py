"""What a job is to Django: a `TaskResult`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from django.tasks import Task, TaskResult, TaskResultStatus, task_backends
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTask

from gnlqueue.exceptions import GnlqueueError, JobCancelled, dotted

if TYPE_CHECKING:
    from gnlqueue.models import Job, JobAttempt
    from gnlqueue.queue import ClaimedJob

P = ParamSpec("P")
R = TypeVar("R")

#: The key of the backend's alias in the job's options.
BACKEND = "backend"

STATUS = {
    "scheduled": TaskResultStatus.READY,
    "ready": TaskResultStatus.READY,
    "blocked": TaskResultStatus.READY,
    "in_progress": TaskResultStatus.RUNNING,
    "done": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}

#: Stands for the class where an attempt ended without an exception, for example because its worker died.
NO_EXCEPTION = dotted(GnlqueueError)


def result_of(job: Job, task: Task[P, R], backend: str) -> TaskResult[P, R]:
    """Return the result that a job is to Django."""
    failed = _failed_attempts(job)
    result = TaskResult(
        task=_task_of(job, task, backend),
        id=str(job.pk),
        status=STATUS[job.status],
        enqueued_at=job.enqueued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=job.last_attempted_at,
        args=job.args,
        kwargs=job.kwargs,
        backend=backend,
        errors=_errors(job, failed),
        worker_ids=_worker_ids(job, failed),
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def backend_of(options: Mapping[str, Any] | None, declared: Task[..., Any]) -> str:
    """Return the alias of a job's backend: that of the one that enqueued it, else that of the task's declaration.

    The latter where `gnlqueue.enqueue()` made the job, or where the backend is not in the settings any more.
    """
    alias = (options or {}).get(BACKEND)
    return alias if isinstance(alias, str) and alias in list(task_backends) else declared.backend


def as_claimed(claimed: ClaimedJob) -> Job:
    """Return the job as its claim left it, without reading it: a task without a database opens no connection."""
    from gnlqueue.models import Job

    row = claimed._asdict() | {"status": "in_progress", "finished_at": None, "result": None}
    if claimed.lease_token == 1:  # else it is read when it is asked for
        row["started_at"] = claimed.last_attempted_at
    names = [field.attname for field in Job._meta.concrete_fields if field.attname in row]
    return Job.from_db(claimed.database, names, [row[name] for name in names])


def _failed_attempts(job: Job) -> list[JobAttempt]:
    claims_before = job.lease_token - (job.status in ("in_progress", "done"))
    return list(job.failed_attempts.using(job._state.db).order_by("id")) if claims_before else []


def _errors(job: Job, failed: list[JobAttempt]) -> list[TaskError]:
    errors = [
        TaskError(exception_class_path=each.exception_class or NO_EXCEPTION, traceback=each.error) for each in failed
    ]
    if job.status == "cancelled":
        errors.append(TaskError(exception_class_path=dotted(JobCancelled), traceback="The job was cancelled."))
    elif job.status == "dead" and not errors:  # a human decided so while it was blocked
        errors.append(TaskError(exception_class_path=NO_EXCEPTION, traceback=job.last_error or ""))
    return errors


def _worker_ids(job: Job, failed: list[JobAttempt]) -> list[str]:
    """Return the worker of each attempt; what was given back counts as none."""
    worker_ids = [attempt.worker_id for attempt in failed]
    is_another = job.lease_token not in [attempt.lease_token for attempt in failed]
    if is_another and job.worker_id and job.status in ("in_progress", "done", "cancelled"):
        worker_ids.append(job.worker_id)
    return worker_ids


def _task_of(job: Job, task: Task[P, R], backend: str) -> Task[P, R]:
    """Return the task with what this call of it said; `run_after` is when it is to run next."""
    run_after = job.run_at if job.status == "scheduled" else None
    try:
        return replace(task, backend=backend, queue_name=job.queue_name, priority=job.priority, run_after=run_after)
    except InvalidTask:  # the backend's queues have changed since
        return task
