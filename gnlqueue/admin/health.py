"""What needs a person, in words: the first thing that the overview says; and why nothing is claimed from a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gnlqueue.admin.base import CappedCount
from gnlqueue.admin.facts import Queue, Workers, read_workers
from gnlqueue.dialects import read_clock
from gnlqueue.models import QueueState
from gnlqueue.templatetags.gnlqueue_admin import rough

RUN_WORKER = "python manage.py runworker"
MOST_NAMED = 5  # queues with one problem; the table below has the others


class Alert(NamedTuple):
    """One thing that needs a person: what it is, what to do, and the page where it is done."""

    icon: str
    text: str
    advice: str
    command: str = ""
    page: str = ""
    link: str = ""


def what_needs_a_person(
    counts: Mapping[str, CappedCount], queues: Sequence[Queue], workers: Workers, now: datetime
) -> list[Alert]:
    """Return what needs a person, the most pressing first; nothing if all is well."""
    return [*_doubts(counts), *_without_workers(queues, workers, now), *_unknown_tasks(queues)]


def standstill(queue_name: str, alias: str) -> Alert | None:
    """Return why no job is claimed from a queue now, so that all in it wait; `None` if jobs are claimed."""
    paused = QueueState.objects.using(alias).filter(pk=queue_name, paused_at__isnull=False).exists()
    if paused:
        text = _("The queue %(queue)s is paused: background actions wait until somebody resumes it.")
        return Alert("paused", text % {"queue": queue_name}, "", page="queuestate_changelist", link=_("Queues"))
    now = read_clock(alias)
    workers = read_workers(alias, now)
    if workers.serving(queue_name) or workers.cut or queue_name in _served_by_others(workers, now):
        return None
    text = _("No live worker serves the queue %(queue)s: background actions wait until one does.")
    command = RUN_WORKER if not workers.live else f"{RUN_WORKER} --queues {queue_name}"
    return Alert("unserved", text % {"queue": queue_name}, _("Start one:"), command)


def _doubts(counts: Mapping[str, CappedCount]) -> list[Alert]:
    alerts = []
    if doubts := counts["in_doubt"]:
        text = ngettext("%(count)s step is in doubt.", "%(count)s steps are in doubt.", doubts.number)
        advice = ngettext(
            "Nobody knows whether it happened. Its job waits until you say.",
            "Nobody knows whether they happened. Their jobs wait until you say.",
            doubts.number,
        )
        alerts.append(
            Alert("in_doubt", text % {"count": doubts}, advice, page="stepindoubt_changelist", link=_("Decide"))
        )
    if mismatches := counts["mismatch"]:
        text = ngettext(
            "%(count)s job does not fit its code.", "%(count)s jobs do not fit their code.", mismatches.number
        )
        advice = ngettext(
            "What it recorded does not fit what the code asks for now. It waits until you say how to go on.",
            "What they recorded does not fit what the code asks for now. They wait until you say how to go on.",
            mismatches.number,
        )
        alerts.append(
            Alert("blocked", text % {"count": mismatches}, advice, page="stepindoubt_changelist", link=_("Decide"))
        )
    return alerts


def _without_workers(queues: Sequence[Queue], workers: Workers, now: datetime) -> list[Alert]:
    served = _served_by_others(workers, now)
    stuck = [
        queue
        for queue in queues
        if queue.waiting and not queue.workers and queue.paused_at is None and queue.name not in served
    ]
    if stuck and not workers.live:
        waiting = reduce(CappedCount.plus, (queue.waiting for queue in stuck))
        text = ngettext(
            "%(count)s job is waiting and no worker is running.",
            "%(count)s jobs are waiting and no worker is running.",
            waiting.number,
        )
        return [Alert("unserved", text % {"count": waiting.said}, _("Start one:"), RUN_WORKER)]
    alerts = []
    for queue in stuck[:MOST_NAMED]:
        text = ngettext(
            "No live worker serves the queue %(queue)s, where %(count)s job is waiting%(since)s.",
            "No live worker serves the queue %(queue)s, where %(count)s jobs are waiting%(since)s.",
            queue.waiting.number,
        )
        since = _(" (%(length)s)") % {"length": rough((now - queue.oldest).total_seconds())} if queue.oldest else ""
        values = {"queue": queue.name, "count": queue.waiting.said, "since": since}
        command = f"{RUN_WORKER} --queues {queue.name}"
        alerts.append(Alert("unserved", text % values, _("Start one that does:"), command))
    return alerts


def _served_by_others(workers: Workers, now: datetime) -> set[str]:
    """Return the queues in which somebody who is no listed worker holds jobs, such as the project's own consumer."""
    return {job.queue_name for job in workers.others if job.lease_expires_at and job.lease_expires_at > now}


def _unknown_tasks(queues: Sequence[Queue]) -> list[Alert]:
    unknown = [queue for queue in queues if queue.unknown_task is not None]
    return [
        Alert(
            "blocked",
            _("The workers of the queue %(queue)s do not know the task %(task)s.")
            % {"queue": queue.name, "task": queue.unknown_task},
            _("Its jobs come back every few minutes, uncounted, and end up dead. Is the deploy complete?"),
        )
        for queue in unknown[:MOST_NAMED]
    ]
