"""What a person must know to decide about a step, and the form in which they say it.

A decision is about a step in doubt (did its effect happen?), or about a mismatch (the code asks for something
other than the journal holds). The facts are read once; what they mean is put into words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from django import forms
from django.core.exceptions import ValidationError
from django.db.models.functions import Left, Length
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gnlqueue.admin import errors
from gnlqueue.admin.forms import LONGEST_REASON
from gnlqueue.answers import FailJob, GoOn, Happened, NotHappened, Resolution, UseRecorded
from gnlqueue.dialects import read_clock
from gnlqueue.durable.effects import effect_key, identity_of_job
from gnlqueue.durable.keys import is_renaming
from gnlqueue.durable.resolving import began_by, mismatched_entry
from gnlqueue.durable.verdicts import asked_instead
from gnlqueue.models import (
    OUTCOME_RECORDED,
    EntryStatus,
    Job,
    JobStatus,
    RunJournalEntry,
    StepNote,
    WorkerProcess,
)

MOST_NOTES = 50

#: What each choice is called, and what comes of it.
CHOICES = {
    "happened": (
        gettext_lazy("It happened"),
        gettext_lazy("The step counts as done with the result you give, and never runs again. The job goes on."),
    ),
    "not_happened": (
        gettext_lazy("It did not happen"),
        gettext_lazy("The step runs again, once. If it is caught in the middle again, it asks again."),
    ),
    "go_on": (
        gettext_lazy("Go on"),
        gettext_lazy(
            "You have put the code right, or deployed the version that fits. The job runs, and is compared again."
        ),
    ),
    "use_recorded": (
        gettext_lazy("Use the recorded result"),
        gettext_lazy(
            "It is the same step under another name or with other arguments: its recorded result is used, "
            "and it does not run."
        ),
    ),
    "fail_job": (
        gettext_lazy("Fail the job"),
        gettext_lazy("The job is dead, and does nothing more. If it is retried, it asks again."),
    ),
}

#: What comes of going on if the code no longer asks for the step.
GO_ON_WITHOUT = gettext_lazy(
    "You have put the code right, or what it did instead may stay. The job runs, without this step if it is left out."
)

#: If the code asks for a step that looks like this one under another name.
ANOTHER_STEP = (
    gettext_lazy("It is another step"),
    gettext_lazy("What the code asks for now is not what was recorded, and has not happened yet: it runs."),
)


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known about one step that waits, or waited, for a decision."""

    entry: RunJournalEntry
    job: Job | None
    now: datetime
    notes: Sequence[StepNote]  #: earliest first
    token: int  #: of the claim that began the step; the claim that found it in doubt wrote its own into the entry
    worker_id: str  #: the worker that had this claim; "" if that is not known
    worker: WorkerProcess | None
    mismatch: StepNote | None = None
    got: dict[str, Any] = field(default_factory=dict)  #: empty if the code no longer asks for the step

    @property
    def waits(self) -> bool:
        """Whether a decision can be taken."""
        return self.entry.status == EntryStatus.IN_DOUBT or self.mismatch is not None

    @property
    def is_blocked(self) -> bool:
        """Whether the job waits for a decision."""
        return self.job is not None and self.job.status == JobStatus.BLOCKED

    @property
    def choices(self) -> list[str]:
        """Return the names of the choices that there are."""
        fail = ["fail_job"] if self.is_blocked else []
        if self.mismatch is not None:
            recorded = self.entry.status in OUTCOME_RECORDED
            another = ["not_happened"] if self._looks_renamed else []
            return ["go_on", *(["use_recorded"] if recorded and self.got else []), *another, *fail]
        return ["happened", "not_happened", *fail] if self.waits else []

    def words(self, choice: str) -> tuple[Promise, Promise]:
        """Return what a choice is called here, and what comes of it."""
        label, then = CHOICES[choice]
        if choice == "go_on" and self.mismatch is not None and not self.got:
            return label, GO_ON_WITHOUT
        return ANOTHER_STEP if choice == "not_happened" and self._looks_renamed else (label, then)

    @property
    def _looks_renamed(self) -> bool:
        return self.mismatch is not None and is_renaming(self.entry.key, self.got.get("key", ""))

    @property
    def seen(self) -> str:
        """Return what changes when anything is new about the step, so that nobody decides on an old page."""
        latest = self.notes[-1].pk if self.notes else 0
        return f"{self.entry.decisions}-{self.entry.status}-{self.entry.lease_token}-{latest}-{self.is_blocked:d}"

    def was_decided_since(self, seen: str) -> bool:
        """Tell whether a decision was taken since the page was opened that showed this as `seen`."""
        decisions = seen.partition("-")[0]  # a page of another version has something else here, which says nothing
        return decisions.isascii() and decisions.isdecimal() and decisions != str(self.entry.decisions)

    @property
    def evidence(self) -> list[StepNote]:
        """What late workers brought back."""
        return [note for note in self.notes if note.kind == StepNote.Kind.EVIDENCE]

    @property
    def resolutions(self) -> list[StepNote]:
        """What was decided before."""
        return [note for note in self.notes if note.kind == StepNote.Kind.RESOLUTION]

    @property
    def effect_key(self) -> str:
        """The key that the step hands to somebody else's API, if its task says so."""
        job = self.job
        identity = self.entry.run_id if job is None else identity_of_job(job.run_id, job.enqueued_at)
        return effect_key(identity, self.entry.key)

    def raised(self, *, whole: bool = False) -> str:
        """Return the error with which the step ended, in one line: all of it if `whole`, else its class."""
        return errors.of_step(self.entry.error, whole=whole)

    def whereabouts(self) -> tuple[bool, str]:
        """Say whether the first call may still be under way, and why, in words."""
        if self.raised() or any(note.lease_token == self.token for note in self.evidence):
            came_back = _("The step's function has ended, so it is no longer running.")
            may_arrive = _("What it sent, or a thread that it started, may still reach the other side.")
            return False, f"{came_back} {may_arrive}"
        if self.worker is None and self.worker_id:
            return False, _(
                "%(worker)s is no longer on the list of workers: its process has ended, or was not heard from for a "
                "day. What it sent may still reach the other side."
            ) % {"worker": self.worker_id}
        if self.worker is None:
            return True, _("Nobody knows on which worker it ran: it may still be running.")
        if self.worker.is_live(self.now):
            return True, _("%(worker)s is alive: the call may still be running there.") % {"worker": self.worker_id}
        return True, _(
            "%(worker)s has not been heard from lately. If it was only paused or cut off, the call may still be "
            "running."
        ) % {"worker": self.worker_id}


def case_of(entry_id: int, alias: str) -> Case | None:
    """Read all about one step; `None` if there is none."""
    rows = RunJournalEntry.objects.using(alias).defer("result")
    entry = rows.annotate(result_start=Left("result", 2000), result_size=Length("result")).filter(pk=entry_id).first()
    if entry is None:
        return None
    job = Job.objects.using(alias).filter(pk=entry.job_id).first() if entry.job_id is not None else None
    newest = StepNote.objects.using(alias).filter(entry_id=entry.pk).order_by("-id")[:MOST_NOTES]
    notes = list(reversed(newest))
    token, worker_id = began_by(entry, job)
    worker = WorkerProcess.objects.using(alias).filter(worker_id=worker_id).first() if worker_id else None
    mismatch = None
    if mismatched_entry(job) == entry:
        mismatch = next((note for note in reversed(notes) if note.kind == StepNote.Kind.MISMATCH), None)
    got = asked_instead(mismatch.value) if mismatch is not None else {}
    return Case(entry, job, read_clock(alias), notes, token, worker_id, worker, mismatch, got)


class Decision(forms.Form):
    """A person's answer: one of the choices, none of which is made beforehand, and why."""

    choice = forms.ChoiceField(
        label=gettext_lazy("Your decision"),
        widget=forms.RadioSelect,
        error_messages={"required": gettext_lazy("Choose one of these.")},
    )
    result = forms.CharField(
        label=gettext_lazy("Its result, as JSON"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "autocomplete": "off"}),
    )
    reason = forms.CharField(
        label=gettext_lazy("Why?"),
        max_length=LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 2}),
        error_messages={"required": gettext_lazy("Say why: whoever reads this later will want to know.")},
    )
    seen = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, case: Case, data: Any = None) -> None:
        super().__init__(data, initial={"seen": case.seen}, label_suffix="")
        self.case = case
        choice = cast(forms.ChoiceField, self.fields["choice"])
        choice.choices = [(name, case.words(name)[0]) for name in case.choices]

    def clean_result(self) -> Any:
        """Parse the result, which counts only if it happened."""
        text = self.cleaned_data["result"].strip()
        if self.data.get("choice") != "happened":
            return None
        if not text:
            raise ValidationError(_("Enter what the step would have returned, as JSON: null if nothing."))
        try:
            return json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ValidationError(_("This is not JSON: %(error)s") % {"error": error}) from None

    def answer(self) -> Resolution:
        """Return the decision as `resolve` takes it."""
        chosen = self.cleaned_data["choice"]
        if chosen == "happened":
            return Happened(self.cleaned_data["result"])
        others: dict[str, Resolution] = {
            "not_happened": NotHappened(),
            "go_on": GoOn(),
            "use_recorded": UseRecorded(),
            "fail_job": FailJob(),
        }
        return others[chosen]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
