"""A backend for Django's own tasks (`django.tasks`, Django 6.0 and later): they become jobs, and `runworker` runs them.

    TASKS = {"default": {"BACKEND": "gnlqueue.backends.GnlqueueBackend", "QUEUES": ["default", "emails"]}}

A job's row carries the name of the function, never code. A function is known by that name once the module that
declares it is imported, because Django shows each `Task` that it makes to its backend; apps' `tasks.py` are imported
when the app registry is ready. Those that they declare for another backend are known too, for `.using(backend=…)`.

No model is imported here before it is needed: tasks are declared before the app registry is ready.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from gnlqueue import exceptions, registry, signals
from gnlqueue.conf import suggestion
from gnlqueue.ids import parse_id
from gnlqueue.options import Options, check_queue_name

if django.VERSION < (6, 0):
    raise ImproperlyConfigured(
        f"gnlqueue.backends is for Django's own tasks, which came with Django 6.0; this is {django.get_version()}. "
        "@gnlqueue.task works with every Django."
    )

from django.tasks import Task, TaskResult, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils.json import normalize_json

from gnlqueue.backends import results, running

P = ParamSpec("P")
R = TypeVar("R")

OPTIONS = ("database", "max_attempts")


class GnlqueueBackend(BaseTaskBackend):
    """Enqueue Django's tasks as jobs.

    `OPTIONS` may have `database`, an alias (default: the queue's), and `max_attempts` (default: the setting's; with 1
    a task that failed never runs again). A worker without `--queues` serves all `QUEUES`.

    1. An enqueued task commits or rolls back with the transaction around it.
    2. A failed attempt is followed by another, with backoff; until then the result is READY, and has the error. It is
       SUCCESSFUL when the job is done, FAILED when it is dead or cancelled.
    3. A job that is blocked is READY too: nothing runs, nothing is finished, and it runs once a human has decided.
    4. A task that returns what JSON cannot carry is SUCCESSFUL with `None`, like all our tasks: its work is done, and
       failing it would mean doing it twice.
    5. `task_enqueued` is sent in the enqueuer's transaction, `task_started` at each attempt, `task_finished` once the
       final outcome is stored, unless the worker died and nobody is left to send it. What a receiver raises is logged.

    Inside a task, `gnlqueue.current_context()` is its durable run, with steps.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database, self.max_attempts = self._checked_options()
        registry.serve_queues(self.queues)
        signals.job_finished.connect(running.send_finished, dispatch_uid="gnlqueue.backends")
        signals.job_attempt_failed.connect(running.send_failed, dispatch_uid="gnlqueue.backends")

    def validate_task(self, task: Task[P, R]) -> None:
        """Make the task known to this process, and so to its workers.

        Django asks for every `Task` that it makes, and `enqueue` asks once more: the settings may have changed since.

        Raises `django.tasks.exceptions.InvalidTask` for one that no job can carry.
        """
        super().validate_task(task)
        try:
            running.know(task, self._options_of(task))
        except (exceptions.InvalidTask, exceptions.DuplicateTask) as error:
            raise InvalidTask(str(error)) from None

    def enqueue(self, task: Task[P, R], args: Iterable[Any], kwargs: Mapping[str, Any]) -> TaskResult[P, R]:
        """Store a job that runs the task, and return its result as it is now.

        Raises `InvalidTask` as `validate_task` does, `TypeError` for arguments that do not fit the function or that
        Django cannot make JSON of, `PayloadError` for those that a database cannot keep; under `STRICT_TRANSACTIONS`
        `EnqueuedOutsideTransaction`.
        """
        from gnlqueue.queue.enqueueing import insert
        from gnlqueue.queue.new_jobs import new_job
        from gnlqueue.queue.transactions import alias_of

        self.validate_task(task)
        # Django's idea of what becomes JSON is wider than ours, and what it takes is not to be refused here.
        args, kwargs = cast("tuple[list[Any], dict[str, Any]]", normalize_json([list(args), dict(kwargs)]))
        registry.get_task(task.module_path).check_arguments(tuple(args), kwargs)
        new = new_job(
            task.module_path,
            args,
            kwargs,
            self._options_of(task),
            max_attempts=self.max_attempts,
            stored_options={results.BACKEND: self.alias},
        )
        job = insert(new, alias_of(self.database))
        result = results.result_of(job, task, self.alias)
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """Return the result as it stands in the database now.

        Raises `TaskResultDoesNotExist` for an id that is malformed, unknown, or of a job that is not this backend's.
        """
        from gnlqueue.models import Job
        from gnlqueue.queue.transactions import alias_of

        pk = _primary_key(result_id)
        job = None if pk is None else Job.objects.using(alias_of(self.database)).filter(pk=pk).first()
        known = None if job is None else running.known(job.task_name)
        if job is None or known is None or results.backend_of(job.options, known.declared) != self.alias:
            raise TaskResultDoesNotExist(f"The backend {self.alias!r} has no result {result_id!r:.100}.")
        return results.result_of(job, known.declared, self.alias)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Find what keeps this backend from working."""
        if apps.is_installed("gnlqueue"):
            return []
        return [
            Error(
                f"TASKS[{self.alias!r}] is gnlqueue's backend, but gnlqueue is not installed as an app: there is no "
                "table for its jobs.",
                hint='Add "gnlqueue" to INSTALLED_APPS, then migrate.',
                id="gnlqueue.E011",
            )
        ]

    def _options_of(self, task: Task[..., Any]) -> Options:
        return Options(
            queue_name=task.queue_name,
            priority=int(task.priority),
            run_after=task.run_after,
            max_attempts=self.max_attempts,
        )

    def _checked_options(self) -> tuple[str | None, int | None]:
        """Return the database and the number of attempts, or raise `InvalidTaskBackend`."""
        where = f"TASKS[{self.alias!r}]"
        for name in self.options:
            if name not in OPTIONS:
                hint = suggestion(str(name), OPTIONS)
                raise InvalidTaskBackend(
                    f"{where} has no option {name!r}{hint}. The options are: {', '.join(OPTIONS)}."
                )
        database: str | None = self.options.get("database")
        if database is not None and database not in django_settings.DATABASES:
            hint = suggestion(str(database), django_settings.DATABASES)
            raise InvalidTaskBackend(f"{where}: DATABASES has no alias {database!r}{hint}.")
        try:
            for name in self.queues:
                check_queue_name(name)
            return database, Options(max_attempts=self.options.get("max_attempts")).max_attempts
        except exceptions.InvalidTask as error:
            raise InvalidTaskBackend(f"{where}: {error}") from None


def install() -> None:
    """Make the backends of this kind, and know the tasks for other backends that the apps' `tasks.py` declare."""
    ours = [alias for alias in task_backends if _is_ours(alias)]  # which makes each, so that its queues are served
    if not ours:
        return
    for config in apps.get_app_configs():
        module = sys.modules.get(f"{config.name}.tasks")
        for task in list(vars(module).values()) if module else ():
            if isinstance(task, Task):
                with suppress(exceptions.InvalidTask, exceptions.DuplicateTask):  # told where it is enqueued here
                    running.know(task, Options())


def _is_ours(alias: str) -> bool:
    try:
        return isinstance(task_backends[alias], GnlqueueBackend)
    except ImproperlyConfigured:  # one of Django's system checks tells
        return False


def _primary_key(result_id: object) -> int | None:
    if not isinstance(result_id, str) or result_id.startswith("0"):  # one id has one text
        return None
    return parse_id(result_id)
