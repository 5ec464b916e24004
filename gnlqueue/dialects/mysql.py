"""MySQL 8.0 and MariaDB 10.11 and later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.dialects.base import CLAIM_ORDER, CLAIMED, COLUMNS, SUSPECT_CRASHES, Candidates, ClaimedRow, Dialect
from gnlqueue.models import Job

DEADLOCK, LOCK_WAIT_TIMEOUT, RECORD_CHANGED = 1213, 1205, 1020
WRONG_VALUE = 1366

# `type: ignore[attr-defined]` is for what only MySQL's connections have: the stubs know what all have.


class MySQLDialect(Dialect):
    """Claims with two statements in a short transaction, as there is no UPDATE … RETURNING and no LIMIT inside IN."""

    # By an index on the status an UPDATE would lock, and wait for, what others hold; under REPEATABLE READ it would
    # also lock the gap in which everybody's new jobs are inserted.
    status_without_index = "CONCAT(status)"

    def now(self, offset: timedelta = timedelta()) -> str:
        if not offset:
            return "UTC_TIMESTAMP(6)"
        return f"(UTC_TIMESTAMP(6) + INTERVAL {offset // timedelta(microseconds=1)} MICROSECOND)"

    def is_transient(self, error: DatabaseError) -> bool:
        return bool(error.args) and error.args[0] in {DEADLOCK, LOCK_WAIT_TIMEOUT, RECORD_CHANGED}

    def refuses_value(self, error: Exception) -> bool:
        # Of a character set that cannot carry it, mysqlclient says so with an OperationalError.
        return super().refuses_value(error) or error.args[:1] == (WRONG_VALUE,)

    def is_read_committed(self, connection: BaseDatabaseWrapper) -> bool:
        return bool(connection.isolation_level == "read committed")  # type: ignore[attr-defined]

    def dedicated_options(self, timeout: float) -> dict[str, Any]:
        whole = max(round(timeout), 1)
        return {
            "connect_timeout": whole,
            "read_timeout": whole,
            "write_timeout": whole,
            # Gap locks of REPEATABLE READ would let a polling worker stop everybody's enqueues.
            "isolation_level": "read committed",
        }

    def supports_returning(self, connection: BaseDatabaseWrapper) -> bool:
        return bool(connection.mysql_is_mariadb)  # type: ignore[attr-defined]

    def time(self, value: Any) -> datetime:
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]  # the driver's own naive datetime

    def estimate(self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> int | None:
        # MySQL always says which share of what is read is `filtered`, MariaDB where it is asked.
        is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
        explain = "EXPLAIN EXTENDED" if is_mariadb else "EXPLAIN FORMAT=TRADITIONAL"
        with connection.cursor() as cursor:
            cursor.execute(f"{explain} {sql}", params)
            names = [column[0] for column in cursor.description]
            table = dict(zip(names, cursor.fetchone(), strict=True))
        # MariaDB takes the share of an index's first column twice where it reads a range of its second.
        share = 100.0 if is_mariadb and table["type"] == "range" else float(table["filtered"] or 100)
        found = round(float(table["rows"] or 0) * share / 100)
        # InnoDB looks at few pages of a range, and is wrong by a factor of two: more digits would be a pretence.
        return round(found, 1 - len(str(found)))

    def claim(
        self,
        connection: BaseDatabaseWrapper,
        candidates: Candidates,
        *,
        worker_id: str,
        lease: timedelta,
        now: datetime | None,
    ) -> list[ClaimedRow]:
        at, expires, times = self._claim_times(connection, lease, now)
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(candidates.sql, candidates.params)
            ids = _without_suspects(cursor.fetchall())
            if not ids:
                return []
            mine = f"id IN ({', '.join(['%s'] * len(ids))})"
            cursor.execute(
                f"UPDATE {Job._meta.db_table} SET {CLAIMED.format(at=at, expires=expires)} WHERE {mine}",
                [worker_id, *times, *ids],
            )
            cursor.execute(
                f"SELECT {', '.join(COLUMNS)} FROM {Job._meta.db_table} WHERE {mine} ORDER BY {CLAIM_ORDER}",
                ids,
            )
            return [self.row(values) for values in cursor.fetchall()]


def _without_suspects(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return the ids up to the first job that crashed its worker twice in a row; that one only where it is first."""
    ids: list[int] = []
    for id, crashes, *_ in rows:
        if crashes >= SUSPECT_CRASHES:
            return ids or [id]
        ids.append(id)
    return ids
