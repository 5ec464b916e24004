"""Merging the rows of minutes that have settled, and deleting those that are too old. Every worker does it."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import transaction

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
        old = TaskMinute.objects.using(database).filter(minute__lt=now - KEPT).order_by("minute")
        ids = list(old.values_list("pk", flat=True)[:DELETED_AT_ONCE])
        if ids:
            TaskMinute.objects.using(database).filter(pk__in=ids).delete()
    except Exception:
        logger.info("The minutes for the admin's charts could not be tidied up; trying again.", exc_info=True)


def beginning(time: datetime, slot: timedelta) -> datetime:
    """Return the beginning of the slot that a time is in."""
    return datetime.fromtimestamp(time.timestamp() // slot.total_seconds() * slot.total_seconds(), UTC)


def _merge_rows(database: str, since: datetime, until: datetime, slot: timedelta) -> None:
    """Merge the rows of each slot that lies wholly between two times, if there is anything to merge in it."""
    since, until = beginning(since + slot, slot), beginning(until, slot)
    rows = TaskMinute.objects.using(database).filter(minute__gte=since, minute__lt=until)
    slots: defaultdict[datetime, list[tuple[str, str]]] = defaultdict(list)
    for minute, queue_name, task_name in rows.values_list("minute", "queue_name", "task_name"):
        slots[beginning(minute, slot)].append((queue_name, task_name))
    for begin, names in slots.items():
        if len(set(names)) < len(names):
            _merge_slot(database, begin, list(rows.filter(minute__gte=begin, minute__lt=begin + slot)))


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
