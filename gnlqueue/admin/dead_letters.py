"""Dead letters: what died of what, by task and error, and then the jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from gnlqueue.admin import bulk_page, filters
from gnlqueue.admin.base import CAP, may, may_open, url
from gnlqueue.admin.errors import HIDDEN
from gnlqueue.admin.jobs import JobList
from gnlqueue.admin.verbs import in_bulk
from gnlqueue.finding import NO_ERROR, Criteria
from gnlqueue.finding.criteria import LATEST_ERROR
from gnlqueue.models import DeadJob, Job, JobStatus
from gnlqueue.queue.reading import dead_letters
from gnlqueue.queue.transactions import alias_of
from gnlqueue.templatetags.gnlqueue_admin import ago, duration, number, roughly

MOST_GROUPS = 50
BARS = 24  # of a trend

#: What the verbs are called beside a group; its jobs are all dead.
GROUP_LABELS = {"retry": _("Retry all"), "cancel": _("Cancel all")}


@dataclass(slots=True)
class Group:
    """Jobs of one task that died of one error."""

    task_name: str
    error: str
    first: datetime
    last: datetime
    beginning: datetime  #: of the trend, which is the same for all groups
    bar: timedelta  #: how long a bar of it is
    newest: int  #: the job that died last
    count: int = 0
    per_bar: list[int] = field(default_factory=lambda: [0] * BARS)
    sample: str = ""

    @property
    def error_class(self) -> str:
        """What the error is called in filters."""
        return self.error or NO_ERROR

    @property
    def bars(self) -> list[tuple[int, float, float, int]]:
        """The trend: (x, y, height, count) of each bar, in a box of 24 by 10."""
        highest = max(self.per_bar)
        return [
            (place, round(10 - 10 * count / highest, 2), round(10 * count / highest, 2), count)
            for place, count in enumerate(self.per_bar)
        ]

    @property
    def trend(self) -> str:
        """The trend in words, for whoever cannot see it."""
        most = max(self.per_bar)
        latest = max(place for place, count in enumerate(self.per_bar) if count == most)
        text = ngettext(
            "%(n)s job died %(last)s.",
            "%(n)s jobs died, the first %(first)s, the last %(last)s; the peak was %(when)s: %(most)s in %(bar)s.",
            self.count,
        )
        return text % {
            "n": number(self.count),
            "first": roughly(self.first),
            "last": roughly(self.last),
            "when": roughly(self.beginning + (latest + 0.5) * self.bar),
            "most": number(most),
            "bar": duration(self.bar),
        }

    @property
    def jobs(self) -> str:
        """The query string of the list of its jobs."""
        return urlencode({"task_name": self.task_name, "error": self.error_class})

    @property
    def criteria(self) -> str:
        """Its jobs, as the page of bulk actions takes them."""
        found = Criteria(statuses=(JobStatus.DEAD.value,), task_name=self.task_name, errors=(self.error_class,))
        return json.dumps(found.as_json())


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups, largest first, and which dead jobs they are made from."""

    groups: list[Group]
    of: int  #: dead jobs looked at
    is_capped: bool
    more: int  #: groups left out
    first: datetime | None


def groups_of_dead(alias: str) -> Groups:
    """Group the newest dead jobs, up to `CAP` of them, by task and error of their last attempt."""
    newest = dead_letters(None, None, using=alias).annotate(latest_error=LATEST_ERROR)
    rows = list(newest.values_list("id", "task_name", "finished_at", "latest_error")[: CAP + 1])
    is_capped = len(rows) > CAP
    del rows[CAP:]
    found = _grouped(rows)
    largest = sorted(found, key=lambda each: -each.count)[:MOST_GROUPS]
    samples = Job.objects.using(alias).filter(pk__in=[each.newest for each in largest])
    texts = dict(samples.values_list("pk", "last_error"))
    for each in largest:
        each.sample = texts.get(each.newest) or ""
    return Groups(largest, len(rows), is_capped, len(found) - len(largest), rows[-1][2] if rows else None)


def _grouped(rows: Sequence[tuple[int, str, Any, str]]) -> list[Group]:
    """Return the groups of (id, task name, finished at, error class), which come newest first."""
    if not rows:
        return []
    beginning, end = rows[-1][2], rows[0][2]
    bar = max((end - beginning) / BARS, timedelta(microseconds=1))
    found: dict[tuple[str, str], Group] = {}
    for id, task_name, at, error in rows:
        if (task_name, error) not in found:
            found[task_name, error] = Group(task_name, error, at, at, beginning, bar, newest=id)
        each = found[task_name, error]
        each.count += 1
        each.first = at
        each.per_bar[min(int((at - beginning) / bar), BARS - 1)] += 1
    return list(found.values())


@admin.register(DeadJob)
class DeadLetters(JobList):
    """The list of dead jobs, beneath the groups."""

    change_list_template = "gnlqueue/admin/dead_letters.html"
    list_display = ("number", "task", "attempt", "queue", "finished")
    actions = tuple(bulk_page.actions(JobStatus.DEAD))
    list_filter: ClassVar[tuple[Any, ...]] = (
        filters.QueueFilter,
        filters.TaskFilter,
        filters.ErrorFilter,
        ("finished_at", filters.TimeRangeFilter),
    )

    def always(self) -> dict[str, Any]:
        return {"statuses": (JobStatus.DEAD.value,)}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.require_view(request, takes_post=True)
        groups = None if request.GET or request.method == "POST" else groups_of_dead(alias_of(None))
        if groups is not None and not may(request, "view_job_payload"):
            for each in groups.groups:  # their classes are shown anyway
                each.sample = str(HIDDEN) if each.sample else ""
        verbs = [(verb.name, GROUP_LABELS[verb.name]) for verb in in_bulk(request) if JobStatus.DEAD in verb.applies_to]
        context = {"groups": groups, "group_verbs": verbs}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def get_list_display_links(self, request: HttpRequest, list_display: Any) -> Any:
        """Link to the jobs' pages where this person may open them."""
        return super().get_list_display_links(request, list_display) if may_open(request, "job_change") else None

    @admin.display(description=_("died"), ordering="finished_at")
    def finished(self, job: Job) -> str:
        return ago(job.finished_at)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        return HttpResponseRedirect(url(request, "gnlqueue_job_change", object_id))

    def get_rangefilter_finished_at_title(self, request: HttpRequest, field_path: str) -> str:
        return _t("time of death")
