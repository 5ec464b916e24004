"""The database connections of the threads that run jobs: what one job leaves behind there, the next must not find."""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

logger = logging.getLogger("gnlqueue.worker")


class _Thread(threading.local):
    """This thread; `connected` once it has a database connection, `None` where nobody has looked yet.

    To look at all connections after each job costs as much as a short job.
    """

    connected: bool | None = None


_thread = _Thread()


def watch_connections() -> None:
    """Begin to note which threads make connections."""
    connection_created.connect(_note_connection, dispatch_uid="gnlqueue.worker.connections")


def _note_connection(**_: Any) -> None:
    _thread.connected = True


def tidy_connections(*, interrupted: bool) -> None:
    """Leave no transaction and no broken connection to the next job, without reconnecting for each.

    `CONN_MAX_AGE` is about web requests; its default of 0 would mean a new connection for every job.
    """
    if _thread.connected is None:  # it may have made one before we watched
        _thread.connected = any(each.connection is not None for each in connections.all(initialized_only=True))
    if not _thread.connected and not interrupted:
        return
    for connection in connections.all(initialized_only=True):
        pooled = bool(connection.settings_dict.get("OPTIONS", {}).get("pool"))
        unfinished = connection.in_atomic_block or not connection.autocommit
        if interrupted or unfinished or connection.errors_occurred or pooled:
            _close(connection)


def close_connections() -> None:
    """Close all database connections of this thread."""
    for connection in connections.all(initialized_only=True):
        _close(connection)


def _close(connection: BaseDatabaseWrapper) -> None:
    """Close a connection of this thread, whatever state it is in: the thread must go on."""
    try:
        connection.close()
    except Exception:
        logger.warning("A connection to %r could not be closed properly.", connection.alias, exc_info=True)
    if connection.in_atomic_block:  # it would stay unusable: Django waits for the end of a block that has no end
        del connections[connection.alias]
