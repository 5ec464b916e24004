"""What people see and do: workers, queues, what finished, and who did what."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class WorkerProcess(models.Model):
    """One running worker process, for people to see; and while it is live, its jobs are not rescued."""

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
        """Tell whether it has been heard from lately: its heartbeat comes three times per lease."""
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
    """What one worker finished of one task in one minute, for charts and percentiles; no decision is based on it.

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
    """What a person did to jobs, queues or steps: who, what, to how many, by which filter, and why.

    Never deleted; what changes is how far an action on many jobs has come. See `gnlqueue.bulk`.
    """

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
