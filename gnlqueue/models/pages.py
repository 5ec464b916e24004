"""Jobs and steps that the admin shows on pages of their own: no tables, but names and permissions."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from gnlqueue.models.jobs import Job
from gnlqueue.models.runs import RunJournalEntry


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
