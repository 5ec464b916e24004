"""The page that says in five seconds whether all is well."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from gnlqueue.admin import charts, facts, figures
from gnlqueue.admin.base import QueuePage
from gnlqueue.admin.health import what_needs_a_person
from gnlqueue.dialects import read_clock
from gnlqueue.models import JobStatus, Overview
from gnlqueue.queue.transactions import alias_of

MOST_FAILING = 10


@admin.register(Overview)
class OverviewAdmin(QueuePage[Overview]):
    """What needs a person, how many jobs there are, how fast they go, and who works on them."""

    def get_urls(self) -> list[URLPattern]:
        """There is one page, and nothing behind it."""
        return [path("", self.admin_site.admin_view(self.changelist_view), name="gnlqueue_overview_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the overview, of the window of time that `?window=` names."""
        self.require_view(request)
        alias = alias_of(None)
        now = read_clock(alias)
        window = figures.WINDOWS.get(request.GET.get("window", ""), figures.WINDOWS[figures.DEFAULT_WINDOW])
        counts = facts.count_statuses(alias)
        workers = facts.read_workers(alias, now)
        queues = facts.read_queues(alias, now, workers)
        facts.estimate_uncounted(queues, counts[JobStatus.READY])
        shown = figures.read(alias, window, now)
        whole = shown.whole
        return self.show(
            request,
            "gnlqueue/admin/overview.html",
            _("Overview"),
            now=now,
            alerts=what_needs_a_person(counts, queues.all, workers, now),
            counts=[(status.value, counts[status.value]) for status in JobStatus],
            queues=[(queue, *_pace(shown, queue.name, whole.minutes)) for queue in queues.all],
            more_queues=queues.cut,
            workers=workers,
            window=window,
            windows=figures.WINDOWS.values(),
            whole=whole,
            finished=charts.finished_per_minute(shown.slots, window),
            waits=charts.over_time(shown.slots, whole, window, lambda slot: slot.wait),
            runs=charts.over_time(shown.slots, whole, window, lambda slot: slot.run),
            failing=shown.failing(MOST_FAILING),
            **(extra_context or {}),
        )


def _pace(shown: figures.Figures, queue_name: str, minutes: float) -> tuple[float, float | None]:
    """Return how many attempts of a queue ended per minute, and the percentage of them that failed."""
    total = shown.queues.get(queue_name, figures.Total())
    return total.all / minutes, total.failures
