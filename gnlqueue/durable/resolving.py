"""A human's answer to what the code could not know.

An answer is one guarded UPDATE: it matches only if the entry has had as many decisions as its author saw, and counts
one more. So whoever decides on an outdated view is told who decided what in the meantime, even where the step is still
in doubt, as it is after `FailJob`. Who, when and why are kept as a `StepNote`.
"""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction
from django.db.models import F, Q, QuerySet

from gnlqueue import dialects, payloads, signals
from gnlqueue.answers import FailJob, GoOn, Happened, NotHappened, Resolution, UseRecorded, as_text, kind_of
from gnlqueue.dialects import now as clock
from gnlqueue.durable.entries import LONGEST_NOTE, encode_result
from gnlqueue.durable.keys import is_renaming, key_hash
from gnlqueue.durable.verdicts import Verdicts, asked_instead
from gnlqueue.exceptions import AlreadyResolved, GnlqueueError, JobNotFound, WrongStatus
from gnlqueue.models import OUTCOME_RECORDED, EntryStatus, Job, JobAttempt, JobStatus, RunJournalEntry, StepNote
from gnlqueue.queue import operating
from gnlqueue.queue.attempts import LONGEST_REASON
from gnlqueue.queue.transactions import alias_of, retried
from gnlqueue.redaction import MASK, hides_something


def resolve(
    entry: RunJournalEntry | int, answer: Resolution, *, by: str, reason: str, using: str | None = None
) -> RunJournalEntry:
    """Decide about a step in doubt, or about a mismatch between code and journal, and return the entry.

    In doubt: `Happened(result)`, `NotHappened()` (it runs again, once) or `FailJob()`. A mismatch: `GoOn()` after the
    code was put right, `UseRecorded()`, or `FailJob()`; where the code asks for a step that looks like this one under
    another name, `NotHappened()` as well: that one is another step, which then runs. The job goes on when none of its
    steps is in doubt any more. `by` is who decides, `reason` why; both are kept.

    Pass the entry that you read, and the decision counts only if nobody has decided since. Pass its id, and it is about
    the step as it is now; if the last decision was `FailJob`, it counts only once the job has been retried and blocks
    again, or has been cancelled.

    Raises `AlreadyResolved` when somebody else was first, `WrongStatus` for `FailJob` when the job is not blocked,
    `ValueError` for an answer that does not apply, `PayloadError` for a result that JSON cannot carry,
    `JobNotFound` where there is no such entry.
    """
    if not by or not reason:
        raise ValueError("Say who decides (by) and why (reason): whoever reads this later will want to know.")
    alias = alias_of(using if isinstance(entry, int) else using or entry._state.db)
    entry_id, seen = (entry, None) if isinstance(entry, int) else (entry.pk, entry.decisions)
    row = retried(alias, lambda: _resolve(entry_id, seen, answer, by, reason, alias))
    signals.send(signals.job_resolved, job_id=row.job_id, entry=row)
    return row


def in_doubt(*, using: str | None = None, limit: int = 100) -> list[RunJournalEntry]:
    """Return the steps that wait for a decision, oldest first: those in doubt, then those the code does not fit.

    Those of a job that was failed are among them: it asks again once it is retried.
    """
    alias = alias_of(using)
    doubtful = RunJournalEntry.objects.using(alias).filter(status=EntryStatus.IN_DOUBT).order_by("started_at", "id")
    blocked = Job.objects.using(alias).with_status(JobStatus.BLOCKED).filter(blocked_reason="mismatch").order_by("id")
    mismatched = [entry for job in blocked[:limit] if (entry := mismatched_entry(job)) is not None]
    return list({entry.pk: entry for entry in (*doubtful[:limit], *mismatched)}.values())[:limit]


def mismatched_entry(job: Job | None) -> RunJournalEntry | None:
    """Return the entry that the code of a blocked job does not fit; `None` where the job is not blocked by a mismatch.

    It is the entry at which that was last found.
    """
    if job is None or job.status != JobStatus.BLOCKED or job.blocked_reason != "mismatch":
        return None
    notes = StepNote.objects.using(job._state.db).filter(entry__run_id=job.run_id, kind=StepNote.Kind.MISMATCH)
    note = notes.select_related("entry").order_by("-id").first()
    return note.entry if note is not None else None


def began_by(entry: RunJournalEntry, job: Job | None) -> tuple[int, str]:
    """Return the lease token and the worker of the claim that began a step, as far as that is known.

    The entry has the token of whoever wrote it last, which may be a claim that found it in doubt.
    """
    if job is None:
        return entry.lease_token, ""
    began = entry.started_at
    if job.last_attempted_at is not None and job.last_attempted_at <= began:
        return job.lease_token, job.worker_id or ""
    attempts = JobAttempt.objects.using(entry._state.db).filter(job_id=job.pk, started_at__lte=began)
    attempt = attempts.filter(ended_at__gte=began).order_by("-id").only("lease_token", "worker_id").first()
    return (entry.lease_token, "") if attempt is None else (attempt.lease_token, attempt.worker_id)


def was_failed(entry: RunJournalEntry, job: Job | None) -> bool:
    """Tell whether the last decision was to fail the job, and the job, which asks again when retried, has not yet."""
    # Whoever cancelled it after that has ended the matter: it will not ask.
    if job is None or job.status in {JobStatus.BLOCKED, JobStatus.CANCELLED}:
        return False
    note = _decisions(entry).first()
    return note is not None and kind_of(note.value) is FailJob


def kept_answer(note: StepNote) -> str:
    """Return the answer that a note of a decision keeps, without a result in which something may have to be hidden."""
    # A repr is not JSON, so nobody knows which parts of it belong to a name that is to be hidden.
    return f"Happened({MASK})" if kind_of(note.value) is Happened and hides_something() else note.value or ""


def _resolve(entry_id: int, seen: int | None, answer: Resolution, by: str, reason: str, alias: str) -> RunJournalEntry:
    # On SQLite a transaction that reads and then writes must take its right to write at once.
    with dialects.of(alias).write_transaction(connections[alias]), transaction.atomic(using=alias):
        row = RunJournalEntry.objects.using(alias).filter(pk=entry_id).first()
        if row is None:
            raise JobNotFound(f"There is no journal entry {entry_id} on the database {alias!r}.")
        job_id = row.job_id
        # The job's row first: whoever blocks a job writes it first too, so that one of us sees the other's work.
        job = Job.objects.using(alias).select_for_update().filter(pk=job_id).first() if job_id else None
        if seen is not None:
            row.decisions = seen
        elif was_failed(row, job):
            raise _already_resolved(row, "Retry the job: it asks again, and then you can decide.")
        try:
            _apply(row, job, answer, reason, alias)
        except AlreadyResolved:
            _refuse_wrong_answer(row, job, answer)
            raise
        _note(row, answer, by, reason, alias)
        if job is not None and not isinstance(answer, FailJob):
            operating.unblock_settled(job.pk, alias=alias)
        row.refresh_from_db(using=alias)
        return row


def _apply(row: RunJournalEntry, job: Job | None, answer: Resolution, reason: str, alias: str) -> None:
    if isinstance(answer, Happened):
        text = encode_result(answer.result)
        _change(row, EntryStatus.IN_DOUBT, status=EntryStatus.DONE, result=text, error=None, finished_at=clock())
    elif isinstance(answer, NotHappened) and not _looks_renamed(row, job):
        _change(row, EntryStatus.IN_DOUBT, status=EntryStatus.RELEASED)
    elif isinstance(answer, FailJob):
        _fail(row, job, reason, alias)
    elif isinstance(answer, GoOn | UseRecorded | NotHappened):
        _end_mismatch(row, job, answer, alias)
    else:
        raise ValueError(f"{answer!r} is not an answer: use Happened, NotHappened, FailJob, GoOn or UseRecorded.")


def _change(row: RunJournalEntry, *known: EntryStatus, **values: Any) -> None:
    """Write a decision, unless there was one that its author had not seen, or the status is not one of the `known`."""
    guard = Q(pk=row.pk, decisions=row.decisions)
    guard &= Q(status__in=known) if known else Q()
    if RunJournalEntry.objects.using(row._state.db).filter(guard).update(decisions=F("decisions") + 1, **values) != 1:
        raise _already_resolved(row)


def _fail(row: RunJournalEntry, job: Job | None, reason: str, alias: str) -> None:
    if job is None:
        raise ValueError("This run belongs to no job; answer Happened or NotHappened.")
    _change(row)
    why = payloads.scrub(f"Given up by a human: {reason}", LONGEST_REASON)
    if not operating.fail_blocked(job.pk, why, alias=alias):
        raise _nothing_to_fail(row, job)


def _end_mismatch(row: RunJournalEntry, job: Job | None, answer: GoOn | UseRecorded | NotHappened, alias: str) -> None:
    entry = mismatched_entry(job)
    if entry is None:
        raise _already_resolved(row)
    if entry != row:
        raise ValueError(
            f"The run {row.run_id!r} is blocked at a step other than {row.key!r}: manage.py gnlqueue blocked lists it."
        )
    if isinstance(answer, GoOn | NotHappened):
        _change(row)
        return
    if row.status not in OUTCOME_RECORDED:
        raise ValueError(
            f"The step {row.key!r} is {row.status}: there is no recorded result to use. Put the code right and go on, "
            "or fail the job."
        )
    got = _asked_instead(row)
    if not got:
        raise ValueError(
            f"The code no longer asks for the step {row.key!r}: go on without its result, or fail the job."
        )
    if is_renaming(row.key, got["key"]):
        said = Verdicts(row.run_id, alias).is_same(row.key, got["key"])
        if said and (got["kind"], got["args_hash"]) == (row.kind, row.args_hash):
            raise ValueError(
                f"Somebody has already said that {got['key']!r} is {row.key!r}, and the code asks for both. Put it "
                "right and go on, or say that they are two steps (NotHappened(), --not-happened)."
            )
        # The run finds this answer by its note, and uses it for every other step of that name, too.
        _change(row, EntryStatus(row.status), kind=got["kind"], args_hash=got["args_hash"])
        return
    taken = RunJournalEntry.objects.using(alias).filter(key_hash=key_hash(row.run_id, got["key"])).exclude(pk=row.pk)
    if taken.exists():
        raise ValueError(f"The step {got['key']!r} has a record of its own; put the code right and go on.")
    _change(row, EntryStatus(row.status), key_hash=key_hash(row.run_id, got["key"]), **got)


def _asked_instead(row: RunJournalEntry) -> dict[str, Any]:
    """Return what the code asked for instead of a step that it does not fit; {} where it left the step out."""
    note = row.notes.filter(kind=StepNote.Kind.MISMATCH).order_by("-id").first()
    return asked_instead(note.value) if note is not None else {}


def _looks_renamed(row: RunJournalEntry, job: Job | None) -> bool:
    """Tell whether the job is blocked because the code asks for a step that looks like this one under another name."""
    return mismatched_entry(job) == row and is_renaming(row.key, _asked_instead(row).get("key", ""))


def _refuse_wrong_answer(row: RunJournalEntry, job: Job | None, answer: Resolution) -> None:
    """Raise `ValueError` for an answer to a question that this step does not ask, and name the answers that fit.

    Not where somebody has decided in the meantime: then the caller is told that instead.
    """
    locked = RunJournalEntry.objects.using(row._state.db).select_for_update().filter(pk=row.pk)
    status, decisions = locked.values_list("status", "decisions").get()
    if decisions != row.decisions:
        return
    blocked = job if job is not None and job.status == JobStatus.BLOCKED else None
    mismatch = mismatched_entry(job) == row
    if isinstance(answer, Happened | NotHappened) and mismatch and status != EntryStatus.IN_DOUBT:
        wrong, fits = "is not in doubt: the code does not fit it", ["GoOn() (--go-on)"]
        if status in OUTCOME_RECORDED and _asked_instead(row):
            fits.append("UseRecorded() (--use-recorded)")
        if _looks_renamed(row, job):
            fits.append("NotHappened() (--not-happened)")
    elif isinstance(answer, GoOn | UseRecorded) and not mismatch and status == EntryStatus.IN_DOUBT:
        wrong = "is in doubt, which is no mismatch"
        fits = ["Happened(result) (--happened JSON)", "NotHappened() (--not-happened)"]
    else:
        return
    if blocked:
        fits.append("FailJob() (--fail-job)")
    raise ValueError(
        f"The step {row.key!r} of {row.run_id!r} {wrong}. Answers that fit: {' or '.join(fits)}."
    ) from None


def _note(row: RunJournalEntry, answer: Resolution, by: str, reason: str, alias: str) -> None:
    note = StepNote(
        entry=row,
        kind=StepNote.Kind.RESOLUTION,
        by=by[:200],
        at=clock(),
        why=payloads.scrub(reason, LONGEST_NOTE),
        value=payloads.scrub(as_text(answer), LONGEST_NOTE),
    )
    note.save(using=alias, force_insert=True)


def _decisions(row: RunJournalEntry) -> QuerySet[StepNote]:
    """Return what was decided about an entry, latest first."""
    notes = StepNote.objects.using(row._state.db).filter(entry_id=row.pk, kind=StepNote.Kind.RESOLUTION)
    return notes.order_by("-id")


def _nothing_to_fail(row: RunJournalEntry, job: Job) -> GnlqueueError:
    """Return what to raise for a job that is not blocked: because of what was decided, or for another reason."""
    if row.status != EntryStatus.IN_DOUBT and _decisions(row).exists():
        return _already_resolved(row)
    return WrongStatus(f"Job {job.pk} is {job.status}, not blocked: there is nothing to fail.")


def _already_resolved(
    row: RunJournalEntry, what_to_do: str = "It is still in doubt: look at it again, then decide."
) -> AlreadyResolved:
    # Locked: on MariaDB at REPEATABLE READ a plain read does not see what was committed after our first one.
    entry = RunJournalEntry.objects.using(row._state.db).select_for_update().filter(pk=row.pk)
    row.status = entry.values_list("status", flat=True).first() or row.status
    note = _decisions(row).select_for_update().first()
    if note is None:
        return AlreadyResolved(
            f"The step {row.key!r} of {row.run_id!r} is not waiting for a decision: it is {row.status}."
        )
    text = (
        f"The step {row.key!r} of {row.run_id!r} has been resolved by {note.by} at {note.at:%Y-%m-%d %H:%M:%S} UTC: "
        f"{kept_answer(note)}. {note.why}"
    )
    return AlreadyResolved(f"{text.rstrip('. ')}. {what_to_do}" if row.status == EntryStatus.IN_DOUBT else text)
