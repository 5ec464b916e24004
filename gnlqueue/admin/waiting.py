"""What waits for a person's decision, a page at a time: steps in doubt, and jobs that their code does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import Q
from django.utils.dateparse import parse_datetime

from gnlqueue.ids import parse_id
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry, StepNote, run_id_of

ON_A_PAGE = 50


@dataclass(frozen=True, slots=True)
class Waiting:
    """One line of the list: a step, and the job that waits for it, if one does."""

    entry: RunJournalEntry
    job: Job | None
    note: StepNote | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of them, and where the next one begins; "" after the last."""

    lines: list[Waiting]
    next: str


def in_doubt(after: str, alias: str) -> Page:
    """Return steps in doubt, longest first; `after` is where the page before ended."""
    rows = RunJournalEntry.objects.using(alias).filter(status=EntryStatus.IN_DOUBT)
    place = _place(after)
    if place is not None:
        at, id = place
        rows = rows.filter(started_at__gte=at).filter(Q(started_at__gt=at) | Q(pk__gt=id))
    entries = list(rows.defer("result").order_by("started_at", "id")[: ON_A_PAGE + 1])
    shown = entries[:ON_A_PAGE]
    jobs = _jobs([entry.job_id for entry in shown if entry.job_id is not None], alias)
    following = f"{shown[-1].started_at.isoformat()},{shown[-1].pk}" if len(entries) > ON_A_PAGE else ""
    return Page([Waiting(entry, jobs.get(entry.job_id)) for entry in shown], following)


def mismatches(after: str, alias: str) -> Page:
    """Return the steps that the code of blocked jobs does not fit, oldest job first; `after` is the last job seen."""
    blocked = Job.objects.using(alias).with_status(JobStatus.BLOCKED).filter(blocked_reason="mismatch")
    last = parse_id(after)
    if last is not None:
        blocked = blocked.filter(id__gt=last)
    ids = list(blocked.order_by("id").values_list("id", flat=True)[: ON_A_PAGE + 1])
    shown = ids[:ON_A_PAGE]
    jobs = _jobs(shown, alias)
    notes = StepNote.objects.using(alias).filter(
        entry__run_id__in=[run_id_of(id) for id in shown], kind=StepNote.Kind.MISMATCH
    )
    latest = {note.entry.job_id: note for note in notes.select_related("entry").defer("entry__result").order_by("id")}
    lines = [Waiting(latest[id].entry, jobs.get(id), latest[id]) for id in shown if id in latest]
    return Page(lines, str(shown[-1]) if len(ids) > ON_A_PAGE else "")


def _place(after: str) -> tuple[datetime, int] | None:
    time, _comma, id = after.partition(",")
    last = parse_id(id)
    try:
        at = parse_datetime(time)
        # Converted to UTC here, as the database wants it: near the ends of time that fails.
        return (at.astimezone(UTC), last) if at is not None and at.tzinfo is not None and last is not None else None
    except (ValueError, OverflowError):
        return None


def _jobs(ids: Sequence[int], alias: str) -> dict[int | None, Job]:
    columns = ("id", "task_name", "queue_name", "status", "worker_id", "lease_token")
    return {job.pk: job for job in Job.objects.using(alias).filter(pk__in=ids).only(*columns)} if ids else {}
