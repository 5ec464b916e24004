"""What is claimed next: the one definition, as a queryset.

Order is best effort: priority, then due time, then id. It is the order of the index `gnlqueue_job_ready`, so that a
claim reads as many rows as it takes. One queue per query: with `queue_name IN (…)` the databases sort everything, and
MariaDB locks what it sorts.

On PostgreSQL claimed jobs stay in the index, ahead of those that are still ready, as long as somebody holds an older
snapshot. So a worker may ask for what comes `beyond` a job that was claimed, which the index finds at once.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache

from django.db import connections
from django.db.models import BooleanField, Exists
from django.db.models.expressions import RawSQL

from gnlqueue import dialects
from gnlqueue.dialects.base import Candidates
from gnlqueue.models import Job, JobQuerySet, JobStatus, QueueState

ORDER = ("-priority", "run_at", "id")

#: A place in a queue, from which to look on: a job's priority, run_at and id.
Floor = tuple[int, datetime, int]

#: Stand for the queue's name, the floor and the limit while SQL is compiled; no real ones look like this.
_ANY_QUEUE, _ANY_FLOOR, _ANY_LIMIT = "<queue>", ("<priority>", "<run_at>", "<id>"), 987654321


def candidates(alias: str, queue_name: str) -> JobQuerySet:
    """Return the jobs of a queue that may be claimed, next first; none while it is paused."""
    paused = QueueState.objects.filter(queue_name=queue_name, paused_at__isnull=False)
    return (
        Job.objects.using(alias)
        .with_status(JobStatus.READY)
        .filter(~Exists(paused), queue_name=queue_name)
        .order_by(*ORDER)
    )


def compiled(alias: str, queue_name: str, limit: int, beyond: Floor | None = None) -> Candidates:
    """Return the SQL that locks the first `limit` candidates; compiled only once, as that costs more than the claim.

    With `beyond`, of those that have the priority of this floor and do not come before it: that is what a busy worker
    asks for. It is planned each time, as the table may have grown a thousandfold since it was last analysed.
    """
    template = _template(alias, connections[alias].vendor, beyond is not None)
    values = {_ANY_QUEUE: queue_name, **dict(zip(_ANY_FLOOR, beyond or (), strict=False))}
    params = (*(values.get(value, value) for value in template.params), limit)
    return template._replace(params=params, keeps_plan=beyond is None)


def prepare(alias: str) -> None:
    """Compile it, without connecting: processes that are forked now need nothing of what Django has for that."""
    for has_floor in (False, True):
        _template(alias, connections[alias].vendor, has_floor)


def compiled_one(alias: str, queue_name: str, id: int) -> Candidates:
    """Return the SQL that locks one job, if it is a candidate."""
    return _compile(candidates(alias, queue_name).filter(pk=id), alias)


@cache
def _template(alias: str, vendor: str, has_floor: bool) -> Candidates:
    """Return the SQL with its placeholders. `vendor` is there for the cache: an alias may get another database."""
    rows = candidates(alias, _ANY_QUEUE)
    if has_floor:  # compared as a row, which is a range of the index
        rows = rows.filter(RawSQL("(priority = %s AND (run_at, id) >= (%s, %s))", _ANY_FLOOR, BooleanField()))
    template = _compile(rows[:_ANY_LIMIT], alias)
    return template._replace(sql=template.sql.replace(str(_ANY_LIMIT), "%s"))  # the last of its parameters


def _compile(rows: JobQuerySet, alias: str) -> Candidates:
    sql, params = rows.values_list("id", "crashes", "priority", "run_at").query.get_compiler(using=alias).as_sql()
    if dialects.of(alias).locks_rows:
        # As text: Django compiles a locking SELECT only inside of a transaction, which takes a connection.
        sql += " FOR UPDATE SKIP LOCKED"
    return Candidates(sql, tuple(params))
