"""A verb for many jobs: a page that says what it will do to how many, then doing it, here or in the background.

The page freezes what it showed. If it has counted all the jobs, it keeps their ids, so that one that changes before its
turn is known to have changed. If there are more, or may be, it keeps a filter with a cut-off, which leaves out jobs
that come later. Either goes through the form, signed. More than `AT_ONCE` jobs are changed by a background job.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gnlqueue import bulk
from gnlqueue.admin import health
from gnlqueue.admin.base import MEDIA, may, record, url
from gnlqueue.admin.columns import LISTS
from gnlqueue.admin.forms import BulkRescheduleForm, ReasonForm, SpreadForm
from gnlqueue.admin.preview import Preview, freeze, preview_of
from gnlqueue.admin.verb_page import back_to
from gnlqueue.admin.verbs import VERBS, Verb, in_bulk
from gnlqueue.admin.words import MATCHING, in_words, of_uncounted
from gnlqueue.conf import settings
from gnlqueue.finding import Criteria
from gnlqueue.models import DeadJob, Job, JobStatus, OperatorAction, RunLock
from gnlqueue.queue.transactions import alias_of, retried
from gnlqueue.redaction import hides
from gnlqueue.tasks import run_operator_action
from gnlqueue.templatetags.gnlqueue_admin import number

if TYPE_CHECKING:
    from gnlqueue.admin.base import QueuePage
    from gnlqueue.admin.jobs import JobList

VALID_FOR = 3600  # seconds from showing the page to confirming it

SALT = "gnlqueue.bulk"


def actions(*statuses: JobStatus) -> Iterator[Callable[..., Any]]:
    """Yield an action on the ticked jobs for each verb that takes many jobs and applies to one of the statuses."""
    for verb in VERBS.values():
        if verb.bulk_label is not None and verb.applies_to.intersection(statuses):
            yield _action(verb)


def _action(verb: Verb) -> Callable[..., Any]:
    @admin.action(description=verb.bulk_label, permissions=[verb.name])
    def act(model_admin: JobList, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        if request.POST.get("select_across") == "1":  # a theme may offer it, for the whole table
            raise Http404
        ids = tuple(queryset.order_by("-pk").values_list("pk", flat=True)[: bulk.AT_ONCE])
        criteria = replace(Criteria(ids=ids), **model_admin.always())
        return confirm(model_admin, request, verb, criteria, back=request.get_full_path())

    act.__name__ = verb.name
    return act


def view(admin: QueuePage[Job], request: HttpRequest) -> HttpResponse:
    """Ask to confirm what the URL asks for (GET), or do what was confirmed (POST)."""
    if request.method == "POST" and not in_bulk(request):
        raise PermissionDenied
    if request.method == "POST" and "token" in request.POST:
        return _do(admin, request)
    verb = _allowed(request, request.GET.get("verb", ""))
    try:
        criteria = Criteria.from_json(json.loads(request.GET.get("criteria", "{}")))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Http404 from None
    criteria = replace(criteria, last_id=None, as_of=None, without_task=None)
    return confirm(admin, request, verb, criteria, back=back_to(request))


def _require(request: HttpRequest, criteria: Criteria) -> None:
    """Raise `PermissionDenied` unless this person may see these jobs, and the arguments that they are found by."""
    may_see_dead = criteria.statuses == (JobStatus.DEAD,) and may(request, "view_deadjob")
    if not (may_see_dead or may(request, "view_job")):
        raise PermissionDenied
    # Searching for values is a way to read them.
    hidden = any(hides(argument.name) for argument in criteria.arguments)
    if criteria.arguments and (hidden or not may(request, "view_job_payload")):
        raise PermissionDenied


def _list(request: HttpRequest) -> str:
    """Return the address of the list that this person may see."""
    return url(request, f"gnlqueue_{'job' if may(request, 'view_job') else 'deadjob'}_changelist")


def _allowed(request: HttpRequest, name: str) -> Verb:
    verb = VERBS.get(name)
    if verb is None or verb.bulk_label is None:
        raise Http404
    if not verb.is_allowed(request):
        raise PermissionDenied
    return verb


def confirm(
    admin: QueuePage[Job], request: HttpRequest, verb: Verb, criteria: Criteria, *, back: str = ""
) -> HttpResponse:
    """Show what the verb will do to which jobs; nothing happens yet."""
    _require(request, criteria)
    alias = alias_of(None)
    asked = len(criteria.ids) if criteria.ids is not None else None
    frozen = freeze(verb, criteria, alias)
    preview = preview_of(frozen, alias)
    if not preview.count.more:
        frozen = replace(frozen, ids=tuple(preview.ids))
    payload = {
        "verb": verb.name,
        "criteria": frozen.as_json(),
        "user": str(request.user.pk),
        # By these two a page that was already submitted is recognised: a double click does nothing twice.
        "nonce": secrets.token_hex(16),
        "newest": OperatorAction.objects.using(alias).order_by("-id").values_list("id", flat=True).first() or 0,
    }
    token = signing.dumps(payload, salt=SALT, compress=True)
    return _page(admin, request, verb, frozen, preview, form=_form_of(verb)(), token=token, back=back, asked=asked)


def _page(
    admin: QueuePage[Job],
    request: HttpRequest,
    verb: Verb,
    frozen: Criteria,
    preview: Preview,
    *,
    form: ReasonForm,
    token: str,
    back: str,
    asked: int | None = None,
) -> HttpResponse:
    fallback, in_background = _list(request), _is_for_background(frozen)
    listed = Job if may(request, "view_job") else DeadJob
    return admin.show(
        request,
        "gnlqueue/admin/bulk.html",
        str(verb.bulk_label),
        parents=[(fallback, capfirst(listed._meta.verbose_name_plural))],
        verb=verb,
        form=form,
        token=token,
        preview=preview,
        left_out=asked - preview.count.number if asked is not None else 0,
        words=in_words(frozen, may_see_payload=may(request, "view_job_payload")),
        in_background=in_background,
        standstill=_standstill() if in_background else None,
        at_once=bulk.AT_ONCE,
        now=timezone.now(),
        back=back or fallback,
        media=MEDIA + LISTS,
    )


def _standstill() -> health.Alert | None:
    """Return why the background job would not start; `None` if it would."""
    inline = settings().INLINE  # it runs in this process
    return None if inline else health.standstill(run_operator_action.options.queue_name, alias_of(None))


def _is_for_background(frozen: Criteria) -> bool:
    return frozen.ids is None or len(frozen.ids) > bulk.AT_ONCE


def _form_of(verb: Verb) -> type[ReasonForm]:
    return {"cancel": ReasonForm, "reschedule": BulkRescheduleForm}.get(verb.name, SpreadForm)


def _do(admin: QueuePage[Job], request: HttpRequest) -> HttpResponse:
    """Do what the page showed, as the signed form has it."""
    back = _list(request)
    try:
        kept = signing.loads(request.POST["token"], salt=SALT, max_age=VALID_FOR)
    except signing.BadSignature:  # tampered with, or too old
        messages.warning(request, _("That page is too old, so nothing was changed: look again at what would be done."))
        return HttpResponseRedirect(back)
    verb = _allowed(request, kept["verb"])
    if kept["user"] != str(request.user.pk):
        raise PermissionDenied
    frozen, alias = Criteria.from_json(kept["criteria"]), alias_of(None)
    _require(request, frozen)
    form = _form_of(verb)(request.POST)
    if not form.is_valid():
        token, preview = request.POST["token"], preview_of(frozen, alias)
        return _page(admin, request, verb, frozen, preview, form=form, token=token, back=back_to(request))
    action = retried(alias, lambda: start(request, verb, frozen, form, alias, kept["nonce"], kept["newest"]))
    if action.runner_id is None:
        action = bulk.run(action.pk, using=alias)
    action.refresh_from_db(using=alias)  # INLINE has done it by now
    if action.finished_at is not None:
        _tell_done(request, action)
    else:
        told: str = _("the operator log shows how far it has got")
        if may(request, "view_operatoraction"):
            told = format_html('<a href="{}">{}</a>', url(request, "gnlqueue_operatoraction_changelist"), told)
        messages.info(request, format_html(_("Job {} does this in the background: {}."), action.runner_id, told))
    return HttpResponseRedirect(back_to(request) or back)


def start(
    request: HttpRequest, verb: Verb, frozen: Criteria, form: ReasonForm, alias: str, nonce: str, newest: int
) -> OperatorAction:
    """Record the action in the operator log and, if it is for many jobs, enqueue the job that does it.

    A page that is submitted again gets the row that it wrote before, found among those after the `newest` it knew.
    """
    spread = form.spread() if isinstance(form, SpreadForm) else timedelta()
    where = bulk.freeze(frozen, spread=spread, run_after=form.options().get("run_after"))
    where["nonce"] = nonce
    job_id = frozen.ids[0] if frozen.ids is not None and len(frozen.ids) == 1 else None
    key = f"{SALT}:{nonce}"
    with transaction.atomic(using=alias):
        # Nobody sees this row. Of two requests that write it at once, one waits here until the other's transaction
        # has ended, and then finds what that one wrote.
        turn = RunLock(run_id=key, run_id_hash=RunLock.key(key))
        turn.save(using=alias, force_insert=True)
        before = OperatorAction.objects.using(alias).filter(pk__gt=newest, where__nonce=nonce).first()
        turn.delete(using=alias)
        if before is not None:
            messages.info(request, _("That page was already submitted; nothing was done twice."))
            return before
        why = form.cleaned_data["why"]
        action = record(request, verb.name, _target(frozen.ids), job_id=job_id, where=where, why=why, done=0)
        if _is_for_background(frozen):
            runner = run_operator_action.using(database=alias, idempotency_key=key)
            action.runner_id = runner.enqueue(action.pk).pk
        action.finished_at = None
        action.save(using=alias, update_fields=["runner_id", "finished_at"])
    return action


def _target(ids: tuple[int, ...] | None) -> str:
    """Return what the log calls these jobs, in English; see `words.of_target`."""
    if ids is None:
        return MATCHING
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs"


def _tell_done(request: HttpRequest, action: OperatorAction) -> None:
    done = ngettext("%(n)s job was changed.", "%(n)s jobs were changed.", action.done) % {"n": number(action.done)}
    if action.skipped:
        done += " " + ngettext(
            "%(n)s had changed meanwhile and was left alone.",
            "%(n)s had changed meanwhile and were left alone.",
            action.skipped,
        ) % {"n": number(action.skipped)}
    if uncounted := of_uncounted(action.where):
        done += " " + _("Not counted: %(which)s.") % {"which": uncounted}
    (messages.success if action.done else messages.warning)(request, done)
