"""Merging the rows of minutes that have settled, and deleting those that are too old. Every worker does it."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections, transaction

from gnlqueue import dialects
from gnlqueue.dialects import read_clock
from gnlqueue.metrics.histograms import merge
from gnlqueue.models import TaskMinute

logger = logging.getLogger("gnlqueue.worker")

KEPT = timedelta(days=7)
DELETED_AT_ONCE = 2000


class Merging(NamedTuple):
    """Rows of this age are merged into one for each slot, looking as far back as `back_to` for late ones."""

    age: timedelta
    slot: timedelta
    back_to: timedelta


MERGINGS = (
    # No worker writes into a minute for five minutes.
    Merging(age=timedelta(minutes=5), slot=timedelta(minutes=1), back_to=timedelta(minutes=20)),
    Merging(age=timedelta(hours=2), slot=timedelta(minutes=15), back_to=timedelta(hours=3)),
    Merging(age=timedelta(days=1), slot=timedelta(hours=1), back_to=timedelta(days=1, hours=3)),
)


def tidy(database: str) -> None:
    """Merge what has settled, and delete what is too old. Every worker does it; if it fails, another one will."""
    try:
        now = read_clock(database)
        for age, slot, back_to in MERGINGS:
            _merge_rows(database, now - back_to, now - age, slot)
        old = _select("id", f"minute < %s ORDER BY minute LIMIT {DELETED_AT_ONCE}", [now - KEPT], database)
        if ids := [id for (id,) in old]:
            TaskMinute.objects.using(database).filter(pk__in=ids).delete()
    except Exception:
        logger.info("The minutes for the admin's charts could not be tidied up; trying again.", exc_info=True)


def beginning(time: datetime, slot: timedelta) -> datetime:
    """Return the beginning of the slot that a time is in."""
    return datetime.fromtimestamp(time.timestamp() // slot.total_seconds() * slot.total_seconds(), UTC)


def _merge_rows(database: str, since: datetime, until: datetime, slot: timedelta) -> None:
    """Merge the rows of each slot that lies wholly between two times, if there is anything to merge in it."""
    since, until = beginning(since + slot, slot), beginning(until, slot)
    rows = _select("minute, queue_name, task_name", "minute >= %s AND minute < %s", [since, until], database)
    slots: defaultdict[datetime, list[tuple[str, str]]] = defaultdict(list)
    for minute, *name in rows:
        slots[beginning(dialects.of(database).time(minute), slot)].append(tuple(name))
    for begin, names in slots.items():
        if len(set(names)) < len(names):
            same = TaskMinute.objects.using(database).filter(minute__gte=begin, minute__lt=begin + slot)
            _merge_slot(database, begin, list(same))


def _select(columns: str, where: str, times: list[datetime], database: str) -> list[tuple[Any, ...]]:
    """Read columns of some rows: what every worker does each minute, and mostly finds that there is nothing to do."""
    connection = connections[database]
    adapted = [connection.ops.adapt_datetimefield_value(time) for time in times]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {TaskMinute._meta.db_table} WHERE {where}", adapted)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _merge_slot(database: str, begin: datetime, rows: list[TaskMinute]) -> None:
    groups: defaultdict[tuple[str, str], list[TaskMinute]] = defaultdict(list)
    for row in rows:
        groups[row.queue_name, row.task_name].append(row)
    merged = [
        TaskMinute(
            minute=begin,
            queue_name=queue_name,
            task_name=task_name,
            worker_id="",  # of all
            succeeded=sum(row.succeeded for row in group),
            failed=sum(row.failed for row in group),
            waits=merge(row.waits for row in group),
            runs=merge(row.runs for row in group),
        )
        for (queue_name, task_name), group in groups.items()
    ]
    with transaction.atomic(using=database):
        deleted, _ = TaskMinute.objects.using(database).filter(pk__in=[row.pk for row in rows]).delete()
        if deleted == len(rows):
            TaskMinute.objects.using(database).bulk_create(merged)
        else:  # another worker has merged them meanwhile
            transaction.set_rollback(True, using=database)
