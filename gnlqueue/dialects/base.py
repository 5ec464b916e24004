"""What the queue asks of a database; the defaults are those of databases with UPDATE … RETURNING."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, DataError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from gnlqueue.models import Job

#: From this many crashes in a row a job is claimed alone; see `ClaimedJob.is_suspect`.
SUSPECT_CRASHES = 2


class Candidates(NamedTuple):
    """The locking SELECT of what is claimed next, compiled; see `gnlqueue.queue.candidates`."""

    sql: str
    params: tuple[Any, ...]
    keeps_plan: bool = False  #: whether it may be run as it was planned earlier


#: What a claim reads of a job, in this order: the fields of `gnlqueue.queue.ClaimedJob`.
COLUMNS = (
    "id", "task_name", "queue_name", "args", "kwargs", "priority", "attempts", "max_attempts", "crashes", "options",
    "lease_token", "lease_expires_at", "worker_id", "enqueued_at", "run_at", "last_attempted_at", "unknown_since",
)  # fmt: skip

#: A statement's parameters, by place or by name.
Params = list[Any] | dict[str, Any]

#: The values of these columns.
ClaimedRow = tuple[Any, ...]


class NewRow(NamedTuple):
    """What an INSERT says of a job; JSON as text. It may start at `run_at`, else `after` a time from now, else now."""

    task_name: str
    queue_name: str
    args: str
    kwargs: str
    priority: int
    status: str
    max_attempts: int | None
    options: str | None
    idempotency_key: str | None
    key_hash: str | None
    run_at: datetime | None
    after: timedelta


class Done(NamedTuple):
    """A held job that is done, with its result as JSON text; `None` where it has none."""

    id: int
    lease_token: int
    result: str | None


#: The columns that an INSERT fills, in the order of `Dialect.new_rows`; the last three begin at 0.
INSERTED = (*NewRow._fields[:-1], "enqueued_at", "attempts", "crashes", "lease_token")

#: The order in which jobs are claimed, and run; see `gnlqueue.queue.candidates`.
CLAIM_ORDER = "priority DESC, run_at, id"

#: What becomes of a job that is claimed.
CLAIMED = (
    "status = 'in_progress', attempts = attempts + 1, lease_token = lease_token + 1, worker_id = %s,"
    " lease_expires_at = {expires}, last_attempted_at = {at}, started_at = COALESCE(started_at, {at})"
)

#: What becomes of a job that is done, besides its result.
COMPLETED = "status = 'done', finished_at = {at}, crashes = 0, last_error = NULL, lease_expires_at = NULL"

_JSON = [COLUMNS.index(name) for name in ("args", "kwargs", "options")]
_TIMES = [index for index, name in enumerate(COLUMNS) if name.endswith("_at") or name == "unknown_since"]
_PRIORITY, _RUN_AT, _ID = COLUMNS.index("priority"), COLUMNS.index("run_at"), COLUMNS.index("id")


class Dialect(ABC):
    """One database's ways. Instances hold no state and no connection."""

    #: Whether rows can be locked one by one, and locked ones skipped.
    locks_rows = True
    #: Whether claimed jobs may stay in the index, ahead of ready ones, while somebody holds an older snapshot.
    keeps_dead_rows = False
    #: Whether the driver gives a datetime column's values as aware datetimes, so that `time` changes nothing.
    times_are_aware = False
    #: The column `status`, written so that no index on it is used: rows are found by primary key.
    status_without_index = "status"

    @abstractmethod
    def now(self, offset: timedelta = timedelta()) -> str:
        """Return the SQL of the statement's time in UTC, shifted by `offset`."""

    @abstractmethod
    def is_transient(self, error: DatabaseError) -> bool:
        """Tell whether the same transaction may well succeed when it is run again (deadlock, lock wait)."""

    def refuses_value(self, error: Exception) -> bool:
        """Tell whether a value cannot be stored (too large, a character set that cannot carry it), now or later."""
        return isinstance(error, DataError)

    def is_hopeless(self, error: Exception) -> bool:
        """Tell whether the database will not come back by itself, however long one waits."""
        return False

    @abstractmethod
    def dedicated_options(self, timeout: float) -> dict[str, Any]:
        """Return the options of a connection of our own, whose network waits end after `timeout` seconds."""

    def supports_returning(self, connection: BaseDatabaseWrapper) -> bool:
        """Tell whether INSERT … RETURNING works on this server."""
        return True

    def is_read_committed(self, connection: BaseDatabaseWrapper) -> bool:
        """Tell whether a statement of the open transaction sees what others have committed since it began."""
        return True

    def write_transaction(self, connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
        """Make the transaction that begins inside take the write lock at once, where taking it later can fail."""
        return nullcontext()

    def pairs(self, pairs: Sequence[tuple[int, int]]) -> tuple[str, list[Any]]:
        """Return the SQL that a row is one of the (id, lease token) pairs, so that the primary key is used."""
        params = [value for pair in pairs for value in pair]
        if len(pairs) == 1:  # as a list of one pair it would be a full scan on MariaDB
            return "(id = %s AND lease_token = %s)", params
        row = ", ".join(["(%s, %s)"] * len(pairs))
        return f"(id, lease_token) IN ({row})", params

    def new_rows(
        self, connection: BaseDatabaseWrapper, rows: Sequence[NewRow], now: datetime | None
    ) -> tuple[str, Params]:
        """Return the SQL of the new rows, as the source of an INSERT, and its parameters."""
        at, at_params = self.at(connection, now)
        values, params = [], []
        for row in rows:
            *plain, run_at, after = row
            if run_at is None and now is not None:
                run_at = now + after
            begin, begin_params = self.at(connection, run_at, after)
            values.append(f"({'%s, ' * len(plain)}{begin}, {at}, 0, 0, 0)")
            params += [*plain, *begin_params, *at_params]
        return f"VALUES {', '.join(values)}", params

    def one_of(self, column: str, few: str) -> str:
        """Return the SQL that a column has one of the values that a SELECT gives."""
        return f"{column} IN ({few})"

    def set_up(self, connection: BaseDatabaseWrapper) -> None:  # noqa: B027  most have nothing to do
        """Set what the options of a connection of our own cannot say."""

    def execute_planned(self, cursor: CursorWrapper, sql: str, params: Sequence[Any]) -> None:
        """Run a statement, with the plan that its connection keeps of it, if it keeps any."""
        cursor.execute(sql, params)

    def time(self, value: Any) -> datetime:
        """Return an aware datetime for a raw value of a datetime column."""
        return value  # type: ignore[no-any-return]  # the driver's own aware datetime

    def claim(
        self,
        connection: BaseDatabaseWrapper,
        candidates: Candidates,
        *,
        worker_id: str,
        lease: timedelta,
        now: datetime | None,
    ) -> list[ClaimedRow]:
        """Claim the candidates in one statement and return them in the order in which they are to run.

        A job that crashed its worker twice in a row is claimed alone: what comes before it is taken without it, and
        when it is first, it is taken by itself.
        """
        at, expires, times = self._claim_times(connection, lease, now)
        sql = f"""
            WITH candidates AS MATERIALIZED ({candidates.sql}),
            placed AS (
                SELECT id,
                       ROW_NUMBER() OVER (ORDER BY {CLAIM_ORDER}) AS place,
                       SUM(CASE WHEN crashes >= {SUSPECT_CRASHES} THEN 1 ELSE 0 END)
                           OVER (ORDER BY {CLAIM_ORDER}) AS suspects
                FROM candidates
            )
            UPDATE {Job._meta.db_table}
            SET {CLAIMED.format(at=at, expires=expires)}
            WHERE {self.one_of("id", "SELECT id FROM placed WHERE suspects = 0 OR place = 1")}
            RETURNING {", ".join(COLUMNS)}
        """
        with connection.cursor() as cursor:
            params = [*candidates.params, worker_id, *times]
            if candidates.keeps_plan:
                self.execute_planned(cursor, sql, params)
            else:
                cursor.execute(sql, params)
            rows = cursor.fetchall()  # at once: an unfinished RETURNING blocks SQLite's other writers
        return [self.row(values) for values in sorted(rows, key=_place)]

    def complete(self, connection: BaseDatabaseWrapper, done: Sequence[Done], now: datetime | None) -> int:
        """Make the jobs done that are still held, and return how many; the caller knows what to do about the rest."""
        plain = [(job.id, job.lease_token) for job in done if job.result is None]
        with_result = [job for job in done if job.result is not None]
        # One statement needs no BEGIN and COMMIT around it.
        one = len(with_result) + bool(plain) <= 1
        with nullcontext() if one else transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            written = self._complete(cursor, plain, now) if plain else 0
            for job in with_result:
                written += self._complete(cursor, [(job.id, job.lease_token)], now, job.result)
            return written

    def _complete(
        self, cursor: CursorWrapper, pairs: Sequence[tuple[int, int]], now: datetime | None, result: str | None = None
    ) -> int:
        at, times = self.at(cursor.db, now)
        held, pair_params = self.pairs(pairs)
        cursor.execute(
            f"UPDATE {Job._meta.db_table} SET {COMPLETED.format(at=at)}, result = %s"
            f" WHERE {self.status_without_index} = 'in_progress' AND {held}",
            [*times, result, *pair_params],
        )
        return int(cursor.rowcount)

    def at(
        self, connection: BaseDatabaseWrapper, time: datetime | None, after: timedelta = timedelta()
    ) -> tuple[str, list[Any]]:
        """Return the SQL of a time, and its parameters; without a `time`, the statement's own, shifted by `after`."""
        return (self.now(after), []) if time is None else ("%s", [connection.ops.adapt_datetimefield_value(time)])

    def _claim_times(
        self, connection: BaseDatabaseWrapper, lease: timedelta, now: datetime | None
    ) -> tuple[str, str, list[Any]]:
        """Return the SQL of the claim's time, of the lease's end, and their parameters in the statement's order."""
        if now is None:
            return self.now(), self.now(lease), []
        adapt = connection.ops.adapt_datetimefield_value
        return "%s", "%s", [adapt(now + lease), adapt(now), adapt(now)]

    def estimate(self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> int | None:
        """Return about how many rows a SELECT from one table gives, reading none; `None` where nothing tells."""
        return None

    def row(self, values: Sequence[Any]) -> ClaimedRow:
        """Return a claimed row from the raw values of its columns."""
        cells = list(values)
        for index in _JSON:
            text = cells[index]
            if text is not None:  # mostly there are no keyword arguments
                cells[index] = {} if text == "{}" else json.loads(text)
        if not self.times_are_aware:
            for index in _TIMES:
                if cells[index] is not None:
                    cells[index] = self.time(cells[index])
        return tuple(cells)


def _place(values: Sequence[Any]) -> tuple[Any, ...]:
    return -values[_PRIORITY], values[_RUN_AT], values[_ID]
