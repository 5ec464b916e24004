"""Django's tasks in the worker: how they are found, what they receive, and the signals that tell of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, sync_to_async
from django.tasks import Task, TaskContext, task_backends
from django.tasks.signals import task_finished, task_started
from django.utils.json import normalize_json

from gnlqueue import registry
from gnlqueue.backends import results
from gnlqueue.options import Options

if TYPE_CHECKING:
    from gnlqueue.models import Job
    from gnlqueue.queue import ClaimedJob


@dataclass(frozen=True)
class JobTask(registry.Task[..., Any]):
    """A Django task as workers know it: inside its job it says that it starts, and receives Django's context."""

    declared: Task[..., Any] = field(kw_only=True)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; what a worker calls here is an attempt."""
        if self.is_async:
            return async_to_sync(self.acall)(*args, **kwargs)
        claimed = self._claimed()
        if claimed is None:
            return super().call(*args, **kwargs)
        return _plain(self._function()(*self._start(claimed, args), **kwargs))

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Do what `call` does, from asynchronous code."""
        if not self.is_async:
            return await sync_to_async(self.call)(*args, **kwargs)
        claimed = self._claimed()
        if claimed is None:
            return await super().acall(*args, **kwargs)
        arguments = await sync_to_async(self._start)(claimed, args)  # receivers may use the ORM
        return _plain(await self._function()(*arguments, **kwargs))

    def _claimed(self) -> ClaimedJob | None:
        """Return the job that runs here, if it is one of this task."""
        from gnlqueue.durable.context import current

        context = current.get()
        return context.claimed if context is not None and context.claimed.task_name == self.name else None

    def _start(self, claimed: ClaimedJob, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Send `task_started`, and return the arguments with Django's context in the place of ours."""
        backend = results.backend_of(claimed.options, self.declared)
        result = results.result_of(results.as_claimed(claimed), self.declared, backend)
        task_started.send_robust(type(task_backends[backend]), task_result=result)
        return (TaskContext(task_result=result), *args[1:]) if self.takes_context else args


def know(task: Task[..., Any], options: Options) -> None:
    """Register a task under the path of its function, unless it is; what `.using()` makes of it is the same task."""
    name = task.module_path
    before = known(name)
    if before is not None and before.func is task.func:
        return
    registry.register(
        JobTask(
            name=registry.check_name(name),
            func=task.func,
            takes_context=task.takes_context,
            options=replace(options, run_after=None),
            declared=task,
        )
    )


def known(name: str) -> JobTask | None:
    """Return the Django task that is registered under a name, if it is one."""
    found = registry.find_task(name)
    return found if isinstance(found, JobTask) else None


def send_finished(*, job_id: int, task_name: str, status: str, database: str, **_: Any) -> None:
    """Send `task_finished` for a job that is done or was cancelled."""
    task = known(task_name)
    if task is None or status == "dead":  # of which `send_failed` knows the exception
        return
    from gnlqueue.models import Job

    job = Job.objects.using(database).filter(pk=job_id, task_name=task_name).first()
    if job is not None:
        _send_finished(job, task)


def send_failed(*, job: ClaimedJob, error: BaseException | str, **_: Any) -> None:
    """Send `task_finished` for a job that is dead."""
    task = known(job.task_name)
    if task is None:
        return
    from gnlqueue.models import Job

    dead = Job.objects.using(job.database).filter(pk=job.id, lease_token=job.lease_token, status="dead").first()
    if dead is None:  # it runs again
        return
    if isinstance(error, str):
        _send_finished(dead, task)
        return
    traceback = error.__traceback__
    try:
        raise error  # Django's log shows the exception that is being handled
    except BaseException:
        _send_finished(dead, task)
    finally:
        error.__traceback__ = traceback


def _send_finished(job: Job, task: JobTask) -> None:
    backend = results.backend_of(job.options, task.declared)
    result = results.result_of(job, task.declared, backend)
    if result.is_finished:  # else somebody has retried it since
        task_finished.send_robust(type(task_backends[backend]), task_result=result)


def _plain(value: Any) -> Any:
    """Return what Django makes of a task's result; what it refuses is left to the worker, which says so."""
    try:
        return normalize_json(value)
    except Exception:
        return value
