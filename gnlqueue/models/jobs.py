"""Jobs, and their attempts that failed."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from django.db import connections, models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from gnlqueue.indexes import PartialIndex, UniqueWhereSet
from gnlqueue.models.runs import RunJournalEntry, run_id_of


class JobStatus(models.TextChoices):
    """Where a job is in its life."""

    SCHEDULED = "scheduled"  #: waits for its time; not in the index that claims read
    READY = "ready"  #: may be claimed now
    IN_PROGRESS = "in_progress"  #: a worker holds the lease
    BLOCKED = "blocked"  #: a step's outcome is unknown: waits for a human
    DONE = "done"  #: finished, result stored
    DEAD = "dead"  #: attempts used up or given up; kept for a human
    CANCELLED = "cancelled"  #: somebody asked for it


WAITING = (JobStatus.SCHEDULED, JobStatus.READY)
FINISHED = (JobStatus.DONE, JobStatus.DEAD, JobStatus.CANCELLED)


def key_hash_of(idempotency_key: str) -> str:
    """Return what is unique of an idempotency key; see `gnlqueue.models`."""
    # What cannot be encoded is only ever searched for: no key has any.
    return hashlib.sha256(idempotency_key.encode(errors="replace")).hexdigest()


class _StatusLiteral(models.Value):
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
        """Jobs of one status, with the status as a literal so that partial indexes apply."""
        return self.filter(status=_StatusLiteral(status))

    def locked(self) -> JobQuerySet:
        """These jobs, locked as they are read, without those that somebody else has locked."""
        return self.select_for_update(skip_locked=connections[self.db].features.has_select_for_update_skip_locked)


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
        return run_id_of(self.pk)

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
