"""By which index jobs are looked for. Every plan reads in the order of an index, so that a look can end anywhere.

What no index serves (a task, a worker, an argument) is not a condition of the reading, but asked of each row that is
read: then how much is read is bounded, whatever the planner thinks, and the page can say how far it looked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connections
from django.db.models import Case, Exists, F, IntegerField, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.fields.tuple_lookups import Tuple, TupleGreaterThan, TupleLessThan
from django.db.models.lookups import Exact

from gnlqueue.finding.criteria import ALWAYS, LATEST_ERROR, NO_ERROR, Criteria, Span
from gnlqueue.models import FINISHED, Job, JobAttempt, JobQuerySet, JobStatus
from gnlqueue.queue.candidates import ORDER

#: The way that jobs go through the statuses. Read in this order, one that moves on meanwhile is met where it went.
FLOW = (JobStatus.SCHEDULED, JobStatus.READY, JobStatus.IN_PROGRESS, JobStatus.BLOCKED, *FINISHED)

#: The order of the index that each status has; the claim's own order where jobs wait.
_ORDERS: dict[str, tuple[str, ...]] = {
    JobStatus.READY: ("queue_name", *ORDER),
    JobStatus.SCHEDULED: ("queue_name", "run_at", "id"),
    JobStatus.IN_PROGRESS: ("queue_name", "id"),
    JobStatus.BLOCKED: ("id",),
    **dict.fromkeys(FINISHED, ("-finished_at", "-id")),
}
#: MySQL has no index on blocked jobs alone, and finds them by another one that `status` leads.
_BLOCKED_ON_MYSQL = _ORDERS[JobStatus.READY]

#: `enqueued_at` grows with the id but for a clock that was set meanwhile.
CLOCK_STEP = timedelta(minutes=5)


class Beyond:
    """The condition that several columns, compared as one row, come after the values of a key."""

    conditional = True

    def __init__(self, columns: tuple[str, ...], key: tuple[Any, ...], *, descending: bool) -> None:
        self.columns, self.key, self.descending = columns, key, descending

    def resolve_expression(self, *args: Any, **kwargs: Any) -> Any:
        """Return the comparison, for which Django has to know the columns first."""
        row = Tuple(*map(F, self.columns)).resolve_expression(*args, **kwargs)
        return (TupleLessThan if self.descending else TupleGreaterThan)(row, self.key)


@dataclass(frozen=True)
class Plan:
    """Rows in the order of an index, of one or several branches that are merged, and what is asked of each row."""

    branches: tuple[QuerySet[Any], ...]
    order: tuple[str, ...]
    asked: Q | None  #: condition of a hit; `None`: every row is one
    id_field: str = "pk"  #: where a row has the job's id
    clock: str = "enqueued_at"  #: the time of a row that says how far one has looked

    def reversed(self) -> Plan:
        """Return the same rows in the opposite order."""
        return replace(self, order=tuple(each[1:] if each.startswith("-") else f"-{each}" for each in self.order))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the order, which are a row's key."""
        return tuple(each.removeprefix("-") for each in self.order)

    def read(self, branch: QuerySet[Any], after: tuple[Any, ...] | None, limit: int) -> list[tuple[Any, ...]]:
        """Return (hit, job id, *key) of the next rows of a branch after a key, at most `limit`."""
        hit = Value(1) if self.asked is None else Case(When(self.asked, then=1), default=0, output_field=IntegerField())
        rows: list[tuple[Any, ...]] = []
        for piece in self._beyond(branch, after):
            found = piece.annotate(hit=hit).order_by(*self.order)
            rows += found.values_list("hit", self.id_field, *self.columns)[: limit - len(rows)]
            if len(rows) >= limit:
                break
        return rows

    def _beyond(self, branch: QuerySet[Any], after: tuple[Any, ...] | None) -> Iterator[QuerySet[Any]]:
        """Yield the rows after a key as ranges of the index: (a, b) < … is one for b, then one for a.

        In one condition, with OR, each database would read from the beginning.
        """
        if after is None:
            yield branch
            return
        ends = self._pieces(branch.db)
        for start, end in reversed(list(pairwise((0, *ends)))):
            same = dict(zip(self.columns[:start], after, strict=False))
            descending = self.order[start].startswith("-")
            if end - start > 1:
                yield branch.filter(Beyond(self.columns[start:end], after[start:end], descending=descending), **same)
            else:
                yield branch.filter(**same, **{f"{self.columns[start]}__{'lt' if descending else 'gt'}": after[start]})

    def _pieces(self, alias: str) -> list[int]:
        """Return where the order may be cut: columns of one direction are compared as one, but on MySQL.

        Alone, `id > …` beside `finished_at = …` would lead PostgreSQL to the primary key where many rows share that
        time. MySQL makes no range of a comparison of rows.
        """
        number = len(self.order)
        if connections[alias].vendor == "mysql":
            return list(range(1, number + 1))
        descends = [each.startswith("-") for each in self.order]
        return [place for place in range(1, number + 1) if place == number or descends[place - 1] != descends[place]]


def order_of(status: JobStatus, alias: str) -> tuple[str, ...]:
    """Return the order of the index by which the jobs of a status are found."""
    if status == JobStatus.BLOCKED and connections[alias].vendor == "mysql":
        return _BLOCKED_ON_MYSQL
    return _ORDERS[status]


def plans_for(criteria: Criteria, alias: str) -> list[Plan]:
    """Return the plans that together read all that is looked for: one, unless statuses need several."""
    jobs = Job.objects.using(alias)
    if criteria.ids is not None or criteria.key is not None:
        return [_exactly(criteria, jobs)]
    if criteria.errors and criteria.errors != (NO_ERROR,):
        return [_by_error(criteria, alias)]
    if criteria.statuses:
        return [_by_status(criteria, jobs, each) for each in FLOW if each in criteria.statuses]
    if criteria.finished != ALWAYS:
        return [_by_end(criteria, jobs, FINISHED)]
    return [_by_id(criteria, jobs)]


def _plan(
    criteria: Criteria, branches: list[JobQuerySet], order: tuple[str, ...], served: set[str], clock: str
) -> Plan:
    """Return a plan whose index serves some of the criteria; the rest is asked of each row."""
    rest = replace(criteria, **{name: getattr(Criteria(), name) for name in served})
    if rest.errors:
        branches = [each.alias(latest_error=LATEST_ERROR) for each in branches]
    return Plan(tuple(branches), order, rest.condition() if rest else None, clock=clock)


def _exactly(criteria: Criteria, jobs: JobQuerySet) -> Plan:
    rows = jobs.all()
    if criteria.ids is not None:
        rows = rows.filter(pk__in=criteria.ids)
    if criteria.key is not None:
        rows = rows.filter(key_hash=criteria.key_hash)
    return _plan(criteria, [rows], ("-id",), {"ids", "key"}, "enqueued_at")


def _by_id(criteria: Criteria, jobs: JobQuerySet) -> Plan:
    rows = jobs.all()
    since, until = criteria.enqueued
    if since is not None:
        rows = rows.filter(pk__gte=first_id_since(jobs, since - CLOCK_STEP))
    if until is not None:
        rows = rows.filter(pk__lt=first_id_since(jobs, until + CLOCK_STEP))
    if criteria.last_id is not None:
        rows = rows.filter(pk__lte=criteria.last_id)
    return _plan(criteria, [rows], ("-id",), {"last_id"}, "enqueued_at")


def first_id_since(jobs: JobQuerySet, at: datetime) -> int:
    """Return the id of about the first job that was enqueued at or after a time, by halving the range of the ids.

    `enqueued_at` has no index, as no worker needs one.
    """
    low = jobs.order_by("id").values_list("id", flat=True).first()
    high = jobs.order_by("-id").values_list("id", flat=True).first()
    if low is None or high is None:
        return 0
    high += 1
    while low < high:
        middle = (low + high) // 2
        found = jobs.filter(pk__gte=middle).order_by("id").values_list("id", "enqueued_at").first()
        if found is None or found[1] >= at:
            high = middle
        else:
            low = found[0] + 1
    return int(low)


def _by_status(criteria: Criteria, jobs: JobQuerySet, status: JobStatus) -> Plan:
    if status in FINISHED:
        return _by_end(criteria, jobs, (status,))
    rows, served = jobs.with_status(status), {"statuses"}
    order = order_of(status, jobs.db)
    if criteria.queue_name is not None and order[0] == "queue_name":
        rows, order = rows.filter(queue_name=criteria.queue_name), order[1:]
        served.add("queue_name")
        if order[0] == "run_at":
            rows = rows.filter(criteria.run.matches("run_at"))
            served.add("run")
    return _plan(criteria, [rows], order, served, "run_at" if "run_at" in order else "enqueued_at")


def _by_end(criteria: Criteria, jobs: JobQuerySet, statuses: tuple[JobStatus, ...]) -> Plan:
    until = min((each for each in (criteria.finished.until, criteria.as_of) if each is not None), default=None)
    span = Span(criteria.finished.since, until)
    branches = [
        jobs.with_status(status).filter(span.matches("finished_at"), finished_at__isnull=False) for status in statuses
    ]
    served = {"statuses", "finished", "as_of"}
    return _plan(criteria, branches, _ORDERS[JobStatus.DONE], served, "finished_at")


def _by_error(criteria: Criteria, alias: str) -> Plan:
    """Read the failed attempts of some classes, newest first; a job is found at its last one."""
    attempts = JobAttempt.objects.using(alias)
    rest = replace(criteria, errors=())
    asked = ~Q(Exists(JobAttempt.objects.filter(job_id=OuterRef("job_id"), pk__gt=OuterRef("pk"))))
    if rest:
        # Not Exists: PostgreSQL may hash its answers, for which it reads all jobs.
        matches = Case(When(rest.condition(), then=1), default=0, output_field=IntegerField())
        job = Job.objects.filter(pk=OuterRef("job_id")).annotate(matches=matches).values("matches")
        asked &= Q(Exact(Subquery(job[:1]), 1))
    branches = tuple(attempts.filter(exception_class=each) for each in criteria.errors)
    return Plan(branches, ("-ended_at", "-id"), asked, id_field="job_id", clock="ended_at")
