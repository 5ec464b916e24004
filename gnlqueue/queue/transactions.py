"""Which database an operation uses, and how it behaves when the database says "try again"."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, connections, router, transaction

from gnlqueue import dialects
from gnlqueue.conf import settings
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
    the caller, with the transaction marked for rollback.
    """
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


def in_own_transaction(alias: str) -> bool:
    """Tell whether the caller has a transaction open on this alias, other than the one that `TestCase` wraps around."""
    # `_from_testcase` is Django's own mark, which its `durable=True` honours in the same way.
    blocks = connections[alias].atomic_blocks if connections[alias].in_atomic_block else []
    return any(not getattr(block, "_from_testcase", False) for block in blocks)
