"""PostgreSQL 14 and later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.dialects.base import Dialect

SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE = "40001", "40P01", "55P03"


class PostgreSQLDialect(Dialect):
    """Claims with one statement: the locking SELECT as a materialised CTE, because as a subquery it may run per row."""

    json_placeholder = "%s::jsonb"

    def now(self, offset: timedelta = timedelta()) -> str:
        # STATEMENT_TIMESTAMP: NOW() is the transaction's start, seconds ago in a long one.
        if not offset:
            return "STATEMENT_TIMESTAMP()"
        return f"(STATEMENT_TIMESTAMP() + INTERVAL '{offset // timedelta(microseconds=1)} microseconds')"

    def pairs(self, pairs: Sequence[tuple[int, int]]) -> tuple[str, list[Any]]:
        # Two arrays instead of two placeholders a pair: the driver's time for a statement grows with its placeholders.
        ids, tokens = [list(column) for column in zip(*pairs, strict=True)]
        sql = "(id = ANY(%s) AND (id, lease_token) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[])))"
        return sql, [ids, ids, tokens]

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
            "isolation_level": IsolationLevel.READ_COMMITTED,
        }
