"""Statements that a PostgreSQL connection of our own keeps planned.

To plan the claim for a lone job takes as long as to run it, and longer after a pause. Each statement is prepared under
a name that is made of its text: behind a pooler, which lends one server's connection to many clients, nobody can run
another's statement by that name, and where it is not found any more, statements are planned each time again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

DUPLICATE, UNKNOWN_NAME, OTHER_COLUMNS = "42P05", "26000", "0A000"

#: By connection, the names that were prepared on it.
_kept: WeakKeyDictionary[BaseDatabaseWrapper, set[str]] = WeakKeyDictionary()


def keep(connection: BaseDatabaseWrapper) -> None:
    """Let a connection keep the statements that it is given to `execute`."""
    _kept[connection] = set()


def execute(cursor: CursorWrapper, sql: str, params: Sequence[Any]) -> None:
    """Run a statement, prepared where its connection keeps statements and no transaction would be lost by an error."""
    names = _kept.get(cursor.db)
    if names is None or cursor.db.in_atomic_block:
        cursor.execute(sql, params)
        return
    name = f"gnlqueue_{hashlib.sha256(sql.encode()).hexdigest()[:32]}"
    try:
        if name not in names:
            _prepare(cursor, name, sql)
            names.add(name)
        cursor.execute(f"EXECUTE {name} ({', '.join(['%s'] * len(params))})", params)
    except DatabaseError as error:
        if code(error) not in {UNKNOWN_NAME, OTHER_COLUMNS}:  # a pooler's other connection; a migration
            raise
        del _kept[cursor.db]
        cursor.execute(sql, params)


def code(error: DatabaseError) -> str | None:
    """Return PostgreSQL's own code of an error, from either driver."""
    return getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)


def _prepare(cursor: CursorWrapper, name: str, sql: str) -> None:
    first, *others = sql.split("%s")
    text = first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))
    try:
        cursor.execute(f"PREPARE {name} AS {text}")
    except DatabaseError as error:
        if code(error) != DUPLICATE:  # the same text, by another client of a pooler
            raise
