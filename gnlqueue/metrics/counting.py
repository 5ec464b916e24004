"""Counting what this process's workers finish, minute by minute, and writing it in batches."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from django.db import connections, transaction

from gnlqueue import dialects
from gnlqueue.metrics.histograms import Histogram, bucket
from gnlqueue.models import TaskMinute
from gnlqueue.queue import ClaimedJob

logger = logging.getLogger("gnlqueue.worker")

MOST_ROWS = 2000  # that a process keeps in memory while it cannot write them, or nobody flushes
FORGOTTEN_AFTER = 120.0  # seconds after its first job; what comes even later gets a row of its own

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


#: What changes in a row while its minute goes on, and what does not.
_COUNTS, _NAMES = ("succeeded", "failed", "waits", "runs"), ("minute", "queue_name", "task_name", "worker_id")


def _write(rows: list[TaskMinute], database: str) -> None:
    """Write rows, and give new ones their ids. In SQL: for what else Django has for it, a worker has no use."""
    if not rows:
        return
    new = [row for row in rows if row.pk is None]
    old = [row for row in rows if row.pk is not None]
    connection, table = connections[database], TaskMinute._meta.db_table
    returns = dialects.of(database).supports_returning(connection)
    insert = f"INSERT INTO {table} ({', '.join(_COUNTS + _NAMES)}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
    update = f"UPDATE {table} SET {', '.join(f'{name} = %s' for name in _COUNTS)} WHERE id = %s"
    with transaction.atomic(using=database), connection.cursor() as cursor:
        if old:
            cursor.executemany(update, [[*_counts(row), row.pk] for row in old])
        for row in new:
            minute = connection.ops.adapt_datetimefield_value(row.minute)
            values = [*_counts(row), minute, row.queue_name, row.task_name, row.worker_id]
            cursor.execute(f"{insert} RETURNING id" if returns else insert, values)
            row.pk = cursor.fetchone()[0] if returns else cursor.lastrowid


def _counts(row: TaskMinute) -> list[Any]:
    return [row.succeeded, row.failed, json.dumps(row.waits), json.dumps(row.runs)]
