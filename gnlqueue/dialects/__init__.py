"""What differs between the databases, and nothing else: the clock, locks, some statements, and what an error means.

`of(alias)` gives the dialect of a connection; `now()` is the one clock of the queue.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Expression, F, Lookup, QuerySet, Value

from gnlqueue.dialects.base import Dialect
from gnlqueue.dialects.mysql import MySQLDialect
from gnlqueue.dialects.postgresql import PostgreSQLDialect
from gnlqueue.dialects.sqlite import SQLiteDialect

_DIALECTS: dict[str, type[Dialect]] = {
    "postgresql": PostgreSQLDialect,
    "mysql": MySQLDialect,
    "sqlite": SQLiteDialect,
}

SUPPORTED = tuple(_DIALECTS)


@cache
def for_vendor(vendor: str) -> Dialect:
    """Return the dialect of a `connection.vendor`.

    Raises `NotImplementedError` for a database that the queue does not support.
    """
    try:
        return _DIALECTS[vendor]()
    except KeyError:
        raise NotImplementedError(
            f"gnlqueue works on PostgreSQL, MySQL, MariaDB and SQLite, not on {vendor!r}. Set GNLQUEUE['DATABASE'] to "
            "the alias of one of these."
        ) from None


def of(alias: str) -> Dialect:
    """Return the dialect of a database alias."""
    return for_vendor(connections[alias].vendor)


class DatabaseNow(Expression):
    """The database's clock at the start of the statement, in UTC, shifted by `offset`.

    Not `django.db.models.functions.Now`: on MySQL that is the session's time zone while Django stores UTC, and on
    PostgreSQL it is the start of the transaction.
    """

    output_field = DateTimeField()

    def __init__(self, offset: timedelta = timedelta()) -> None:
        super().__init__()
        self.offset = offset

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return for_vendor(connection.vendor).now(self.offset), ()


def now(at: datetime | None = None, *, offset: timedelta = timedelta()) -> Expression | Value:
    """Return the expression for `at`, or for the database's clock where it is `None`, shifted by `offset`."""
    return DatabaseNow(offset) if at is None else Value(at + offset, output_field=DateTimeField())


def read_clock(alias: str) -> datetime:
    """Return the time of the database's clock."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT {of(alias).now()}", ())
        return of(alias).time(cursor.fetchone()[0])


def estimate(rows: QuerySet[Any]) -> int | None:
    """Return about how many rows there are by the database's statistics; `None` where it keeps none."""
    compiler = rows.order_by().values("pk").query.get_compiler(using=rows.db)
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:  # Django knows that there is none: `pk IN ()`
        return 0
    return of(rows.db).estimate(connections[rows.db], sql, params)


class Held(Lookup):
    """The condition that a row is in progress under one of some (id, lease token) pairs, through the primary key.

    A lookup, as Django compares any other condition with TRUE on SQLite and MySQL, which then read the whole table.
    """

    lookup_name = "held"
    prepare_rhs = False

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        super().__init__(F("pk"), pairs)
        self.pairs = pairs

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        dialect = for_vendor(connection.vendor)
        sql, params = dialect.pairs(self.pairs)
        return f"({dialect.status_without_index} = 'in_progress' AND {sql})", tuple(params)


__all__ = ["SUPPORTED", "DatabaseNow", "Dialect", "Held", "estimate", "for_vendor", "now", "of", "read_clock"]
