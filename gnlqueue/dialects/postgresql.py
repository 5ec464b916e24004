"""PostgreSQL 14 and later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.dialects.base import COMPLETED, Dialect, Done, NewRow
from gnlqueue.models import Job

FEW_ROWS = 8

#: Arrays of ids and lease tokens. PostgreSQL would count one that it sees, and read a table of middling size as a whole
#: for many of them; it does not look into subqueries, and goes by the primary key.
_PAIRS = "(SELECT %s::bigint[]), (SELECT %s::bigint[])"

SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE = "40001", "40P01", "55P03"


class PostgreSQLDialect(Dialect):
    """Claims with one statement: the locking SELECT as a materialised CTE, because as a subquery it may run per row."""

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

    def new_rows(
        self, connection: BaseDatabaseWrapper, rows: Sequence[NewRow], now: datetime | None
    ) -> tuple[str, list[Any]]:
        # One array a column, for the same reason; for a few rows the arrays cost more. Rows come in the order of ids.
        if len(rows) < FEW_ROWS:
            return super().new_rows(connection, rows, now)
        at, at_params = (self.now(), []) if now is None else ("%s::timestamptz", [now])
        columns = [list(column) for column in zip(*rows, strict=True)]
        columns[-1] = [after // timedelta(microseconds=1) for after in columns[-1]]
        sql = f"""
            SELECT task_name, queue_name, args::jsonb, kwargs::jsonb, priority, status, max_attempts, options::jsonb,
                   idempotency_key, key_hash, COALESCE(run_at, {at} + after * INTERVAL '1 microsecond'), {at}, 0, 0, 0
            FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::text[], %s::int[], %s::text[],
                        %s::text[], %s::text[], %s::timestamptz[], %s::bigint[]) WITH ORDINALITY
                 AS new ({", ".join(NewRow._fields)}, place)
            ORDER BY place
        """
        return sql, [*at_params, *at_params, *columns]

    def complete(self, connection: BaseDatabaseWrapper, done: Sequence[Done], now: datetime | None) -> int:
        # One statement, whether there are results or not; joined with the arrays.
        at, times = self._at(connection, now)
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

    def is_transient(self, error: DatabaseError) -> bool:
        code = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
        return code in {SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE}

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
