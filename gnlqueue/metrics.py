"""What finished, by the minute: counted in the worker's memory, written in batches, for charts and percentiles.

A worker has one row for each minute, queue and task, and writes it every few seconds. Later the rows of all workers
are merged into one, then those of a quarter of an hour, then those of an hour, so that a week can be read quickly.
What a worker counted since its last flush is lost when it is killed: no decision is ever taken from these numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import ceil, floor, log2
from typing import NamedTuple

from django.db import connections, transaction

from gnlqueue.dialects import read_clock
from gnlqueue.models import TaskMinute
from gnlqueue.queue import ClaimedJob

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

MOST_ROWS = 2000  # that a process keeps in memory while it cannot write them, or nobody flushes
FORGOTTEN_AFTER = 120.0  # seconds after its first job; what comes even later gets a row of its own

# --- histograms ------------------------------------------------------------------------------------------------------

#: How many times were in which bucket. Bucket b has the times from 2^(b/4) up to 2^((b+1)/4) seconds, so that it is
#: 19 % wide whatever the times are, and what is read from it is at most 9 % off. A millisecond or less is bucket -40.
Histogram = dict[int, int]

BUCKETS_PER_OCTAVE = 4
SHORTEST = 2.0**-10  # seconds


def bucket(seconds: float) -> int:
    """Return the bucket that a length of time is in."""
    return floor(log2(seconds) * BUCKETS_PER_OCTAVE) if seconds > SHORTEST else -40


def merge(histograms: Iterable[Mapping[str, int]]) -> Histogram:
    """Return the sum of histograms as they are stored, whose keys are texts: JSON has no others."""
    total: defaultdict[int, int] = defaultdict(int)
    for histogram in histograms:
        for name, number in histogram.items():
            total[int(name)] += number
    return dict(total)


def percentile(histogram: Histogram, share: float) -> float | None:
    """Return the seconds within which this share (0 to 1) of the times lies; `None` where there are none."""
    left = ceil(share * sum(histogram.values()))
    for number in sorted(histogram):
        left -= histogram[number]
        if left <= 0:
            return float(2 ** ((number + 0.5) / BUCKETS_PER_OCTAVE))
    return None


# --- counting --------------------------------------------------------------------------------------------------------


#: Of one row: database, worker id, minute (counted from the epoch, by the database's clock as the claim read it), queue
#: and task. A plain tuple, which is made in no time.
_Key = tuple[str, str, int, str, str]


class _Count:
    """What one row says, and whether it says so in the database."""

    __slots__ = ("began", "failed", "runs", "succeeded", "unwritten", "waits", "written_as")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.waits: Histogram = defaultdict(int)
        self.runs: Histogram = defaultdict(int)
        self.began = time.monotonic()
        self.unwritten = True
        self.written_as: int | None = None

    def row(self, key: _Key) -> TaskMinute:
        _, worker_id, minute, queue_name, task_name = key
        return TaskMinute(
            pk=self.written_as,
            minute=datetime.fromtimestamp(minute * 60, UTC),
            queue_name=queue_name,
            task_name=task_name,
            worker_id=worker_id,
            succeeded=self.succeeded,
            failed=self.failed,
            waits={str(number): times for number, times in self.waits.items()},
            runs={str(number): times for number, times in self.runs.items()},
        )


class Minutes:
    """The minutes of this process's workers; safe to use from several threads."""

    def __init__(self) -> None:
        self._counts: dict[_Key, _Count] = {}
        self._lock = threading.Lock()
        self._failing = False

    def note(self, claimed: ClaimedJob, seconds: float, *, succeeded: bool) -> None:
        """Note an attempt that ended after `seconds`. Every job comes through here: it takes about a microsecond."""
        began = claimed.last_attempted_at
        minute = int((began.timestamp() + seconds) // 60)
        key = claimed.database, claimed.worker_id, minute, claimed.queue_name, claimed.task_name
        waited = bucket((began - claimed.run_at).total_seconds())
        with self._lock:
            count = self._counts.get(key)
            if count is None:
                if len(self._counts) >= MOST_ROWS:
                    return
                count = self._counts[key] = _Count()
            if succeeded:
                count.succeeded += 1
            else:
                count.failed += 1
            count.waits[waited] += 1
            count.runs[bucket(seconds)] += 1
            count.unwritten = True

    def flush(self, database: str) -> None:
        """Write what was noted since the last time. If that fails, log it once, and try again the next time."""
        with self._lock:
            due = {key: count for key, count in self._counts.items() if key[0] == database and count.unwritten}
            rows = [count.row(key) for key, count in due.items()]
            for count in due.values():
                count.unwritten = False
        try:
            _write(rows, database)
            self._failing = False
        except Exception:  # whatever it is, jobs go on
            rows = []
            if not self._failing:
                self._failing = True
                logger.warning("The minutes for the admin's charts could not be written; trying again.", exc_info=True)
        with self._lock:
            for count, row in zip(due.values(), rows, strict=False):
                count.written_as = row.pk
            for count in list(due.values())[len(rows) :]:
                count.unwritten = True
            oldest = time.monotonic() - FORGOTTEN_AFTER
            for key, count in list(self._counts.items()):
                if key[0] == database and not count.unwritten and count.began < oldest:
                    del self._counts[key]


#: Of this process.
finished = Minutes()


def _write(rows: list[TaskMinute], database: str) -> None:
    if not rows:
        return
    table = TaskMinute.objects.using(database)
    new = [row for row in rows if row.pk is None]
    old = [row for row in rows if row.pk is not None]
    with transaction.atomic(using=database):
        if connections[database].features.can_return_rows_from_bulk_insert:
            table.bulk_create(new)
        else:  # MySQL, which tells the id of a row only where it inserts one at a time
            for row in new:
                row.save(using=database, force_insert=True)
        table.bulk_update(old, ["succeeded", "failed", "waits", "runs"], batch_size=100)


# --- upkeep ----------------------------------------------------------------------------------------------------------


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
