"""What happened to a job, as one list in order of time.

No single row tells all of it: the job has its latest attempt, `JobAttempt` those that failed, the journal which steps
began under which lease token, `StepNote` and `OperatorAction` what people did. A claim that was given back uncounted
(the run slept, or was blocked, or its worker was shut down) leaves only what its steps left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gnlqueue.admin.errors import HIDDEN, in_short, why_of
from gnlqueue.admin.verbs import label_of
from gnlqueue.answers import FailJob, GoOn, Happened, NotHappened, Resolution, UseRecorded, kind_of
from gnlqueue.models import (
    NOT_EFFECTS,
    EntryStatus,
    Job,
    JobAttempt,
    JobStatus,
    OperatorAction,
    RunJournalEntry,
    StepKind,
    StepNote,
)
from gnlqueue.templatetags.gnlqueue_admin import number


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `looks` names how it is drawn; `folded` is long text, shown when asked for."""

    at: datetime
    looks: str
    title: str
    details: Sequence[str] = ()
    worker_id: str = ""
    folded_title: str = ""
    folded: str = ""
    open: bool = field(default=False, kw_only=True)  #: goes on

    @property
    def icon(self) -> str:
        """The status whose sign it has."""
        return _ICONS.get(self.looks, self.looks)


_ICONS = {
    "enqueued": "ready",
    "attempt": "started",
    "lost": "silent",
    "sleep": "scheduled",
    "doubt": "in_doubt",
    "note": "other",
    "person": "live",
}


@dataclass(frozen=True, slots=True)
class History:
    """The rows that a timeline is made from, of each kind no more than a page holds."""

    job: Job
    attempts: Sequence[JobAttempt]
    entries: Sequence[RunJournalEntry]
    notes: Sequence[StepNote]
    actions: Sequence[OperatorAction]
    is_whole: bool = True  #: whether no older attempts or steps were left out
    shows_texts: bool = True  #: whether the texts of errors may be seen

    def beginnings(self) -> dict[int, datetime]:
        """Return when the known claims began, by lease token, in order."""
        steps = [entry for entry in reversed(self.entries) if self.began_by(entry) == entry.lease_token]
        known = {entry.lease_token: entry.started_at for entry in steps}  # the first of each
        known |= {attempt.lease_token: attempt.started_at for attempt in self.attempts}
        if self.job.last_attempted_at is not None:
            known[self.job.lease_token] = self.job.last_attempted_at
        return dict(sorted(known.items()))

    def began_by(self, entry: RunJournalEntry) -> int:
        """Return the token of the claim that began a step; one that found it in doubt wrote its own in the entry."""
        job, began = self.job, entry.started_at
        if job.last_attempted_at is not None and job.last_attempted_at <= began:
            return job.lease_token
        ended = (each.lease_token for each in self.attempts if each.started_at <= began <= each.ended_at)
        return next(ended, entry.lease_token)

    def claims_without_trace(self) -> int:
        """Return how many claims left nothing, as they were given back before anything began."""
        known = self.beginnings()
        oldest = 1 if self.is_whole else min(known, default=1)
        return sum(token not in known for token in range(oldest, self.job.lease_token + 1))


def timeline(history: History) -> list[Event]:
    """Return what happened, earliest first."""
    events = [
        *_enqueued(history.job),
        *_attempts(history),
        *_steps(history.entries),
        *_notes(history),
        *_actions(history.actions),
        *_requests(history.job),
        *_end(history),
    ]
    return sorted(events, key=lambda event: event.at)


def _enqueued(job: Job) -> Iterator[Event]:
    where = {"queue": job.queue_name, "priority": job.priority}
    details = [_("in the queue %(queue)s with priority %(priority)s") % where]
    if job.idempotency_key is not None:
        details.append(_("idempotency key %(key)s") % {"key": job.idempotency_key})
    if job.origin_id is not None:
        details.append(_("made from job %(id)s") % {"id": job.origin_id})
    yield Event(job.enqueued_at, "enqueued", _("Enqueued"), details)


def _attempts(history: History) -> Iterator[Event]:
    job, failed = history.job, {attempt.lease_token: attempt for attempt in history.attempts}
    previous = ""
    for token, start in history.beginnings().items():
        attempt = failed.get(token)
        latest = token == job.lease_token
        holder = (job.worker_id or "") if latest else ""
        worker = holder if attempt is None else attempt.worker_id
        details = [_("lease token %(token)s") % {"token": token}]
        if worker and previous and worker != previous:
            details.append(_("taken over from %(worker)s") % {"worker": previous})
        details += _did([entry for entry in history.entries if history.began_by(entry) == token])
        if attempt is not None:
            title = _("Attempt %(number)s began") % {"number": attempt.number}
        elif latest and job.status in {JobStatus.IN_PROGRESS, JobStatus.DONE}:
            title = _("Attempt %(number)s began") % {"number": job.attempts}
        else:
            title = _("An attempt began that did not count")
        running = latest and job.status == JobStatus.IN_PROGRESS
        yield Event(start, "attempt", title, details, worker, open=running)
        if attempt is not None:
            ended = attempt.ended_at
            if latest and job.finished_at is not None:  # written one statement before the attempt's row
                ended = min(ended, job.finished_at)
            yield _failure(attempt, ended, shows_texts=history.shows_texts)
        previous = worker or previous


def _did(entries: Iterable[RunJournalEntry]) -> list[str]:
    keys = [entry.key for entry in entries if entry.kind not in NOT_EFFECTS]
    if not keys:
        return []
    shown = ", ".join(key if len(key) <= 60 else f"{key[:60]}…" for key in keys[:5])
    more = len(keys) - 5
    if more > 0:
        shown = _("%(steps)s and %(more)s more") % {"steps": shown, "more": number(more)}
    return [ngettext("its step: %(steps)s", "its steps: %(steps)s", len(keys)) % {"steps": shown}]


def _failure(attempt: JobAttempt, at: datetime, *, shows_texts: bool) -> Event:
    counted = {"number": attempt.number}
    if attempt.exception_class:
        title = _("Attempt %(number)s failed: %(error)s") % {**counted, "error": attempt.exception_class}
        if not shows_texts:
            return Event(at, "failed", title, [str(HIDDEN)], attempt.worker_id)
        return Event(at, "failed", title, (), attempt.worker_id, folded_title=_("Traceback"), folded=attempt.error)
    title = _("Attempt %(number)s failed") % counted
    return Event(at, "failed", title, _error(attempt.error, shows_texts=shows_texts), attempt.worker_id)


def _error(text: str, *, shows_texts: bool) -> list[str]:
    seen = in_short(text, whole=shows_texts)
    return [seen] if seen == text else [*filter(None, [seen]), str(HIDDEN)]


def _steps(entries: Iterable[RunJournalEntry]) -> Iterator[Event]:
    for entry in entries:
        key = {"step": entry.key}
        if entry.kind == StepKind.SLEEP:
            yield Event(entry.started_at, "sleep", _("Went to sleep: %(step)s") % key)
        elif entry.status == EntryStatus.IN_DOUBT:
            error = entry.error or {}
            details = [_("it raised %(error)s") % {"error": error["classes"][0]}] if error.get("classes") else []
            title = _("Nobody knows whether “%(step)s” happened") % key
            yield Event(entry.finished_at or entry.started_at, "doubt", title, details)


def _notes(history: History) -> Iterator[Event]:
    for note in history.notes:
        names, why = {"step": note.entry.key, "by": note.by}, why_of(note, whole=history.shows_texts)
        if note.kind == StepNote.Kind.EVIDENCE:
            yield Event(note.at, "note", _("Evidence on “%(step)s” from %(by)s") % names, [why])
        elif note.kind == StepNote.Kind.MISMATCH:
            yield Event(note.at, "doubt", _("The code did not fit the journal at “%(step)s”") % names, [why])
        else:
            title = _("%(by)s decided about “%(step)s”: %(answer)s") % {
                **names,
                "answer": answer_in_words(note.value or ""),
            }
            yield Event(note.at, "person", title, [why])


def _actions(actions: Iterable[OperatorAction]) -> Iterator[Event]:
    for action in actions:
        if action.verb == "resolve":  # its note says more
            continue
        names = {"by": action.by, "verb": label_of(action.verb)}
        if action.done:
            title = _("%(by)s: %(verb)s") % names
        elif action.skipped:
            title = _("%(by)s: %(verb)s, skipped: it had changed meanwhile") % names
        else:  # between writing the log's row and doing it, or interrupted there
            title = _("%(by)s: %(verb)s, not done yet") % names
        yield Event(action.at, "person", title, [action.why] if action.why else [])


def _requests(job: Job) -> Iterator[Event]:
    if job.cancel_requested_at is not None:
        yield Event(job.cancel_requested_at, "person", _("Its cancellation was requested"))
    if job.unknown_since is not None:
        yield Event(job.unknown_since, "lost", _("A worker did not know its task, and gave it back"))


def _end(history: History) -> Iterator[Event]:
    job = history.job
    if job.finished_at is None:
        return
    if job.status == JobStatus.DONE:
        yield Event(job.finished_at, "done", _("Done"))
    elif job.status == JobStatus.CANCELLED:
        yield Event(job.finished_at, "cancelled", _("Cancelled"))
    elif job.status == JobStatus.DEAD:
        details = _error(job.last_error, shows_texts=history.shows_texts) if job.last_error else []
        yield Event(job.finished_at, "dead", _("Dead"), details)


def answer_in_words(answer: str) -> str:
    """Return in words what a note keeps of an answer."""
    words: dict[type[Resolution] | None, str] = {
        Happened: _("it happened"),
        NotHappened: _("it did not happen"),
        FailJob: _("fail the job"),
        GoOn: _("go on"),
        UseRecorded: _("use the recorded result"),
    }
    return words.get(kind_of(answer), answer)
