"""PostgreSQL 14 and later."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from gnlqueue.dialects import prepared
from gnlqueue.dialects.base import COMPLETED, Dialect, Done, NewRow, Params
from gnlqueue.models import Job

FEW_ROWS = 8
LARGE_RESULT = 16 * 1024  # characters of JSON

#: Arrays of ids and lease tokens, each in a subquery: the planner would scan a table of medium size for a long array
#: that it sees; it does not look into subqueries, and uses the primary key.
_PAIRS = "(SELECT %s::bigint[]), (SELECT %s::bigint[])"

#: The types of an INSERT's columns that are not text.
_TYPES = {
    **dict.fromkeys(("args", "kwargs", "options"), "jsonb"),
    **dict.fromkeys(("priority", "max_attempts"), "int"),
    "run_at": "timestamptz",
    "after": "interval",
}

SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE = "40001", "40P01", "55P03"


class PostgreSQLDialect(Dialect):
    """Claims with one statement: the locking SELECT as a materialised CTE, because as a subquery it may run per row."""

    keeps_dead_rows = True
    times_are_aware = True
    # The index of what is in progress grows while somebody holds an old snapshot; the primary key's use does not.
    status_without_index = "status || ''"

    def now(self, offset: timedelta = timedelta()) -> str:
        # STATEMENT_TIMESTAMP: NOW() is the transaction's start, seconds ago in a long one.
        if not offset:
            return "STATEMENT_TIMESTAMP()"
        return f"(STATEMENT_TIMESTAMP() + INTERVAL '{offset // timedelta(microseconds=1)} microseconds')"

    def pairs(self, pairs: Sequence[tuple[int, int]]) -> tuple[str, list[Any]]:
        if len(pairs) == 1:
            return super().pairs(pairs)
        # Two arrays instead of two placeholders a pair: the driver's time for a statement grows with its placeholders.
        ids, tokens = zip(*pairs, strict=True)
        sql = f"(id, lease_token) IN (SELECT * FROM unnest({_PAIRS}))"
        return sql, [_array(ids), _array(tokens)]

    def one_of(self, column: str, few: str) -> str:
        return f"{column} = ANY(ARRAY({few}))"  # less to plan than a join, and by the index of the column

    def set_up(self, connection: BaseDatabaseWrapper) -> None:
        prepared.keep(connection)
        with connection.cursor() as cursor:
            # The driver's isolation level is that of BEGIN; a claim has none. Not set where it is so already, as behind
            # a pooler the next client would inherit it.
            cursor.execute(
                "SELECT set_config('default_transaction_isolation', 'read committed', false)"
                " WHERE current_setting('default_transaction_isolation') <> 'read committed'"
            )

    def execute_planned(self, cursor: CursorWrapper, sql: str, params: Sequence[Any]) -> None:
        prepared.execute(cursor, sql, params)

    def new_rows(
        self, connection: BaseDatabaseWrapper, rows: Sequence[NewRow], now: datetime | None
    ) -> tuple[str, Params]:
        # Few placeholders, as in `pairs`: what all rows share is sent once, the arguments as one JSON array, other
        # columns as an array each. For a few rows that costs more. Rows come in the order of ids.
        if len(rows) < FEW_ROWS:
            return super().new_rows(connection, rows, now)
        params: dict[str, Any] = {"count": len(rows), "now": now}
        sources, cells = {"place": "generate_series(1, %(count)s)"}, []
        for name, values in zip(NewRow._fields, zip(*rows, strict=True), strict=True):
            kind = _TYPES.get(name, "text")
            if len(set(values)) == 1:
                params[name] = values[0]
                cells.append(f"%({name})s::{kind}")
                continue
            cells.append(name)
            if name in {"args", "kwargs"}:  # never NULL
                params[name] = f"[{','.join(values)}]"
                sources[name] = f"jsonb_array_elements(%({name})s::jsonb)"
            else:
                params[name] = list(values)
                sources[name] = f"unnest(%({name})s::{kind}[])"
        *plain, run_at, after = cells
        at = self.now() if now is None else "%(now)s::timestamptz"
        sql = f"""
            SELECT {", ".join(plain)}, COALESCE({run_at}, {at} + {after}), {at}, 0, 0, 0
            FROM ROWS FROM ({", ".join(sources.values())}) AS new ({", ".join(sources)})
            ORDER BY place
        """
        return sql, params

    def complete(self, connection: BaseDatabaseWrapper, done: Sequence[Done], now: datetime | None) -> int:
        # One statement, whether there are results or not; joined with the arrays. Large results go by themselves: in an
        # array the driver writes them character by character.
        small = [job for job in done if len(job.result or "") <= LARGE_RESULT]
        if len(small) < len(done):
            with transaction.atomic(using=connection.alias):
                large = [job for job in done if len(job.result or "") > LARGE_RESULT]
                written = super().complete(connection, large, now)
                return written + (self.complete(connection, small, now) if small else 0)
        at, times = self.at(connection, now)
        ids, tokens, results = zip(*done, strict=True)
        given = list(results) if any(results) else None  # no array is one of as many NULLs as are needed
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                UPDATE {Job._meta.db_table} AS job SET {COMPLETED.format(at=at)}, result = mine.result
                FROM unnest({_PAIRS}, (SELECT %s::jsonb[])) AS mine (id, token, result)
                WHERE job.{self.status_without_index} = 'in_progress'
                      AND job.id = mine.id AND job.lease_token = mine.token
                """,
                [*times, _array(ids), _array(tokens), given],
            )
            return int(cursor.rowcount)

    def estimate(self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}", params)
            found = re.search(r" rows=(\d+) ", cursor.fetchone()[0])  # of the whole: the first line of the plan
        return None if found is None else int(found[1])

    def is_transient(self, error: DatabaseError) -> bool:
        return prepared.code(error) in {SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE}

    def is_read_committed(self, connection: BaseDatabaseWrapper) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            return bool(cursor.fetchone()[0] == "read committed")

    def dedicated_options(self, timeout: float) -> dict[str, Any]:
        # READ COMMITTED: under REPEATABLE READ a row that another worker just changed is an error, not skipped.
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        return {
            "connect_timeout": max(round(timeout), 2),  # libpq takes whole seconds, of which 1 means 2
            "tcp_user_timeout": round(timeout * 1000),
            "keepalives_idle": max(round(timeout), 1),
            "keepalives_interval": max(round(timeout / 3), 1),
            "keepalives_count": 3,
            "isolation_level": IsolationLevel.READ_COMMITTED,
        }


def _array(numbers: Iterable[int]) -> str:
    """Return the literal of an array of numbers; the driver would look at each of them, in Python."""
    return f"{{{','.join(map(str, numbers))}}}"
