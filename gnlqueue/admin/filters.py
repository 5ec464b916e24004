"""The filters beside the list of jobs. They say what is looked for; the list finds it (`gnlqueue.finding`).

Their choices come from the registry and from small tables, never from the jobs themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext_lazy as _
from rangefilter.filters import DateTimeRangeFilter

from gnlqueue.admin.search import recent_errors
from gnlqueue.finding import NO_ERROR, Span
from gnlqueue.models import JobStatus, QueueState, WorkerProcess
from gnlqueue.queue.transactions import alias_of
from gnlqueue.registry import default_queues, registered
from gnlqueue.templatetags.statuses import STATUSES

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
    from django.utils.functional import _StrOrPromise

#: At most so many workers, and so many queues that were ever paused, are offered.
MOST_CHOICES = 200


class ChoiceFilter(admin.SimpleListFilter):
    """One value, chosen from what is known; another one that the URL carries is offered too."""

    template = "gnlqueue/admin/choice_filter.html"
    criterion: str  #: the field of `Criteria`
    several = False  #: whether that field holds several values

    def known(self) -> list[tuple[str, _StrOrPromise]]:
        """Return what may be chosen, and how each is shown."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, _StrOrPromise]]:
        choices = self.known()
        asked = self.value()
        if asked and asked not in [value for value, _label in choices]:
            choices.append((asked, asked))
        return choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def criteria(self) -> dict[str, Any]:
        """Return what is looked for, as fields of `Criteria`."""
        value = (self.value() or "").replace("\0", "")
        return {self.criterion: (value,) if self.several else value} if value else {}


class StatusFilter(ChoiceFilter):
    title = _("status")
    parameter_name = "status"
    criterion = "statuses"
    several = True

    def known(self) -> list[tuple[str, _StrOrPromise]]:
        return [(status, str(STATUSES[status][0])) for status in JobStatus.values]

    def criteria(self) -> dict[str, Any]:
        return super().criteria() if self.value() in JobStatus.values else {}


class QueueFilter(ChoiceFilter):
    title = _("queue")
    parameter_name = "queue_name"
    criterion = "queue_name"

    def known(self) -> list[tuple[str, _StrOrPromise]]:
        paused = QueueState.objects.using(alias_of(None)).values_list("queue_name", flat=True)
        return [(name, name) for name in sorted({*default_queues(), *paused[:MOST_CHOICES]})]


class TaskFilter(ChoiceFilter):
    title = _("task")
    parameter_name = "task_name"
    criterion = "task_name"

    def known(self) -> list[tuple[str, _StrOrPromise]]:
        return [(name, name) for name in registered()]


class WorkerFilter(ChoiceFilter):
    title = _("worker")
    parameter_name = "worker_id"
    criterion = "worker_id"

    def known(self) -> list[tuple[str, _StrOrPromise]]:
        workers = WorkerProcess.objects.using(alias_of(None)).order_by("-heartbeat_at")
        return [(id, id) for id in sorted(workers.values_list("worker_id", flat=True)[:MOST_CHOICES])]


class ErrorFilter(ChoiceFilter):
    title = _("error of the last failed attempt")
    parameter_name = "error"
    criterion = "errors"
    several = True

    def known(self) -> list[tuple[str, _StrOrPromise]]:
        recent = recent_errors(alias_of(None))
        return [*((name, name.removeprefix("builtins.")) for name in recent), (NO_ERROR, _("no exception"))]


class MomentField(forms.SplitDateTimeField):
    """A date, and a time that may be left out: then it is the beginning or the end of the day."""

    def __init__(self, left_out: time, date_label: _StrOrPromise, time_label: _StrOrPromise) -> None:
        self.left_out = left_out
        # The browser's own inputs need no script, and send what every locale can read.
        day: dict[str, Any] = {"type": "date", "aria-label": date_label}
        moment: dict[str, Any] = {"type": "time", "step": 1, "aria-label": time_label}
        widget = forms.SplitDateTimeWidget(
            date_attrs=day,
            time_attrs=moment,
            date_format="%Y-%m-%d",
            time_format="%H:%M:%S",
        )
        super().__init__(label="", required=False, widget=widget)

    def compress(self, data_list: Any) -> datetime | None:
        date, moment = (*(data_list or ()), None, None)[:2]
        return super().compress((date, moment or self.left_out)) if date else None


class TimeRangeFilter(DateTimeRangeFilter):  # type: ignore[misc]  # it has no type hints
    """rangefilter's, with a template that needs no inline script or style, and the browser's own inputs."""

    template = "gnlqueue/admin/range_filter.html"

    def _get_form_fields(self) -> dict[str, forms.Field]:
        return {
            self.lookup_kwarg_gte: MomentField(time.min, _("From date"), _("From time")),
            self.lookup_kwarg_lte: MomentField(time.max, _("To date"), _("To time")),
        }

    def choices(self, changelist: ChangeList) -> Iterator[dict[str, Any]]:
        kept = [
            (name, value)
            for name, values in changelist.filter_params.items()
            if name not in self.expected_parameters()
            for value in (values if isinstance(values, list) else [values])
        ]
        yield {
            "kept": kept,
            "is_active": bool(self.used_parameters),
            "reset": changelist.get_query_string({}, remove=self.expected_parameters()),
            "zone": get_current_timezone_name(),
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def criteria(self) -> dict[str, Any]:
        """Return what is looked for, as fields of `Criteria`; nothing if the form has errors, which it shows."""
        if not self.form.is_valid():
            return {}
        ends = (self.form.cleaned_data.get(name) for name in (self.lookup_kwarg_gte, self.lookup_kwarg_lte))
        return {self.field_path.removesuffix("_at"): Span.between(*ends)}
