"""SQLite 3.35 and later: one writer at a time, so the art is to take the write lock rarely and briefly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.dialects.base import Candidates, ClaimedRow, Dialect

# `type: ignore[attr-defined]` is for what only SQLite's connections have: the stubs know what all have.


class SQLiteDialect(Dialect):
    """Claims with one UPDATE … RETURNING, after a look that needs no lock."""

    locks_rows = False
    status_without_index = "+status"

    def now(self, offset: timedelta = timedelta()) -> str:
        # As wide as the text that Django stores, so that times compare as text; SQLite's clock has milliseconds.
        # The % is doubled because Django's cursor interpolates the statement.
        shift = f", '{offset.total_seconds():+.3f} seconds'" if offset else ""
        return f"(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now'{shift}) || '000')"

    def is_transient(self, error: DatabaseError) -> bool:
        return "locked" in str(error)

    def is_hopeless(self, error: Exception) -> bool:
        return "readonly database" in str(error) or "unable to open" in str(error)

    def dedicated_options(self, timeout: float) -> dict[str, Any]:
        return {}

    @contextmanager
    def write_transaction(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        connection.ensure_connection()  # which sets it as the settings say
        before = connection.transaction_mode  # type: ignore[attr-defined]
        connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
        try:
            yield
        finally:
            connection.transaction_mode = before  # type: ignore[attr-defined]

    def pairs(self, pairs: Sequence[tuple[int, int]]) -> tuple[str, list[Any]]:
        # Row values alone are a full scan here; the ids beside them go by primary key.
        ids = ", ".join(["%s"] * len(pairs))
        rows = ", ".join(["(%s, %s)"] * len(pairs))
        params = [id for id, _ in pairs] + [value for pair in pairs for value in pair]
        return f"(id IN ({ids}) AND (id, lease_token) IN (VALUES {rows}))", params

    def time(self, value: Any) -> datetime:
        # Of a column Django's converter has made a naive datetime; of an expression it is text.
        naive: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
        return naive.replace(tzinfo=UTC)

    def claim(
        self,
        connection: BaseDatabaseWrapper,
        candidates: Candidates,
        *,
        worker_id: str,
        lease: timedelta,
        now: datetime | None,
    ) -> list[ClaimedRow]:
        # An UPDATE that finds nothing waits for the write lock all the same; a SELECT does not.
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT EXISTS ({candidates.sql})", candidates.params)
            if not cursor.fetchone()[0]:
                return []
        return super().claim(connection, candidates, worker_id=worker_id, lease=lease, now=now)
