"""Every queue there is, and the two things that can be done to it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import SuspiciousOperation
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from gnlqueue import queue
from gnlqueue.admin import facts
from gnlqueue.admin.base import QueuePage, may, record, require, url
from gnlqueue.dialects import read_clock
from gnlqueue.exceptions import InvalidTask
from gnlqueue.models import QueueState
from gnlqueue.options import check_queue_name
from gnlqueue.queue.transactions import alias_of, retried


@admin.register(QueueState)
class QueueAdmin(QueuePage[QueueState]):
    """Queues are not rows: one exists because a task, a worker, an operator or a job names it."""

    def get_urls(self) -> list[URLPattern]:
        """The list, and an address for each verb."""
        guarded = self.admin_site.admin_view
        return [
            path("", guarded(self.changelist_view), name="gnlqueue_queuestate_changelist"),
            path("pause/", guarded(self.pause_view), name="gnlqueue_queuestate_pause"),
            path("resume/", guarded(self.resume_view), name="gnlqueue_queuestate_resume"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the queues."""
        self.require_view(request)
        alias = alias_of(None)
        now = read_clock(alias)
        workers = facts.read_workers(alias, now)
        queues = facts.read_queues(alias, now, workers)
        return self.show(
            request,
            "gnlqueue/admin/queues.html",
            _("Queues"),
            now=now,
            queues=queues.all,
            more_queues=queues.cut,
            workers=workers,
            may_pause=may(request, "pause_queuestate"),
            **(extra_context or {}),
        )

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Claim nothing more from a queue until somebody resumes it."""
        return self._do(request, "pause")

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Claim from a paused queue again."""
        return self._do(request, "resume")

    def _do(self, request: HttpRequest, verb: str) -> HttpResponse:
        require(request, "pause_queuestate")
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            name = check_queue_name(request.POST.get("queue_name", ""))
        except InvalidTask as error:
            raise SuspiciousOperation(str(error)) from None
        alias = alias_of(None)

        def write() -> None:
            # With its line in the log, or not at all.
            with transaction.atomic(using=alias):
                (queue.pause if verb == "pause" else queue.resume)(name, using=alias)
                record(request, verb, f"queue {name}")

        retried(alias, write)
        if verb == "pause":
            said = _("The queue %(queue)s is paused: nothing more is claimed from it, and running jobs go on.")
        else:
            said = _("The queue %(queue)s is resumed.")
        messages.success(request, said % {"queue": name})
        return HttpResponseRedirect(url(request, "gnlqueue_queuestate_changelist"))
