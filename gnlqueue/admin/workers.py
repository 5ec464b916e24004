"""Who works, and on what."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from gnlqueue.admin import facts
from gnlqueue.admin.base import QueuePage
from gnlqueue.dialects import read_clock
from gnlqueue.models import WorkerProcess
from gnlqueue.queue.transactions import alias_of


@admin.register(WorkerProcess)
class WorkerAdmin(QueuePage[WorkerProcess]):
    """The worker processes that are registered, and whoever else holds jobs."""

    def get_urls(self) -> list[URLPattern]:
        """There is one page, and nothing behind it."""
        return [path("", self.admin_site.admin_view(self.changelist_view), name="gnlqueue_workerprocess_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the workers."""
        self.require_view(request)
        alias = alias_of(None)
        now = read_clock(alias)
        return self.show(
            request,
            "gnlqueue/admin/workers.html",
            _("Workers"),
            now=now,
            workers=facts.read_workers(alias, now),
            **(extra_context or {}),
        )
