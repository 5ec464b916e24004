"""The queue of decisions that only a person can take, and the page on which one is taken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from gnlqueue.admin.base import QueuePage, may, page_context, person, record, require
from gnlqueue.admin.decisions import CHOICES, Case, Decision, case_of
from gnlqueue.admin.job_page import MEDIA, arguments_of, masked_text
from gnlqueue.admin.timeline import said
from gnlqueue.dialects import read_clock
from gnlqueue.durable.resolving import resolve
from gnlqueue.exceptions import AlreadyResolved, GnlqueueError, PayloadError
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry, StepInDoubt, StepNote
from gnlqueue.queue.transactions import alias_of
from gnlqueue.redaction import masked

ON_A_PAGE = 50


@dataclass(frozen=True, slots=True)
class Waiting:
    """One line of the list: a step, and the job that waits for it, if one does."""

    entry: RunJournalEntry
    job: Job | None
    note: StepNote | None = None

    @property
    def how_to_check(self) -> str:
        """What the developer wrote for whoever decides."""
        return str((self.entry.error or {}).get("how_to_check") or "")


@admin.register(StepInDoubt)
class StepInDoubtAdmin(QueuePage[StepInDoubt]):
    """Steps that wait for a person, longest first, and what each needs to be decided."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or may(request, "resolve_runjournalentry")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or may(request, "resolve_runjournalentry")

    def get_urls(self) -> list[URLPattern]:
        own = path(
            "<int:entry_id>/result/",
            self.admin_site.admin_view(self.result_view),
            name="gnlqueue_stepindoubt_result",
        )
        return [own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show what waits for a decision."""
        self.require_view(request)
        alias = alias_of(None)
        after = request.GET.get("after", "")
        doubtful = in_doubt(after, alias)
        last = doubtful[ON_A_PAGE - 1].entry if len(doubtful) > ON_A_PAGE else None
        context = page_context(
            self,
            request,
            _("In doubt"),
            now=read_clock(alias),
            doubtful=doubtful[:ON_A_PAGE],
            mismatches=[] if after else mismatches(alias),
            after=after,
            next_after=f"{last.started_at.isoformat()},{last.pk}" if last is not None else "",
            media=MEDIA,
            may_decide=may(request, "resolve_runjournalentry"),
        )
        return TemplateResponse(request, "gnlqueue/admin/doubt_list.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one step, and on POST decide about it."""
        self.require_view(request)
        alias = alias_of(None)
        case = case_of(int(object_id), alias) if object_id.isdecimal() and len(object_id) < 19 else None
        if case is None:
            raise Http404(_("There is no such step: its job may have been pruned."))
        if request.method != "POST":
            return self._page(request, case, Decision(case))
        require(request, "resolve_runjournalentry")
        return self._decide(request, case, alias)

    def _decide(self, request: HttpRequest, case: Case, alias: str) -> HttpResponse:
        form = Decision(case, request.POST)
        if request.POST.get("seen") != case.seen:
            return self._page(request, case, Decision(case, _seen_now(request, case)), overtaken=_overtaken(case))
        if not form.is_valid():
            return self._page(request, case, form, status=422)
        answer, reason = form.answer(), form.cleaned_data["reason"]
        try:
            resolve(case.entry.pk, answer, by=person(request), reason=reason, using=alias)
        except AlreadyResolved as error:
            current = case_of(case.entry.pk, alias) or case
            return self._page(request, current, Decision(current), overtaken=str(error))
        except PayloadError as error:
            form.add_error("result", str(error))
            return self._page(request, case, form, status=422)
        except (GnlqueueError, ValueError) as error:
            form.add_error(None, str(error))
            return self._page(request, case, form, status=422)
        chosen = CHOICES[form.cleaned_data["choice"]][0]
        target = _("step %(step)s of %(run)s: %(answer)s") % {
            "step": f"{case.entry.key:.100}",
            "run": case.entry.run_id,
            "answer": chosen,
        }
        record(request, "resolve", target, job_id=case.entry.job_id, why=reason)
        messages.success(request, _("Decided: %(what)s.") % {"what": target})
        return HttpResponseRedirect(reverse("admin:gnlqueue_stepindoubt_changelist"))

    def _page(
        self, request: HttpRequest, case: Case, form: Decision, *, overtaken: str = "", status: int = 200
    ) -> HttpResponse:
        shows_payload = may(request, "view_job_payload")
        may_run, whereabouts = case.whereabouts()
        context = page_context(
            self,
            request,
            _("Did “%(step)s” happen?") % {"step": case.entry.key}
            if case.mismatch is None
            else _("“%(step)s” does not fit the code") % {"step": case.entry.key},
            parents=[(reverse("admin:gnlqueue_stepindoubt_changelist"), _("In doubt"))],
            case=case,
            form=form if case.waits and may(request, "resolve_runjournalentry") else None,
            choices=[(name, *CHOICES[name]) for name in case.choices],
            chosen=form.data.get("choice", "") if form.is_bound else "",
            may_run=may_run,
            whereabouts=whereabouts,
            shows_payload=shows_payload,
            evidence=[(note, _brought(note) if shows_payload else "") for note in case.evidence],
            arguments=arguments_of(case.job) if case.job is not None and shows_payload else (),
            payload_url=_payload_url(case.job) if shows_payload else "",
            recorded=_recorded(case.entry) if shows_payload else "",
            decided=[(note, said(note.value or "")) for note in case.resolutions],
            errors=status == 422,
            overtaken=overtaken,
            media=MEDIA,
        )
        if overtaken:
            status = 409
        return TemplateResponse(request, "gnlqueue/admin/doubt_page.html", context, status=status)

    def result_view(self, request: HttpRequest, entry_id: int) -> HttpResponse:
        """Give the whole result of a step as a file."""
        if not (self.has_view_permission(request) or may(request, "view_job")):
            self.require_view(request)
        require(request, "view_job_payload")
        entry = RunJournalEntry.objects.using(alias_of(None)).filter(pk=entry_id).first()
        if entry is None or entry.result is None:
            raise Http404(_("There is no such result."))
        text = json.dumps(masked(json.loads(entry.result)), ensure_ascii=False, indent=2)
        headers = {
            "Content-Disposition": f'attachment; filename="step-{entry_id}-result.json"',
            "X-Content-Type-Options": "nosniff",
        }
        return HttpResponse(text, content_type="application/json", headers=headers)


def in_doubt(after: str, alias: str) -> list[Waiting]:
    """Return steps in doubt, longest first, one more than a page shows; `after` is where the page before ended."""
    rows = RunJournalEntry.objects.using(alias).filter(status=EntryStatus.IN_DOUBT)
    time, _comma, id = after.partition(",")
    try:
        at: datetime | None = parse_datetime(time)
    except ValueError:
        at = None
    if at is not None and at.tzinfo is not None and id.isdecimal():
        rows = rows.filter(started_at__gte=at).filter(Q(started_at__gt=at) | Q(pk__gt=int(id)))
    entries = list(rows.defer("result").order_by("started_at", "id")[: ON_A_PAGE + 1])
    jobs = _jobs([entry.job_id for entry in entries if entry.job_id is not None], alias)
    return [Waiting(entry, jobs.get(entry.job_id)) for entry in entries]


def mismatches(alias: str) -> list[Waiting]:
    """Return the steps that the code of a blocked job does not fit, oldest job first."""
    blocked = Job.objects.using(alias).with_status(JobStatus.BLOCKED).filter(blocked_reason="mismatch")
    ids = list(blocked.order_by("id").values_list("id", flat=True)[:ON_A_PAGE])
    jobs = _jobs(ids, alias)
    notes = StepNote.objects.using(alias).filter(
        entry__run_id__in=[f"job:{id}" for id in ids], kind=StepNote.Kind.MISMATCH
    )
    latest = {note.entry.job_id: note for note in notes.select_related("entry").defer("entry__result").order_by("id")}
    return [Waiting(latest[id].entry, jobs.get(id), latest[id]) for id in ids if id in latest]


def _jobs(ids: Sequence[int], alias: str) -> dict[int | None, Job]:
    columns = ("id", "task_name", "queue_name", "status", "worker_id", "lease_token")
    return {job.pk: job for job in Job.objects.using(alias).filter(pk__in=ids).only(*columns)} if ids else {}


def _payload_url(job: Job | None) -> str:
    return "" if job is None else reverse("admin:gnlqueue_job_payload", args=[job.pk])


def _recorded(entry: RunJournalEntry) -> str:
    """Return how a step's result begins; nothing of it where something is to be hidden and it was cut."""
    beginning, size = getattr(entry, "result_start", None) or "", getattr(entry, "result_size", None) or 0
    return masked_text(beginning, is_whole=size <= len(beginning))


def _brought(note: StepNote) -> str:
    """Return what a late worker brought back, masked."""
    if note.value is None:
        return ""
    return masked_text(note.value, is_whole=True) or _("hidden by GNLQUEUE['REDACT']")


def _seen_now(request: HttpRequest, case: Case) -> Any:
    """Return what was posted, as an answer to the page as it is now: the next time, it counts."""
    data = request.POST.copy()
    data["seen"] = case.seen
    return data


def _overtaken(case: Case) -> str:
    """Say what has happened since the page was opened."""
    if case.waits:
        return _("Something has happened since you opened this page. Look at it again, then decide.")
    if not case.resolutions:
        return _("It does not wait for a decision any more.")
    note = case.resolutions[-1]
    return _("%(by)s was faster, and decided: %(answer)s. %(why)s") % {
        "by": note.by,
        "answer": said(note.value or ""),
        "why": note.why,
    }
