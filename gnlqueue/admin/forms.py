"""What the verbs ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gnlqueue import payloads
from gnlqueue.conf import settings
from gnlqueue.exceptions import PayloadError
from gnlqueue.models import Job
from gnlqueue.redaction import redacted, unmasked
from gnlqueue.registry import find_task

T = TypeVar("T")

LONGEST_REASON = 2_000
LONGEST_SPREAD = 7 * 24 * 60  # minutes


class ReasonForm(forms.Form):
    """Why it is done; kept in the operator log."""

    why = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 60}),
        help_text=gettext_lazy("Kept in the operator log."),
    )
    use_required_attribute = True

    def options(self) -> dict[str, Any]:
        """Return what was answered, as arguments of the verb."""
        return {}


class RescheduleForm(ReasonForm):
    """When it is to start."""

    run_at = forms.DateTimeField(
        label=gettext_lazy("Not before"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S"),
    )
    field_order: tuple[str, ...] = ("run_at", "why")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zone = timezone.get_current_timezone_name()
        self.fields["run_at"].help_text = _("In the time zone %(zone)s.") % {"zone": zone}

    def options(self) -> dict[str, Any]:
        run_at: datetime = self.cleaned_data["run_at"]
        return {"run_after": run_at if timezone.is_aware(run_at) else timezone.make_aware(run_at)}


class SpreadForm(ReasonForm):
    """Over what time many jobs are spread."""

    minutes = forms.IntegerField(
        label=gettext_lazy("Spread over"),
        required=False,
        initial=0,
        min_value=0,
        max_value=LONGEST_SPREAD,
        help_text=gettext_lazy("Minutes over which the jobs start, at random. 0: all at once."),
    )
    field_order: tuple[str, ...] = ("minutes", "why")

    def spread(self) -> timedelta:
        """Return the length of time over which the jobs are to start."""
        return timedelta(minutes=self.cleaned_data.get("minutes") or 0)


class BulkRescheduleForm(SpreadForm, RescheduleForm):
    """When many jobs are to start."""

    field_order = ("run_at", "minutes", "why")


class ArgumentsForm(ReasonForm):
    """The arguments of a job that is made from another: JSON that fits the task's signature."""

    args = forms.JSONField(
        label=gettext_lazy("Positional arguments"), required=False, help_text=gettext_lazy("A JSON list.")
    )
    kwargs = forms.JSONField(
        label=gettext_lazy("Keyword arguments"), required=False, help_text=gettext_lazy("A JSON object.")
    )
    field_order = ("args", "kwargs", "why")

    def __init__(self, *args: Any, job: Job, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._job = job
        for name, value in zip(("args", "kwargs"), redacted(job), strict=True):
            field = self.fields[name]
            rows = min(max(json.dumps(value, indent=2).count("\n") + 1, 3), 20)
            field.widget = forms.Textarea(
                attrs={"rows": rows, "cols": 70, "class": "gql-json", "spellcheck": "false", "dir": "ltr"}
            )
            self.initial[name] = value

    def clean_args(self) -> Sequence[Any]:
        return self._checked("args", self.cleaned_data["args"] or [], list)

    def clean_kwargs(self) -> Mapping[str, Any]:
        return self._checked("kwargs", self.cleaned_data["kwargs"] or {}, dict)

    def _checked(self, name: str, value: Any, kind: type[T]) -> T:
        if not isinstance(value, kind):
            wrong = _("This must be a list, in [ ].") if kind is list else _("This must be an object, in { }.")
            raise ValidationError(wrong)
        whole: T = unmasked(value, getattr(self._job, name))
        try:
            payloads.encode(whole, name, limit=settings().MAX_PAYLOAD_BYTES)
        except PayloadError as error:
            raise ValidationError(str(error)) from None
        return whole

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        task = find_task(self._job.task_name)
        if task is not None and "args" in cleaned and "kwargs" in cleaned:
            try:
                task.check_arguments(tuple(cleaned["args"]), cleaned["kwargs"])
            except TypeError as error:
                self.add_error("kwargs" if cleaned["kwargs"] else "args", str(error))
        return cleaned

    def options(self) -> dict[str, Any]:
        return {"args": self.cleaned_data["args"], "kwargs": self.cleaned_data["kwargs"]}
