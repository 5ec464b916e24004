"""Which queues there are: those that somebody names, and those that are only found because jobs are in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from gnlqueue.admin.looks import First, Question, ask
from gnlqueue.models import Job, JobQuerySet, JobStatus
from gnlqueue.registry import default_queues

MOST_NAMED = 200  # queues that are shown of those that a task, a worker or an operator names
MOST_OTHERS = 100  # and of those that nobody names
ROWS = 1000  # that are read at once to find names

_ACTIVE = (JobStatus.READY, JobStatus.SCHEDULED, JobStatus.IN_PROGRESS)


class Gap(NamedTuple):
    """The jobs of one status in queues whose names lie between two names."""

    low: str | None
    high: str | None
    status: JobStatus


class Names(NamedTuple):
    """The names, in order, and whether there are more."""

    names: list[str]
    cut: bool


def find(alias: str, paused: Iterable[str], served: Iterable[str]) -> Names:
    """Return the names of the queues: first those that are paused, the tasks' own, then those that are served."""
    named = list(dict.fromkeys([*sorted(paused), *default_queues(), *sorted(served)]))
    shown = named[:MOST_NAMED]
    others = sorted(set(islice(_others(alias, shown), MOST_OTHERS + 1)))
    cut = len(named) > MOST_NAMED or len(others) > MOST_OTHERS
    return Names(sorted({*shown, *others[:MOST_OTHERS]}), cut)


def _others(alias: str, named: Sequence[str]) -> Iterator[str]:
    """Find the queues in which jobs wait or run and that nobody names, by looking between the names.

    DISTINCT would read every job that waits. However the database orders names, each lies between two of ours.
    """
    bounds: list[str | None] = [None, *sorted(named), None]
    gaps = [Gap(low, high, status) for low, high in pairwise(bounds) for status in _ACTIVE]
    questions: dict[Gap, Question] = {gap: First(_between(alias, gap), "queue_name") for gap in gaps}
    found: set[str] = set()
    for gap, first in ask(alias, questions).items():
        if first is None:
            continue
        for name in _names_between(alias, gap):
            if name not in found:
                found.add(name)
                yield name


def _names_between(alias: str, gap: Gap) -> Iterator[str]:
    # Some rows at a time: one statement finds many small queues, and of a large one only the beginning is read.
    low = gap.low
    while True:
        rows = list(_between(alias, gap._replace(low=low)).values_list("queue_name", flat=True)[:ROWS])
        yield from dict.fromkeys(rows)
        if len(rows) < ROWS:
            return
        low = rows[-1]


def _between(alias: str, gap: Gap) -> JobQuerySet:
    rows = Job.objects.using(alias).with_status(gap.status).order_by("queue_name")
    if gap.low is not None:
        rows = rows.filter(queue_name__gt=gap.low)
    return rows if gap.high is None else rows.filter(queue_name__lt=gap.high)
