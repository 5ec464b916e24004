"""The page of one verb for one job: GET asks what there is to ask, POST does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from gnlqueue import queue
from gnlqueue.admin.base import MEDIA, may, record, url
from gnlqueue.admin.columns import LISTS
from gnlqueue.admin.forms import ArgumentsForm, ReasonForm, RescheduleForm
from gnlqueue.admin.verbs import VERBS, Verb
from gnlqueue.bulk import act
from gnlqueue.exceptions import GnlqueueError, JobNotFound
from gnlqueue.models import NOT_EFFECTS, EntryStatus, Job, JobStatus, RunJournalEntry, run_id_of
from gnlqueue.queue.transactions import alias_of, retried
from gnlqueue.registry import find_task
from gnlqueue.templatetags.gnlqueue_admin import visible
from gnlqueue.templatetags.statuses import STATUSES

if TYPE_CHECKING:
    from gnlqueue.admin.base import QueuePage

MOST_STEPS = 50  # recorded steps that the page names


def view(admin: QueuePage[Job], request: HttpRequest, job: Job, name: str) -> HttpResponse:
    """Ask, or do it; whoever calls this has checked that the person may see the job."""
    verb = VERBS.get(name)
    if verb is None:
        raise Http404
    if not verb.is_allowed(request):
        raise PermissionDenied
    back = back_to(request) or url(request, "gnlqueue_job_change", job.pk)
    if job.status not in verb.applies_to:
        messages.warning(request, _refusal(verb, job))
        return HttpResponseRedirect(back)
    form = _form(request, verb, job)
    if request.method == "POST" and form.is_valid():
        return _do(request, verb, job, form, back)
    return admin.show(
        request,
        "gnlqueue/admin/verb.html",
        _("%(verb)s: job %(id)s") % {"verb": verb.label, "id": job.pk},
        parents=[
            (url(request, "gnlqueue_job_changelist"), capfirst(admin.opts.verbose_name_plural)),
            (url(request, "gnlqueue_job_change", job.pk), str(job.pk)),
        ],
        verb=verb,
        job=job,
        form=form,
        next=back_to(request),
        back=back,
        steps=recorded_steps([job.pk]),
        is_known=find_task(job.task_name) is not None,
        shows_payload=may(request, "view_job_payload"),
        media=MEDIA + LISTS,
    )


def recorded_steps(job_ids: list[int], most: int = MOST_STEPS) -> list[tuple[str, str]]:
    """Return the run ids and keys of the steps that these jobs have recorded as done, at most one more than `most`."""
    recorded = RunJournalEntry.objects.using(alias_of(None)).filter(
        run_id__in=[run_id_of(id) for id in job_ids], status=EntryStatus.DONE
    )
    effects = recorded.exclude(kind__in=NOT_EFFECTS).order_by("run_id", "position")
    return list(effects.values_list("run_id", "key")[: most + 1])


def _form(request: HttpRequest, verb: Verb, job: Job) -> ReasonForm:
    data = request.POST if request.method == "POST" else None
    if verb.name == "reschedule":
        return RescheduleForm(data, initial={"run_at": job.run_at})
    if verb.name == "enqueue_again" and may(request, "view_job_payload"):
        return ArgumentsForm(data, job=job)
    return ReasonForm(data)


def _do(request: HttpRequest, verb: Verb, job: Job, form: ReasonForm, back: str) -> HttpResponse:
    alias = alias_of(None)
    why, target = form.cleaned_data["why"], f"job {job.pk}"

    def write() -> Job:
        # With its line in the log, or not at all.
        with transaction.atomic(using=alias):
            if verb.name == "enqueue_again":
                new = queue.enqueue_again(job.pk, **form.options(), using=alias).job
                where: Any = {"new_job": new.pk}
                record(request, verb.name, target, job_id=job.pk, where=where, why=why)
                return new
            changed = act(verb.name, job.pk, using=alias, **form.options())
            record(request, verb.name, target, job_id=job.pk, why=why)
            return changed

    try:
        changed = retried(alias, write)
    except JobNotFound as error:
        messages.warning(request, str(error))
        return HttpResponseRedirect(url(request, "gnlqueue_job_changelist"))
    except GnlqueueError as error:  # somebody, or a worker, was faster
        messages.warning(request, visible(error))
        return HttpResponseRedirect(back)
    messages.success(request, _done(request, verb, job, changed))
    return HttpResponseRedirect(back)


def _done(request: HttpRequest, verb: Verb, job: Job, changed: Job) -> str:
    if verb.name == "enqueue_again":
        address = url(request, "gnlqueue_job_change", changed.pk)
        link = format_html('<a href="{}">{}</a>', address, _("job %(id)s") % {"id": changed.pk})
        return format_html(_("Enqueued again as {}; job {} stays as it is."), link, job.pk)
    if verb.name == "cancel" and changed.status != JobStatus.CANCELLED:
        return _("Job %(id)s has been asked to stop: it ends at its next step.") % {"id": job.pk}
    told = {
        "retry": _("Job %(id)s is ready again."),
        "run_now": _("Job %(id)s is due now."),
        "reschedule": _("Job %(id)s is rescheduled."),
        "cancel": _("Job %(id)s is cancelled."),
    }
    return told[verb.name] % {"id": job.pk}


def _refusal(verb: Verb, job: Job) -> str:
    return _("“%(verb)s” does not apply: job %(id)s is %(status)s now.") % {
        "verb": verb.label,
        "id": job.pk,
        "status": STATUSES[job.status][0] if job.status in STATUSES else visible(job.status),
    }


def back_to(request: HttpRequest) -> str:
    """Return the page that the person came from, if it is one of this site."""
    address = request.POST.get("next") or request.GET.get("next") or ""
    return address if url_has_allowed_host_and_scheme(address, allowed_hosts=None) else ""
