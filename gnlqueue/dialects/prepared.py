"""Statements that a PostgreSQL connection of our own keeps planned.

Planning the claim of a single job takes as long as running it, and longer after a pause. Each statement is prepared
under a name made from its text, so that clients which share a server connection behind a pooler never run another
statement by that name. Where the name is not known, the connection stops keeping plans.

A plan fits the table as it was when it was made: a statement that was slow is planned again. Not each time: what is
slow may be the way to the server.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

DUPLICATE, UNKNOWN_NAME = "42P05", "26000"

SLOW = 0.01  # seconds
PLAN_EVERY = 2.0  # seconds, at the least: to plan anew costs two round trips more


class _Plan(NamedTuple):
    made_at: float
    was_slow: bool


#: By connection, the plans of what was prepared on it, by name.
_kept: WeakKeyDictionary[BaseDatabaseWrapper, dict[str, _Plan]] = WeakKeyDictionary()


def keep(connection: BaseDatabaseWrapper) -> None:
    """Let a connection keep the statements that it is given to `execute`."""
    if not connection.settings_dict.get("OPTIONS", {}).get("server_side_binding"):  # EXECUTE takes no such parameters
        _kept[connection] = {}


def execute(cursor: CursorWrapper, sql: str, params: Sequence[Any]) -> None:
    """Run a statement, prepared where its connection keeps statements and no transaction would be lost by an error."""
    plans = _kept.get(cursor.db)
    if plans is None or cursor.db.in_atomic_block:
        cursor.execute(sql, params)
        return
    name = f"gnlqueue_{hashlib.sha256(sql.encode()).hexdigest()[:32]}"
    try:
        plan = plans.get(name)
        if plan is not None and plan.was_slow and time.monotonic() - plan.made_at >= PLAN_EVERY:
            cursor.execute(f"DEALLOCATE {name}")
            del plans[name]
            plan = None
        if plan is None:
            _prepare(cursor, name, sql)
        began = time.monotonic()
        cursor.execute(f"EXECUTE {name} ({', '.join(['%s'] * len(params))})", params)
        plans[name] = _Plan(plan.made_at if plan else began, time.monotonic() - began > SLOW)
    except DatabaseError as error:
        if isinstance(error, OperationalError | InterfaceError) and code(error) != UNKNOWN_NAME:
            raise
        # A pooler has lent us another connection, a migration has changed a column; or the statement itself is wrong,
        # which it will say once more.
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
