"""What a person may do to a job here: which verbs there are, who may use them, and in which statuses they apply.

The buttons of a job's page, the actions of the lists and the bulk pages are all made from this one table.
`gnlqueue.bulk.act` does what they say; the page that asks for a reason, a time or other arguments is
`gnlqueue.admin.verb_page`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from gnlqueue.admin.base import may, url
from gnlqueue.models import WAITING, Job, JobStatus
from gnlqueue.queue.operating import CANCELLABLE, RETRYABLE
from gnlqueue.templatetags.gnlqueue_admin import visible

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise
    from django.utils.functional import _StrPromise as Text


@dataclass(frozen=True, slots=True)
class Verb:
    """Something that a person may do to a job. `name` is what the operator log calls it, and part of its URL."""

    name: str
    label: Text
    permission: str  #: as `may` takes it
    applies_to: frozenset[JobStatus]
    asks: bool  #: whether its page has something to ask; otherwise a button may POST at once
    bulk_label: Text | None  #: how it is offered for many jobs; `None`: only for one at a time
    explanation: Text

    def is_allowed(self, request: HttpRequest) -> bool:
        """Whether the person who made the request may do this to jobs."""
        return may(request, self.permission)


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "retry",
            _("Retry"),
            "retry_job",
            frozenset(RETRYABLE),
            asks=False,
            bulk_label=_("Retry dead and cancelled jobs"),
            explanation=_("Ready again at once, and its attempts start over. Steps recorded as done do not run again."),
        ),
        Verb(
            "run_now",
            _("Run now"),
            "run_job_now",
            frozenset({JobStatus.SCHEDULED}),
            asks=False,
            bulk_label=_("Run scheduled jobs now"),
            explanation=_("Due at once, whatever time was set: a free worker takes it."),
        ),
        Verb(
            "reschedule",
            pgettext_lazy("verb", "Reschedule"),
            "reschedule_job",
            frozenset(WAITING),
            asks=True,
            bulk_label=_("Reschedule waiting jobs"),
            explanation=_("Starts at another time."),
        ),
        Verb(
            "cancel",
            pgettext_lazy("verb", "Cancel job"),
            "cancel_job",
            frozenset({*CANCELLABLE, JobStatus.IN_PROGRESS}),
            asks=True,
            bulk_label=_("Cancel jobs"),
            explanation=_("Will not run any more. A job that is running is asked to stop at its next step."),
        ),
        Verb(
            "enqueue_again",
            _("Edit and enqueue again"),
            "enqueue_job_again",
            frozenset(JobStatus),
            asks=True,
            bulk_label=None,
            explanation=_("A new job with a run of its own: effects that are recorded as done happen again."),
        ),
    )
}


#: What else people do here, by the name that the operator log gives it.
OTHER_VERBS: dict[str, Text] = {
    "pause": _("Pause queue"),
    "resume": _("Resume queue"),
    "resolve": _("Decide about a step"),
}


def label_of(verb: str) -> _StrOrPromise:
    """Return what a verb of the operator log is called."""
    return VERBS[verb].label if verb in VERBS else OTHER_VERBS.get(verb) or visible(verb)


class Button(NamedTuple):
    """A verb that is offered for a job, and its address: GET asks, POST does it."""

    verb: Verb
    url: str


def buttons(request: HttpRequest, job: Job) -> list[Button]:
    """Return what the person who made the request may do to the job as it is."""
    return [
        Button(verb, url(request, "gnlqueue_job_verb", job.pk, verb.name))
        for verb in VERBS.values()
        if job.status in verb.applies_to and verb.is_allowed(request)
    ]


def in_bulk(request: HttpRequest) -> list[Verb]:
    """Return the verbs that the person who made the request may use on many jobs at once."""
    return [verb for verb in VERBS.values() if verb.bulk_label is not None and verb.is_allowed(request)]
