"""The journals of durable runs, and the locks on runs."""

from __future__ import annotations

import hashlib
from typing import ClassVar

from django.db import models
from django.db.models import OuterRef, Q, Value
from django.db.models.functions import Cast, Concat
from django.utils.translation import gettext_lazy as _

from gnlqueue.indexes import PartialIndex


class StepKind(models.TextChoices):
    """What a run records."""

    STEP = "step"
    IDEMPOTENT = "idempotent_step"
    ATOMIC = "atomic_step"
    SLEEP = "sleep"
    NOW = "now"


#: The kinds that only note a time: nothing outside of the run has changed.
NOT_EFFECTS = (StepKind.SLEEP, StepKind.NOW)

#: How the id of a job's run begins; the job's id follows.
RUN_OF_JOB = "job:"


def run_id_of(job_id: int) -> str:
    """Return the id of a job's durable run."""
    return f"{RUN_OF_JOB}{job_id}"


def run_id_of_outer_job() -> Concat:
    """Return the same as an expression, for a subquery on the jobs."""
    return Concat(Value(RUN_OF_JOB), Cast(OuterRef("pk"), models.CharField()), output_field=models.CharField())


class EntryStatus(models.TextChoices):
    """What is known of a step."""

    STARTED = "started"  #: began; if its attempt is gone, the outcome is unknown
    DONE = "done"  #: happened, result stored; never runs again
    FAILED = "failed"  #: known not to have happened
    IN_DOUBT = "in_doubt"  #: nobody knows; a human decides
    RELEASED = "released"  #: a human said it did not happen; runs once more


#: Once their attempt is gone, nobody knows whether these happened.
OUTCOME_UNKNOWN = (EntryStatus.STARTED, EntryStatus.IN_DOUBT)

#: What came of these is recorded, so that it can be used for what the code asks for now.
OUTCOME_RECORDED = (EntryStatus.DONE, EntryStatus.FAILED)


class RunJournalEntry(models.Model):
    """One step of a durable run, with its stored result."""

    id = models.BigAutoField(primary_key=True)
    run_id = models.CharField(max_length=200)
    position = models.PositiveIntegerField(help_text="Order in which the steps began.")
    key = models.TextField(help_text="The step's name, name#2 when repeated, name[key] when keyed.")
    key_hash = models.CharField(max_length=64, help_text="SHA-256 of run id and key, which is what is unique.")
    kind = models.CharField(max_length=20, help_text="step, idempotent_step, atomic_step, sleep or now.")
    status = models.CharField(max_length=12, choices=EntryStatus.choices)
    args_hash = models.CharField(max_length=64, null=True)
    function = models.CharField(max_length=200, null=True, help_text="Dotted name of what the step called first.")
    instead_of = models.JSONField(
        null=True, help_text="Entries that were done, look like it, and were not asked for when it began."
    )
    result = models.TextField(null=True, help_text="Canonical JSON text; not JSONField, which reorders keys.")
    error = models.JSONField(null=True)
    lease_token = models.BigIntegerField(help_text="Token of the claim (or run lock) that wrote it.")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    # In the database too: a worker of the version before, in a rolling deploy, does not name the column. Not a
    # PositiveIntegerField: to check what is there already, the server would keep everybody out of the table.
    decisions = models.IntegerField(
        default=0, db_default=0, help_text="How many there were; a new one that knows of fewer does not count."
    )

    class Meta:
        verbose_name_plural = _("run journal entries")
        default_permissions = ("view",)
        permissions: ClassVar = [("resolve_runjournalentry", _("Can decide about steps in doubt"))]
        constraints: ClassVar = [models.UniqueConstraint(fields=["key_hash"], name="gnlqueue_entry_key")]
        indexes: ClassVar = [
            models.Index(fields=["run_id", "position"], name="gnlqueue_entry_run"),
            PartialIndex(
                fields=["started_at", "id"],
                where=Q(status="in_doubt"),
                instead=["status", "started_at", "id"],
                name="gnlqueue_entry_in_doubt",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.run_id}"

    @property
    def job_id(self) -> int | None:
        """The id of the job whose run this is; `None` for a run outside a job."""
        number = self.run_id.removeprefix(RUN_OF_JOB)
        return int(number) if number.isdigit() and number != self.run_id else None

    @property
    def how_to_check(self) -> str:
        """What the developer wrote for whoever decides about a step in doubt; "" if nothing."""
        return str((self.error or {}).get("how_to_check") or "")


class StepNote(models.Model):
    """What happened around a step, append only.

    Evidence that a late worker brought, a mismatch between code and journal, or a human's resolution.
    """

    class Kind(models.TextChoices):
        EVIDENCE = "evidence"
        MISMATCH = "mismatch"
        RESOLUTION = "resolution"

    entry = models.ForeignKey(RunJournalEntry, models.CASCADE, related_name="notes")
    lease_token = models.BigIntegerField(null=True)
    kind = models.CharField(max_length=12, choices=Kind.choices)
    by = models.CharField(max_length=200)
    at = models.DateTimeField()
    why = models.TextField()
    value = models.TextField(null=True)

    def __str__(self) -> str:
        return f"{self.kind} by {self.by}"


class RunLock(models.Model):
    """A lock on a run id that user code takes; another row than the job's lease, so that the two nest."""

    run_id = models.CharField(max_length=200)
    run_id_hash = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of the run id.")
    lease_token = models.BigIntegerField(default=0, help_text="Fencing token: +1 on every acquisition, never reset.")
    owner = models.CharField(max_length=100, null=True)
    acquired_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.run_id

    @staticmethod
    def key(run_id: str) -> str:
        """Return the primary key of the lock on a run id."""
        return hashlib.sha256(run_id.encode()).hexdigest()
