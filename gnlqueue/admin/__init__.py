"""The queue in the admin: look, for now. What acts on jobs is `manage.py gnlqueue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from rangefilter.filters import DateTimeRangeFilterBuilder

from gnlqueue.models import Job, JobAttempt, QueueState, WorkerProcess

if TYPE_CHECKING:  # Django's classes take type arguments only in the stubs
    AttemptInlineBase = admin.TabularInline[JobAttempt, Job]
    JobAdminBase = admin.ModelAdmin[Job]
    WorkerProcessAdminBase = admin.ModelAdmin[WorkerProcess]
    QueueStateAdminBase = admin.ModelAdmin[QueueState]
else:
    AttemptInlineBase = admin.TabularInline
    JobAdminBase = WorkerProcessAdminBase = QueueStateAdminBase = admin.ModelAdmin


class ReadOnly:
    """No adding, changing or deleting: a plain save would undo what a worker stores."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class AttemptInline(ReadOnly, AttemptInlineBase):
    """The attempts that failed or were lost, latest first."""

    model = JobAttempt
    fields = ("number", "worker_id", "started_at", "ended_at", "exception_class", "error")
    ordering = ("-id",)


@admin.register(Job)
class JobAdmin(ReadOnly, JobAdminBase):
    """Jobs, newest first; nothing here counts or sorts the whole table."""

    list_display = ("id", "task_name", "status", "queue_name", "attempts", "run_at", "finished_at", "worker_id")
    list_filter = (
        "status",
        ("enqueued_at", DateTimeRangeFilterBuilder(title="enqueued")),
        ("finished_at", DateTimeRangeFilterBuilder(title="finished")),
    )
    search_fields = ("=id", "task_name")
    ordering = ("-id",)
    show_full_result_count = False
    inlines = (AttemptInline,)


@admin.register(WorkerProcess)
class WorkerProcessAdmin(ReadOnly, WorkerProcessAdminBase):
    """The worker processes that are registered now."""

    list_display = ("worker_id", "hostname", "pid", "concurrency", "started_at", "heartbeat_at")


@admin.register(QueueState)
class QueueStateAdmin(ReadOnly, QueueStateAdminBase):
    """Queues that were paused at some time."""

    list_display = ("queue_name", "paused_at")
