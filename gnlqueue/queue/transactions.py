"""Which database an operation uses, trying again when that says so, and warning of a transaction open elsewhere.

In `gnlqueue.queue` a parameter `using` is what a caller passed, and may be `None`; `alias` is what it resolves to.
"""

from __future__ import annotations

import inspect
import random
import time
import warnings
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, connections, router, transaction

from gnlqueue import dialects
from gnlqueue.conf import settings
from gnlqueue.exceptions import EnqueuedOutsideTransaction
from gnlqueue.models import Job

T = TypeVar("T")

TRIES = 8
FIRST_PAUSE = 0.005  # seconds; doubles with each try


def alias_of(using: str | None) -> str:
    """Return the alias of the queue's database: what was asked for, else the setting, else the router's answer."""
    return using or settings().DATABASE or router.db_for_write(Job)


def retried(alias: str, operation: Callable[[], T]) -> T:
    """Run `operation`, again where a deadlock, a serialization failure or a lock wait ended it.

    Only where it opens the outermost transaction itself. Inside the caller's transaction nothing is retried: MariaDB
    has rolled *all* of it back, and a second try would go on without the caller's first half. There the error reaches
    the caller, with the transaction marked for rollback; one that the caller ends by hand cannot be marked.
    """
    if is_manual(alias):
        return operation()
    if transaction.get_connection(alias).in_atomic_block:
        try:
            return operation()
        except DatabaseError:
            transaction.set_rollback(True, using=alias)
            raise
    for trial in range(TRIES):
        try:
            return operation()
        except DatabaseError as error:
            if trial == TRIES - 1 or not dialects.of(alias).is_transient(error):
                raise
        time.sleep(random.uniform(0.5, 1) * FIRST_PAUSE * 2**trial)
    raise AssertionError("unreachable")


def is_manual(alias: str) -> bool:
    """Tell whether the caller ends transactions by hand (`set_autocommit(False)`), and no `atomic()` is open."""
    connection = connections[alias]
    if connection.in_atomic_block:
        return False
    if connection.connection is None:  # not get_autocommit(), which connects: that is part of what may be tried again
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


def in_own_transaction(alias: str) -> bool:
    """Tell whether the caller has a transaction open on this alias, other than the one that `TestCase` wraps around."""
    return is_manual(alias) or _in_block(alias)


def _in_block(alias: str) -> bool:
    # `_from_testcase` is Django's own mark, which its `durable=True` honours in the same way.
    blocks = connections[alias].atomic_blocks if connections[alias].in_atomic_block else []
    return any(not getattr(block, "_from_testcase", False) for block in blocks)


def warn_outside_transaction(alias: str) -> None:
    """Warn of an enqueue that would survive the rollback of a transaction that is open on another database."""
    if len(connections.settings) == 1 or in_own_transaction(alias):
        return
    for other in connections.all(initialized_only=True):
        # With autocommit off nobody can tell whether a transaction is open.
        if other.alias != alias and _in_block(other.alias):
            message = (
                f"A job is enqueued on the database {alias!r} while a transaction is open on {other.alias!r}, and not "
                f"on {alias!r}: if that transaction rolls back, the job still runs. Enqueue after it, with "
                f"transaction.on_commit(…, using={other.alias!r}), or open atomic(using={alias!r}) too."
            )
            if settings().STRICT_TRANSACTIONS:
                raise EnqueuedOutsideTransaction(message)
            warnings.warn(message, EnqueuedOutsideTransaction, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """Return the `stacklevel` with which a warning names the line outside of this package that led to it."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("gnlqueue."):
        frame, levels = frame.f_back, levels + 1
    return levels
