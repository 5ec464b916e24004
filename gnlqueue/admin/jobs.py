"""Jobs: the list, and what belongs to one job: its page, its verbs, its arguments as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from gnlqueue.admin import bulk_page, filters, job_page, payload, search, verb_page
from gnlqueue.admin.base import url
from gnlqueue.admin.changelist import JobChangeList
from gnlqueue.admin.columns import JobColumns
from gnlqueue.admin.verbs import VERBS
from gnlqueue.ids import parse_id
from gnlqueue.models import Job, JobStatus
from gnlqueue.queue.transactions import alias_of

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList


class JobList(JobColumns):
    """A list of jobs with filters, a search box, and verbs for the ticked ones and for all that match."""

    change_list_template = "gnlqueue/admin/job_list.html"
    list_filter: ClassVar[tuple[Any, ...]] = (
        filters.StatusFilter,
        filters.QueueFilter,
        filters.TaskFilter,
        filters.ErrorFilter,
        filters.WorkerFilter,
        ("enqueued_at", filters.TimeRangeFilter),
        ("run_at", filters.TimeRangeFilter),
        ("finished_at", filters.TimeRangeFilter),
    )
    search_fields = ("id",)  # the box is shown where there are some; `gnlqueue.admin.search` reads it
    search_help_text = search.HELP
    show_facets = admin.ShowFacets.NEVER
    actions: tuple[Any, ...] = tuple(bulk_page.actions(*JobStatus))

    def always(self) -> dict[str, Any]:
        """Return what holds for this list whatever is asked for, as fields of `Criteria`."""
        return {}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "POST":
            self._require_action(request)
        own = {"title": capfirst(self.opts.verbose_name_plural), "this_page": request.get_full_path()}
        return super().changelist_view(request, {**own, **(extra_context or {})})

    def _require_action(self, request: HttpRequest) -> None:
        """Raise `PermissionDenied` unless this person may do what is asked for; Django would silently do nothing."""
        allowed = self.get_actions(request)
        asked = [each for each in request.POST.getlist("action") if each]
        if not allowed or not allowed.keys() >= set(asked):
            raise PermissionDenied

    def get_rangefilter_enqueued_at_title(self, request: HttpRequest, field_path: str) -> str:
        return _("enqueue time")

    def get_rangefilter_run_at_title(self, request: HttpRequest, field_path: str) -> str:
        return _("due time")

    def get_rangefilter_finished_at_title(self, request: HttpRequest, field_path: str) -> str:
        return _("finish time")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return VERBS["retry"].is_allowed(request)

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        return VERBS["run_now"].is_allowed(request)

    def has_reschedule_permission(self, request: HttpRequest) -> bool:
        return VERBS["reschedule"].is_allowed(request)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return VERBS["cancel"].is_allowed(request)


@admin.register(Job)
class JobAdmin(JobList):
    """All jobs, newest first."""

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("bulk/", wrap(self.bulk_view), name="gnlqueue_job_bulk"),
            path("<int:object_id>/payload/", wrap(self.payload_view), name="gnlqueue_job_payload"),
            path("<int:object_id>/verb/<slug:verb>/", wrap(self.verb_view), name="gnlqueue_job_verb"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        job = self.get_object(request, object_id)
        return self._gone(request, object_id) if job is None else job_page.view(self, request, job)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """Return the whole job: its own pages need what the list leaves out."""
        pk = parse_id(object_id)
        return None if pk is None else Job.objects.using(alias_of(None)).filter(pk=pk).first()

    def verb_view(self, request: HttpRequest, object_id: int, verb: str) -> HttpResponse:
        self.require_view(request, takes_post=True)
        job = self.get_object(request, str(object_id))
        return self._gone(request, str(object_id)) if job is None else verb_page.view(self, request, job, verb)

    def bulk_view(self, request: HttpRequest) -> HttpResponse:
        # Those who may see only dead jobs may act on them: the page checks that once it knows which jobs are meant.
        return bulk_page.view(self, request)

    def payload_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        self.require_view(request)
        return payload.download(request, object_id)

    def _gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        text = _("There is no job %(id)s: it never existed, or it has been pruned.") % {"id": object_id}
        self.message_user(request, text, "WARNING")
        return HttpResponseRedirect(url(request, "gnlqueue_job_changelist"))
