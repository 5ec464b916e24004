"""The page of one job: what happened, why it isn't running, what its steps did.

Every read is bounded and uses an index, however long the job's history is; the page says what it leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from django.db.models.functions import Left, Length
from django.forms import Media
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from gnlqueue.admin import base, errors, job_facts, timeline, verbs, waterfall, why
from gnlqueue.admin.base import may, url
from gnlqueue.dialects import read_clock
from gnlqueue.durable.resolving import mismatched_entry
from gnlqueue.ids import parse_id
from gnlqueue.models import Job, JobAttempt, JobStatus, OperatorAction, RunJournalEntry, StepNote
from gnlqueue.queue.attempts import max_attempts
from gnlqueue.queue.transactions import alias_of
from gnlqueue.redaction import masked, masked_text, positional_names, redacted

if TYPE_CHECKING:
    from gnlqueue.admin.base import QueuePage

MEDIA = base.MEDIA + Media(css={"all": ["gnlqueue/job.css"]})

MOST_STEPS = 100  # on one page; the links beneath lead to the others
MOST_ATTEMPTS = 20
MOST_NOTES = 50
MOST_ACTIONS = 50
MOST_MADE = 20  # jobs that were enqueued again from this one
LONGEST = 400  # characters of a value; more is a download


@dataclass(frozen=True, slots=True)
class Step:
    """One step in the table: its row, how long it took, where it ran, how its result begins, or what it raised."""

    entry: RunJournalEntry
    span: waterfall.Span
    token: int
    worker_id: str
    result: str
    size: int  #: characters of the whole result if it is cut, else 0
    error: str  #: what it raised, in one line


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the job, as JSON."""

    name: str
    value: str


def view(admin: QueuePage[Job], request: HttpRequest, job: Job) -> HttpResponse:
    """Show a job; whoever calls this has checked that the person may see it."""
    alias = alias_of(None)
    now = read_clock(alias)
    entries = steps_of(job, request.GET.get("steps_before", ""), alias)
    shows_payload = may(request, "view_job_payload")
    history = _history(job, entries, alias, shows_texts=shows_payload)
    steps = list(_steps(history, shows_payload=shows_payload))
    beginnings = history.beginnings()
    last = steps[-1].entry if steps and "steps_before" not in request.GET else None
    mismatch = mismatched_entry(job)
    reasons = why.reasons(job_facts.facts_of(request, job, now, mismatch=mismatch, last=last, alias=alias))
    copies = Job.objects.using(alias).filter(origin_id=job.pk).order_by("id")
    made = list(copies.values_list("id", flat=True)[: MOST_MADE + 1])
    return admin.show(
        request,
        "gnlqueue/admin/job_page.html",
        _("Job %(id)s: %(task)s") % {"id": job.pk, "task": job.task_name},
        job=job,
        now=now,
        buttons=verbs.buttons(request, job),
        reasons=reasons,
        attempts_allowed=max_attempts(job),
        shows_payload=shows_payload,
        arguments=arguments_of(job) if shows_payload else (),
        result=shown(masked(job.result)) if shows_payload and job.status == JobStatus.DONE else "",
        progress=shown(masked(job.progress)) if shows_payload and job.progress is not None else "",
        made=made[:MOST_MADE],
        more_made=len(made) > MOST_MADE,
        payload_url=url(request, "gnlqueue_job_payload", job.pk) if shows_payload else "",
        options=shown(job.options) if job.options else "",
        events=list(with_pauses(timeline.timeline(history))),
        claims_without_trace=history.claims_without_trace(),
        earlier_attempts=len(history.attempts) == MOST_ATTEMPTS,
        steps=steps,
        steps_before=entries[-MOST_STEPS].position if len(entries) > MOST_STEPS else None,
        waterfall=waterfall.draw([step.span for step in steps], beginnings.items(), now),
        media=MEDIA,
    )


def steps_of(job: Job, before: str, alias: str) -> list[RunJournalEntry]:
    """Return the latest steps of the job, one more than a page shows, with only the beginnings of their results."""
    rows = RunJournalEntry.objects.using(alias).filter(run_id=job.run_id)
    if (position := parse_id(before)) is not None:
        rows = rows.filter(position__lt=position)
    latest = _with_beginnings(rows).order_by("-position", "-id")[: MOST_STEPS + 1]
    return list(reversed(latest))


def _with_beginnings(rows: QuerySet[RunJournalEntry]) -> QuerySet[RunJournalEntry]:
    """Read how a result begins instead of the whole, which may be a mebibyte each."""
    return rows.defer("result").annotate(result_start=Left("result", LONGEST), result_size=Length("result"))


def _history(job: Job, latest: Sequence[RunJournalEntry], alias: str, *, shows_texts: bool) -> timeline.History:
    entries = latest[-MOST_STEPS:]
    attempts = JobAttempt.objects.using(alias).filter(job_id=job.pk).order_by("-id")[:MOST_ATTEMPTS]
    notes: Iterable[StepNote] = ()
    if entries:
        by_entry = {entry.pk: entry for entry in entries}
        notes = StepNote.objects.using(alias).filter(entry__in=list(by_entry)).order_by("-id")[:MOST_NOTES]
        for note in notes:
            note.entry = by_entry[note.entry_id]
    actions = OperatorAction.objects.using(alias).filter(job_id=job.pk).order_by("-id")[:MOST_ACTIONS]
    is_whole = len(attempts) < MOST_ATTEMPTS and len(latest) <= MOST_STEPS
    return timeline.History(
        job, list(reversed(attempts)), entries, list(notes), list(actions), is_whole, shows_texts=shows_texts
    )


def _steps(history: timeline.History, *, shows_payload: bool) -> Iterable[Step]:
    job = history.job
    workers = {attempt.lease_token: attempt.worker_id for attempt in history.attempts}
    workers[job.lease_token] = job.worker_id or ""
    for entry in history.entries:
        token = history.began_by(entry)
        beginning, size = getattr(entry, "result_start", None) or "", getattr(entry, "result_size", None) or 0
        running = job.status == JobStatus.IN_PROGRESS and job.lease_token == entry.lease_token
        span = waterfall.span_of(entry, beginning, running=running)
        is_whole = size <= len(beginning)
        result = masked_text(beginning, is_whole=is_whole) if shows_payload else ""
        size = size if shows_payload and not is_whole else 0
        error = errors.of_step(entry.error, whole=shows_payload)
        yield Step(entry, span, token, workers.get(token, ""), result, size, error)


def arguments_of(job: Job) -> list[Argument]:
    """Return the job's arguments, masked, with their names if they are known."""
    args, kwargs = redacted(job)
    names = positional_names(job.task_name, len(args))
    positional = [
        Argument(name or f"[{place}]", shown(value))
        for place, (name, value) in enumerate(zip(names, args, strict=True))
    ]
    return [*positional, *(Argument(name, shown(value)) for name, value in kwargs.items())]


def shown(value: Any) -> str:
    """Return a value as JSON, for people."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def with_pauses(events: Sequence[timeline.Event]) -> Iterable[tuple[timeline.Event, Any]]:
    """Return each event with the time since the one before, `None` if that is not worth mentioning."""
    if events:
        yield events[0], None
    for before, event in pairwise(events):
        pause = event.at - before.at
        yield event, pause if pause.total_seconds() >= 1 else None
