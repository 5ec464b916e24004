"""`manage.py gnlqueue blocked` and `resolve`: the decisions that wait for a human, and taking one."""

from __future__ import annotations

import getpass
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnlqueue.answers import FailJob, GoOn, Happened, NotHappened, Resolution, UseRecorded
from gnlqueue.durable.entries import is_whole
from gnlqueue.durable.resolving import began_by, in_doubt, kept_answer, resolve, was_failed
from gnlqueue.management.output import arguments_of, cut, say_if_more
from gnlqueue.models import Job, JobAttempt, JobStatus, RunJournalEntry, StepNote
from gnlqueue.queue.transactions import alias_of
from gnlqueue.redaction import MASK, masked_text


def show_blocked(command: BaseCommand, options: dict[str, Any]) -> None:
    """List what waits, with all that is known of it."""
    found = in_doubt(using=options["database"], limit=options["limit"] + 1)
    entries = found[: options["limit"]]
    ids = {entry.job_id for entry in entries} - {None}
    jobs = Job.objects.using(alias_of(options["database"])).in_bulk(ids)
    for entry in entries:
        _show(command, entry, jobs.get(entry.job_id))
    if entries:
        command.stdout.write(
            "Decide: manage.py gnlqueue resolve ENTRY --reason TEXT, with --happened JSON or --not-happened (in "
            "doubt), --go-on or --use-recorded (a mismatch), or --fail-job"
        )
    else:
        command.stdout.write(command.style.SUCCESS("Nothing waits for a decision."))
    say_if_more(command, found, options["limit"])


def _show(command: BaseCommand, entry: RunJournalEntry, job: Job | None) -> None:
    write = command.stdout.write
    calls = f", calls {entry.function}" if entry.function else ""
    name = command.style.WARNING(f"entry {entry.pk}")
    write(f"{name}  {entry.key}  of {entry.run_id}, {entry.kind}{calls}")
    if job is not None:
        write(f"    {job.task_name}({arguments_of(job)}), {job.get_status_display().lower()}")
        if job.status == JobStatus.DEAD and was_failed(entry, job):
            write(f"    it asks again once it is retried: manage.py gnlqueue retry {job.pk}")
    token, worker_id = began_by(entry, job)
    by = f" on {worker_id}" if worker_id else ""
    write(f"    began {entry.started_at:%Y-%m-%d %H:%M:%S} UTC under token {token}{by}")
    error = entry.error or {}
    if error.get("message"):
        write(f"    it raised {error['classes'][0]}: {error['message']}")
    if entry.how_to_check:
        write(f"    how to check: {entry.how_to_check}")
    for note in entry.notes.order_by("id"):
        # The value of a mismatch is what the code asked for, which its text says better.
        has_value = note.value is not None and note.kind != StepNote.Kind.MISMATCH
        value = f" [{cut(_value_of(note))}]" if has_value else ""
        write(
            f"    {note.get_kind_display().lower()}, {note.at:%Y-%m-%d %H:%M:%S} UTC, {note.by}"
            f"{_claim_of(entry, note)}: {note.why}{value}"
        )


def _value_of(note: StepNote) -> str:
    """Return what a note keeps, an answer or what was brought back, masked."""
    if note.kind == StepNote.Kind.RESOLUTION:
        return kept_answer(note)
    return masked_text(note.value or "", is_whole=is_whole(note), indent=None) or MASK


def _claim_of(entry: RunJournalEntry, note: StepNote) -> str:
    """Return the attempt and the worker that a note comes from, if they are known."""
    if note.lease_token is None or entry.job_id is None:
        return ""
    attempts = JobAttempt.objects.using(entry._state.db)
    attempt = attempts.filter(job_id=entry.job_id, lease_token=note.lease_token).first()
    return "" if attempt is None else f" (attempt {attempt.number} on {attempt.worker_id})"


def decide(command: BaseCommand, options: dict[str, Any]) -> None:
    """Record what a human says about one entry."""
    answer, by = _answer(options), options["by"] or _user_of_this_shell()
    entry = resolve(options["entry"], answer, by=by, reason=options["reason"], using=options["database"])
    command.stdout.write(f"entry {entry.pk}  {entry.key} of {entry.run_id}: {entry.get_status_display().lower()}")


def _answer(options: dict[str, Any]) -> Resolution:
    """Return the answer that the flags give; the parser has seen to it that there is exactly one."""
    if options["not_happened"]:
        return NotHappened()
    if options["fail_job"]:
        return FailJob()
    if options["go_on"]:
        return GoOn()
    if options["use_recorded"]:
        return UseRecorded()
    try:
        return Happened(json.loads(options["happened"]))
    except ValueError as error:
        raise CommandError(f"--happened takes the step's result as JSON (null for none): {error}") from None


def _user_of_this_shell() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError) as error:  # a container whose user has no name
        raise CommandError("Say who decides, with --by NAME: the user of this shell has no name.") from error
