"""The queue of decisions that only a person can take, and the page on which one is taken."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import override

from gnlqueue.admin import waiting
from gnlqueue.admin.base import QueuePage, may, may_open, person, record, require, url
from gnlqueue.admin.decisions import Case, Decision, case_of
from gnlqueue.admin.errors import HIDDEN, why_of
from gnlqueue.admin.job_page import MEDIA, arguments_of
from gnlqueue.admin.payload import as_file
from gnlqueue.admin.timeline import answer_in_words
from gnlqueue.dialects import read_clock
from gnlqueue.durable.entries import is_whole
from gnlqueue.durable.resolving import resolve
from gnlqueue.exceptions import AlreadyResolved, GnlqueueError, PayloadError, WrongStatus
from gnlqueue.ids import parse_id
from gnlqueue.models import RunJournalEntry, StepInDoubt, StepNote
from gnlqueue.queue.transactions import alias_of
from gnlqueue.redaction import masked, masked_text


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
        after, after_job = request.GET.get("after", ""), request.GET.get("after_job", "")
        nothing = waiting.Page([], "")
        doubtful = nothing if after_job else waiting.in_doubt(after, alias)
        mismatches = nothing if after else waiting.mismatches(after_job, alias)
        return self.show(
            request,
            "gnlqueue/admin/doubt_list.html",
            _("In doubt"),
            now=read_clock(alias),
            doubtful=doubtful.lines,
            mismatches=mismatches.lines,
            is_first=not (after or after_job),
            next_after=doubtful.next,
            next_job=mismatches.next,
            media=MEDIA,
        )

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one step, and on POST decide about it."""
        self.require_view(request, takes_post=True)
        alias = alias_of(None)
        entry_id = parse_id(object_id)
        case = None if entry_id is None else case_of(entry_id, alias)
        if case is None:
            raise Http404(_("There is no such step: its job may have been pruned."))
        if request.method != "POST":
            return self._page(request, case, Decision(case))
        require(request, "resolve_runjournalentry")
        return self._decide(request, case, alias)

    def _decide(self, request: HttpRequest, case: Case, alias: str) -> HttpResponse:
        form = Decision(case, request.POST)
        if request.POST.get("seen") != case.seen:
            return self._overtaken(request, case)
        if not form.is_valid():
            return self._page(request, case, form, status=422)
        answer, reason = form.answer(), form.cleaned_data["reason"]
        try:
            resolve(case.entry, answer, by=person(request), reason=reason, using=alias)
        except (AlreadyResolved, WrongStatus):  # its own text quotes the other person's result
            return self._overtaken(request, case_of(case.entry.pk, alias) or case)
        except PayloadError as error:
            form.add_error("result", str(error))
            return self._page(request, case, form, status=422)
        except (GnlqueueError, ValueError) as error:
            form.add_error(None, str(error))
            return self._page(request, case, form, status=422)
        choice = form.cleaned_data["choice"]
        with override(None):  # in English, so that it is found whatever language the reader uses
            target = _in_words(case, choice)
        # Not in one transaction with `resolve`, which has to open the outermost one: it tries again after a deadlock,
        # and sends its signal once the answer is committed. Its own note, written with the answer, is what counts.
        record(request, "resolve", target, job_id=case.entry.job_id, why=reason)
        messages.success(request, _("Decided: %(what)s.") % {"what": _in_words(case, choice)})
        return HttpResponseRedirect(url(request, "gnlqueue_stepindoubt_changelist"))

    def _overtaken(self, request: HttpRequest, case: Case) -> HttpResponse:
        """Show the step as it is now; the form keeps what the person had written, to be posted again."""
        data = request.POST.copy()
        data["seen"] = case.seen
        news = _news(case, request.POST.get("seen", ""))
        return self._page(request, case, Decision(case, data), overtaken=news, status=409)

    def _page(
        self, request: HttpRequest, case: Case, form: Decision, *, overtaken: str = "", status: int = 200
    ) -> HttpResponse:
        shows_payload = may(request, "view_job_payload")
        shown = case.job if shows_payload else None
        file = url(request, "gnlqueue_job_payload", shown.pk) if shown and may_open(request, "job_payload") else ""
        may_run, whereabouts = case.whereabouts()
        title = _("Did “%(step)s” happen?") if case.mismatch is None else _("“%(step)s” does not fit the code")
        return self.show(
            request,
            "gnlqueue/admin/doubt_page.html",
            title % {"step": case.entry.key},
            parents=[(url(request, "gnlqueue_stepindoubt_changelist"), _("In doubt"))],
            case=case,
            form=form if case.waits and may(request, "resolve_runjournalentry") else None,
            choices=[(name, *case.words(name)) for name in case.choices],
            chosen=form.data.get("choice", "") if form.is_bound else "",
            may_run=may_run,
            whereabouts=whereabouts,
            shows_payload=shows_payload,
            evidence=[
                (note, why_of(note, whole=shows_payload), _brought(note) if shows_payload else "")
                for note in case.evidence
            ],
            arguments=() if shown is None else arguments_of(shown),
            payload_url=file,
            raised=case.raised(whole=shows_payload),
            hidden_text=HIDDEN,
            recorded=_recorded(case.entry) if shows_payload else "",
            decided=[(note, answer_in_words(note.value or "")) for note in case.resolutions],
            errors=status == 422,
            overtaken=overtaken,
            media=MEDIA,
            status=status,
        )

    def result_view(self, request: HttpRequest, entry_id: int) -> HttpResponse:
        """Give the whole result of a step as a file."""
        if request.method == "POST" or not may(request, "view_job"):  # whoever may see the job may see this, too
            self.require_view(request)
        require(request, "view_job_payload")
        entry = RunJournalEntry.objects.using(alias_of(None)).filter(pk=entry_id).first()
        if entry is None or entry.result is None:
            raise Http404(_("There is no such result."))
        return as_file(masked(json.loads(entry.result)), f"step-{entry_id}-result.json")


def _recorded(entry: RunJournalEntry) -> str:
    """Return how a step's result begins; "" if it was cut and something has to be hidden."""
    beginning, size = getattr(entry, "result_start", None) or "", getattr(entry, "result_size", None) or 0
    return masked_text(beginning, is_whole=size <= len(beginning))


def _in_words(case: Case, choice: str) -> str:
    """Return which step it is, and what was decided about it."""
    return _("step %(step)s of %(run)s: %(answer)s") % {
        "step": f"{case.entry.key:.100}",
        "run": case.entry.run_id,
        "answer": case.words(choice)[0],
    }


def _brought(note: StepNote) -> str:
    """Return what a late worker brought back, masked."""
    if note.value is None:
        return ""
    return masked_text(note.value, is_whole=is_whole(note)) or _("hidden by GNLQUEUE['REDACT']")


def _news(case: Case, seen: str) -> str:
    """Say what has happened since the page was opened that showed `seen`."""
    if case.resolutions and case.was_decided_since(seen):
        told, left = _faster(case.resolutions[-1]), _what_is_left(case)
        return f"{told.rstrip('. ')}. {left}" if left else told
    if not case.waits:
        return _("It is no longer waiting for a decision.")
    if case.job is None or case.is_blocked:
        return _("Something has happened since you opened this page. Look at it again, then decide.")
    return _(
        "Something has happened since you opened this page. The job is not waiting for a decision now, but you may "
        "still say what became of the step."
    )


def _faster(decision: StepNote) -> str:
    """Say who decided what, and why."""
    return _("%(by)s decided first: %(answer)s. %(why)s") % {
        "by": decision.by,
        "answer": answer_in_words(decision.value or ""),
        "why": decision.why,
    }


def _what_is_left(case: Case) -> str:
    """Say what is left to decide after somebody else's decision, if there is anything."""
    if not case.waits:
        return ""
    if case.job is None or case.is_blocked:
        return _("That leaves the question open: look at it again, then decide.")
    return _("That leaves the question open. The job is not waiting for the answer now; when it runs again, it asks.")
