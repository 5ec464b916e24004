"""The rows of the queue, their constraints and indexes. Nothing here writes: the verbs are in `gnlqueue.queue`.

Text that must be unique is unique by its SHA-256, because MariaDB's collations hold "receipt:ab", "receipt:AB" and
"receipt:ab " for one text. People are stored as text, so that a log survives the user's account.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from gnlqueue.indexes import PartialIndex, UniqueWhereSet


class JobStatus(models.TextChoices):
    """Where a job is in its life."""

    SCHEDULED = "scheduled"  #: waits for its time; not in the index that claims read
    READY = "ready"  #: may be claimed now
    IN_PROGRESS = "in_progress"  #: a worker holds the lease
    BLOCKED = "blocked"  #: a step's outcome is unknown: waits for a human
    DONE = "done"  #: finished, result stored
    DEAD = "dead"  #: attempts used up or given up; kept for a human
    CANCELLED = "cancelled"  #: somebody asked for it


class Status(models.Value):
    """A job status that stands in the SQL as a literal.

    PostgreSQL plans a prepared statement once for all parameters; with `status = $1` it cannot know that the partial
    index applies.
    """

    def __init__(self, status: JobStatus) -> None:
        super().__init__(status.value, output_field=models.CharField())

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return f"'{self.value}'", ()


class JobQuerySet(models.QuerySet["Job"]):
    """Reads. Writing goes through `gnlqueue.queue`, which knows who holds a job."""

    def with_status(self, status: JobStatus) -> JobQuerySet:
        """Jobs of one status, with the status as a literal so that partial indexes serve."""
        return self.filter(status=Status(status))


class Job(models.Model):
    """One enqueued call of a task. Its run id, the same over all attempts, is `job:<id>`."""

    Status = JobStatus

    id = models.BigAutoField(primary_key=True)
    task_name = models.CharField(max_length=200, help_text="The registered name; never imported as a path.")
    queue_name = models.CharField(max_length=64, default="default")
    args = models.JSONField(default=list)
    kwargs = models.JSONField(default=dict)
    priority = models.SmallIntegerField(default=0, help_text="-100 to 100, higher first.")
    status = models.CharField(max_length=12, choices=JobStatus.choices, default=JobStatus.READY)
    run_at = models.DateTimeField(help_text="Not before this time; orders jobs of one priority.")
    attempts = models.PositiveIntegerField(default=0, help_text="Claims that counted.")
    max_attempts = models.PositiveIntegerField(null=True, help_text="Null: what the task says.")
    crashes = models.PositiveIntegerField(default=0, help_text="Attempts in a row whose process died.")
    options = models.JSONField(null=True, help_text="What `.using()` or a backend set for this job, if anything.")
    idempotency_key = models.CharField(max_length=200, null=True)
    key_hash = models.CharField(max_length=64, null=True, help_text="SHA-256 of the key, which is what is unique.")
    lease_token = models.BigIntegerField(default=0, help_text="Fencing token: +1 on every claim, never reset.")
    lease_expires_at = models.DateTimeField(null=True)
    worker_id = models.CharField(max_length=100, null=True)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, help_text="Of the first attempt.")
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True, help_text="When it became done, dead or cancelled.")
    cancel_requested_at = models.DateTimeField(null=True)
    unknown_since = models.DateTimeField(null=True, help_text="Since when no worker has known its task.")
    blocked_reason = models.CharField(max_length=20, null=True, help_text="in_doubt or mismatch.")
    progress = models.JSONField(null=True)
    origin = models.ForeignKey("self", models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    result = models.JSONField(null=True)
    last_error = models.TextField(null=True)

    objects = JobQuerySet.as_manager()

    #: Whether `enqueue()` made this job; False where its idempotency key found an earlier one, and on rows read back.
    created: ClassVar[bool] = False

    class Meta:
        constraints: ClassVar = [UniqueWhereSet(field="key_hash", name="gnlqueue_job_key")]
        indexes: ClassVar = [
            # The claim's ORDER BY, so that a claim reads as many rows as it takes.
            PartialIndex(
                fields=["queue_name", "-priority", "run_at", "id"],
                where=Q(status="ready"),
                instead=["status", "queue_name", "-priority", "run_at", "id"],
                name="gnlqueue_job_ready",
            ),
            PartialIndex(
                fields=["queue_name", "run_at", "id"],
                where=Q(status="scheduled"),
                instead=["status", "queue_name", "run_at", "id"],
                name="gnlqueue_job_scheduled",
            ),
            # Without lease_expires_at: a heartbeat that changes an indexed column rewrites every index.
            PartialIndex(
                fields=["queue_name", "id"],
                where=Q(status="in_progress"),
                instead=["status", "queue_name", "id"],
                name="gnlqueue_job_in_progress",
            ),
            PartialIndex(
                fields=["status", "finished_at", "id"],
                where=Q(finished_at__isnull=False),
                instead=["status", "finished_at", "id"],
                name="gnlqueue_job_finished",
            ),
            # Few rows, which people look for; MySQL finds them by the status that leads its other indexes.
            PartialIndex(
                fields=["id"], where=Q(status="blocked"), instead=["blocked_reason", "id"], name="gnlqueue_job_blocked"
            ),
            # Few jobs are made from another; the others have no entry in it, but on MySQL.
            PartialIndex(
                fields=["origin", "id"], where=Q(origin__isnull=False), instead=["origin"], name="gnlqueue_job_origin"
            ),
        ]
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)  # nobody adds, changes or deletes a job by hand: there are verbs
        permissions: ClassVar = [
            ("retry_job", _("Can retry dead and cancelled jobs")),
            ("run_job_now", _("Can let a waiting job run now")),
            ("reschedule_job", _("Can let a waiting job run at another time")),
            ("cancel_job", _("Can cancel jobs")),
            ("enqueue_job_again", _("Can enqueue a job again, with other arguments")),
            ("view_job_payload", _("Can see arguments, results and the texts of errors")),
        ]

    def __str__(self) -> str:
        return f"job {self.pk} ({self.task_name})"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to overwrite a row: a worker may hold it, and a plain save would undo what it stores."""
        if not self._state.adding:
            raise TypeError(
                f"{self} must not be saved: a worker may be changing it. Use the verb for what you want: cancel, "
                "retry, reschedule or enqueue_again of gnlqueue.queue; or Job.objects.filter(…).update(…) if you "
                "know that no worker runs."
            )
        super().save(*args, **kwargs)

    @property
    def run_id(self) -> str:
        """The id of the job's durable run."""
        return f"job:{self.pk}"

    @property
    def entries(self) -> models.QuerySet[RunJournalEntry]:
        """The journal of the job's run, in the order in which its steps began."""
        rows = RunJournalEntry.objects.using(self._state.db).filter(run_id=self.run_id)
        return rows.order_by("position", "id")


class JobAttempt(models.Model):
    """One attempt that failed, timed out or was lost. Attempt numbers repeat (release, retry); tokens do not."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="failed_attempts")
    number = models.PositiveIntegerField()
    lease_token = models.BigIntegerField()
    worker_id = models.CharField(max_length=100)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    exception_class = models.CharField(max_length=200, help_text="Dotted path; empty where there was no exception.")
    error = models.TextField(help_text="The reason or the traceback, capped.")

    class Meta:
        indexes: ClassVar = [models.Index(fields=["exception_class", "ended_at"], name="gnlqueue_attempt_error")]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"


class EntryStatus(models.TextChoices):
    """What is known of a step."""

    STARTED = "started"  #: began; if its attempt is gone, the outcome is unknown
    DONE = "done"  #: happened, result stored; never runs again
    FAILED = "failed"  #: known not to have happened
    IN_DOUBT = "in_doubt"  #: nobody knows; a human decides
    RELEASED = "released"  #: a human said it did not happen; runs once more


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
        prefix, _, number = self.run_id.partition(":")
        return int(number) if prefix == "job" and number.isdigit() else None


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


class WorkerProcess(models.Model):
    """One running worker process, for people to see; no decision about a job is taken from this row."""

    worker_id = models.CharField(max_length=100, unique=True)
    hostname = models.CharField(max_length=200)
    pid = models.PositiveIntegerField()
    queues = models.JSONField()
    concurrency = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    lease_seconds = models.FloatField(default=60, help_text="How long it owns a job without a heartbeat.")

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.worker_id

    def is_live(self, now: datetime) -> bool:
        """Tell whether it has been heard of lately: its heartbeat comes three times in its own lease."""
        return now - self.heartbeat_at <= timedelta(seconds=self.lease_seconds)


class QueueState(models.Model):
    """What an operator said about a queue; a queue without a row just runs."""

    queue_name = models.CharField(max_length=64, primary_key=True)
    paused_at = models.DateTimeField(null=True, help_text="While set, nothing is claimed from this queue.")

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions: ClassVar = [("pause_queuestate", _("Can pause and resume queues"))]

    def __str__(self) -> str:
        return self.queue_name


class TaskMinute(models.Model):
    """What one worker finished of one task in one minute, for charts and percentiles; no decision is taken from it.

    A worker writes its rows every few seconds; what it counted since then is lost when it is killed.
    """

    minute = models.DateTimeField(help_text="Its beginning.")
    queue_name = models.CharField(max_length=64)
    task_name = models.CharField(max_length=200)
    worker_id = models.CharField(max_length=100)
    succeeded = models.PositiveIntegerField(default=0, help_text="Jobs that became done.")
    failed = models.PositiveIntegerField(default=0, help_text="Attempts that failed, the last one of a job included.")
    waits = models.JSONField(default=dict, help_text="Histogram of the time from due to start: bucket to count.")
    runs = models.JSONField(default=dict, help_text="Histogram of the time from start to end: bucket to count.")

    class Meta:
        indexes: ClassVar = [models.Index(fields=["minute", "queue_name"], name="gnlqueue_minute")]
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.task_name} at {self.minute:%Y-%m-%d %H:%M} on {self.worker_id}"


class OperatorAction(models.Model):
    """What a person did to jobs, queues or steps: who, what, to how many, by which filter, and why. Append only."""

    at = models.DateTimeField()
    by = models.CharField(max_length=200)
    verb = models.CharField(max_length=40, help_text="retry, run_now, reschedule, cancel, enqueue_again, resolve, …")
    target = models.CharField(
        max_length=200, help_text="What it was done to, in words: job 5, queue billing, 312 jobs."
    )
    job_id = models.BigIntegerField(null=True, help_text="The job, where it was one.")
    where = models.JSONField(null=True, help_text="The frozen filter of a bulk action.")
    why = models.TextField(blank=True)
    done = models.PositiveIntegerField(default=0, help_text="Rows that changed.")
    skipped = models.PositiveIntegerField(default=0, help_text="Rows that had changed meanwhile and were left alone.")
    runner_id = models.BigIntegerField(null=True, help_text="The background job that does it, where it is many.")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator log")
        indexes: ClassVar = [models.Index(fields=["job_id"], name="gnlqueue_action_job")]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.verb} {self.target} by {self.by}"


class Overview(Job):
    """The page that says whether the queue is well."""

    class Meta:
        proxy = True
        verbose_name = verbose_name_plural = _("overview")
        default_permissions = ("view",)


class DeadJob(Job):
    """Jobs that are dead, as a page of its own."""

    class Meta:
        proxy = True
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ("view",)


class StepInDoubt(RunJournalEntry):
    """Steps that wait for a person's decision, as a page of its own."""

    class Meta:
        proxy = True
        verbose_name = _("step in doubt")
        verbose_name_plural = _("in doubt")
        default_permissions = ("view",)
