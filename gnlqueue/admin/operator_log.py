"""The operator log: who did what, to how many, with which filter, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.forms import Media
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from gnlqueue.admin.base import QueuePage, may, may_open, url
from gnlqueue.admin.changelist import KeysetChangeList
from gnlqueue.admin.columns import LISTS
from gnlqueue.admin.health import Alert, standstill
from gnlqueue.admin.verbs import OTHER_VERBS, VERBS, label_of
from gnlqueue.admin.words import of_action, of_target
from gnlqueue.finding import Plan
from gnlqueue.ids import parse_id
from gnlqueue.models import WAITING, Job, JobStatus, OperatorAction
from gnlqueue.queue.transactions import alias_of
from gnlqueue.templatetags.gnlqueue_admin import NOTHING, ago, breakable, number, visible
from gnlqueue.templatetags.statuses import STATUSES

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
    from django.utils.functional import _StrOrPromise


class VerbFilter(admin.SimpleListFilter):
    """What was done."""

    title = _("action")
    parameter_name = "verb"
    template = "gnlqueue/admin/choice_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, _StrOrPromise]]:
        return [(name, label_of(name)) for name in (*VERBS, *OTHER_VERBS)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class Known(NamedTuple):
    """What the list knows of an action that its row does not say."""

    words: Sequence[tuple[str, str]]  #: which filter it had
    runner_status: str | None  #: of the job that carries it out
    standstill: Alert | None  #: why that job does not start
    job_url: Callable[[int], str] | None  #: the page of a job, for those who may open it


class ActionChangeList(KeysetChangeList):
    """The log, newest first; a search looks at each row."""

    notes: tuple[str, ...] = ()
    count = None
    standstills: dict[str, Alert]  #: why jobs that carry out actions do not start, by queue

    def get_plan(self, request: HttpRequest) -> Plan:
        asked = Q()
        for spec in self.filter_specs:
            if verb := spec.value():  # type: ignore[attr-defined]  # a SimpleListFilter
                asked &= Q(verb=verb)
        words = self.query.replace("\0", "").split()
        for word in words:
            found = Q(by__icontains=word) | Q(target__icontains=word) | Q(why__icontains=word)
            if (number := parse_id(word)) is not None:
                found |= Q(job_id=number) | Q(runner_id=number)
            asked &= found
        rows = OperatorAction.objects.using(alias_of(None)).all()
        return Plan((rows,), ("-id",), asked or None, clock="at")

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        may_see_payload = may(request, "view_job_payload")
        runners = [each.runner_id for each in self.result_list if each.finished_at is None and each.runner_id]
        alias = alias_of(None)
        jobs = Job.objects.using(alias).filter(pk__in=runners)
        found = {id: (status, name) for id, status, name in jobs.values_list("pk", "status", "queue_name")}
        waiting = {name for status, name in found.values() if status in WAITING}
        self.standstills = {name: why for name in sorted(waiting) if (why := standstill(name, alias)) is not None}
        may_open_jobs = may_open(request, "job_change")
        for action in self.result_list:
            status, queue_name = found.get(action.runner_id, (None, None))
            action.known = Known(
                words=of_action(action.where, may_see_payload=may_see_payload),
                runner_status=status,
                standstill=self.standstills.get(queue_name or "") if status in WAITING else None,
                job_url=partial(url, request, "gnlqueue_job_change") if may_open_jobs else None,
            )


@admin.register(OperatorAction)
class OperatorLog(QueuePage[OperatorAction]):
    """A list only: everything that is known of an action is in its row."""

    change_list_template = "gnlqueue/admin/operator_log.html"
    list_display = ("who", "what", "how_many", "reason")
    list_display_links = None
    list_filter = (VerbFilter,)
    list_per_page = 50
    ordering = ("-id",)
    search_fields = ("by",)
    search_help_text = _("Who, what it was done to, a job's number, or a word from the reason.")
    show_facets = admin.ShowFacets.NEVER

    @property
    def media(self) -> Media:
        return super().media + LISTS

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ActionChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.require_view(request)
        title = capfirst(self.opts.verbose_name_plural)
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        return HttpResponseRedirect(url(request, "gnlqueue_operatoraction_changelist"))

    @admin.display(description=_("who"))
    def who(self, action: OperatorAction) -> SafeString:
        return format_html('{}<span class="gql-small">{}</span>', breakable(action.by), ago(action.at))

    @admin.display(description=_("what"))
    def what(self, action: OperatorAction) -> SafeString:
        name = '<span class="gql-name">{}</span>{}'
        if action.job_id is None:
            return format_html(name, label_of(action.verb), breakable(of_target(action.target)))
        link = _job_link(action, action.job_id)
        made = action.where.get("new_job") if isinstance(action.where, dict) else None
        jobs = link if made is None else format_html("{} → {}", link, _job_link(action, made))
        return format_html(name, label_of(action.verb), jobs)

    @admin.display(description=_("how many"))
    def how_many(self, action: OperatorAction) -> SafeString:
        left_alone = ""
        if action.skipped:
            text = ngettext("%(n)s had changed meanwhile", "%(n)s had changed meanwhile", action.skipped)
            left_alone = format_html('<span class="gql-small">{}</span>', text % {"n": number(action.skipped)})
        return format_html('{}{}<span class="gql-small">{}</span>', _done(action), left_alone, _state(action))

    @admin.display(description=_("why, and with which filter"))
    def reason(self, action: OperatorAction) -> str | SafeString:
        reason = breakable(action.why)
        words = _known(action).words
        if not words:
            return reason or NOTHING
        shown = format_html_join(
            "", "<dt>{}</dt><dd><bdi>{}</bdi></dd>", ((breakable(name), breakable(text)) for name, text in words)
        )
        return format_html('{}<dl class="gql-words">{}</dl>', reason, shown)


def _known(action: OperatorAction) -> Known:
    known: Known = action.known  # type: ignore[attr-defined]  # the list gives it to each of its rows
    return known


def _done(action: OperatorAction) -> str:
    """Return how many jobs were changed; while it is under way, of how many, if they have been counted."""
    kept = action.where if isinstance(action.where, dict) else {}
    matched = None if kept.get("counting") else kept.get("matched")
    if action.finished_at is not None or not matched:
        return number(action.done)
    # What moved while it was counted may have been left out of the count.
    of = max(matched, action.done + action.skipped)
    return _t("%(done)s of %(matched)s") % {"done": number(action.done), "matched": number(of)}


def _state(action: OperatorAction) -> str | SafeString:
    if action.finished_at is not None:
        return _t("finished") if action.runner_id is not None else ""
    if action.runner_id is None:
        return _t("interrupted")
    link, status = _job_link(action, action.runner_id), _known(action).runner_status
    if status is None:
        return format_html(_t("stopped: {} is gone"), link)
    if status in (JobStatus.DEAD, JobStatus.CANCELLED):
        return format_html(_t("stopped: {} is {}"), link, STATUSES[status][0])
    if status == JobStatus.DONE:  # between the two reads
        return _t("finished")
    why = _known(action).standstill
    if why is not None:
        text = _t("waiting: its queue is paused") if why.icon == "paused" else _t("waiting for a worker")
        return format_html("{} ({})", text, link)
    return format_html("{} ({})", _t("under way"), link)


def _job_link(action: OperatorAction, id: int) -> SafeString:
    text = visible(_t("job %(id)s") % {"id": id})
    address = _known(action).job_url
    return format_html("{}", text) if address is None else format_html('<a href="{}">{}</a>', address(id), text)
