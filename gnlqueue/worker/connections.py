"""The database connections of the threads that run jobs: what one job leaves behind there, the next must not find."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

logger = logging.getLogger("gnlqueue.worker")

#: Seconds after which an idle thread closes its database connections.
IDLE_CONNECTION_AGE = 10.0

#: A flag of the server's status, which MySQL sends with each answer.
_IN_TRANSACTION = 1


class _Thread(threading.local):
    """This thread; `own` are the connections that it has made, `None` where nobody has looked yet.

    To look at all connections after each job costs as much as a short job.
    """

    own: list[BaseDatabaseWrapper] | None = None


_thread = _Thread()


def watch_connections() -> None:
    """Begin to note which threads make connections."""
    connection_created.connect(_note_connections, dispatch_uid="gnlqueue.worker.connections")


def _note_connections(**_: Any) -> None:
    _own()[:] = connections.all(initialized_only=True)


def _own() -> list[BaseDatabaseWrapper]:
    """Return the connections of this thread, as a list that is kept up to date; other threads may look at it."""
    own = _thread.own
    if own is None:  # it may have made one before we watched
        own = _thread.own = list(connections.all(initialized_only=True))
    return own


def tidy_connections(*, interrupted: bool = False) -> None:
    """Leave no transaction and no broken connection to the next job, without reconnecting for each.

    `CONN_MAX_AGE` is about web requests; its default of 0 would mean a new connection for every job.
    """
    if interrupted:
        _note_connections()  # it may have been connecting just then
    for connection in list(_own()):
        if interrupted or _is_untidy(connection):
            _close(connection)


def close_broken_connections(*, other_than: str) -> None:
    """Close the connections of this thread that had errors, except that of one alias, which others look after."""
    for connection in list(_own()):
        if connection.errors_occurred and connection.alias != other_than and not connection.in_atomic_block:
            _close(connection)


def close_connections() -> None:
    """Close all database connections of this thread."""
    for connection in connections.all(initialized_only=True):
        _close(connection)


def _is_untidy(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the next job must not find the connection as it is; asks no server, and may run in any thread."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return False
    if connection.errors_occurred or not connection.autocommit:
        return True
    if connection.settings_dict.get("OPTIONS", {}).get("pool"):
        return True
    try:
        return _in_transaction(connection)
    except Exception:  # closed behind Django's back
        return True


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether a transaction is open that Django knows nothing of, such as one that a task began with BEGIN.

    As far as the driver says: mysqlclient does not pass on what the server told it.
    """
    driver: Any = connection.connection
    if connection.vendor == "postgresql":
        return bool(driver.info.transaction_status)  # 0: idle
    if connection.vendor == "sqlite":
        return bool(driver.in_transaction)
    return bool(getattr(driver, "server_status", 0) & _IN_TRANSACTION)  # PyMySQL's


def _close(connection: BaseDatabaseWrapper) -> None:
    """Close a connection of this thread, whatever state it is in: the thread must go on."""
    try:
        connection.close()
    except Exception:
        logger.warning("A connection to %r could not be closed properly.", connection.alias, exc_info=True)
    if connection.in_atomic_block:  # it would stay unusable: Django waits for the end of a block that has no end
        del connections[connection.alias]
        _note_connections()


class AsyncConnections:
    """The connections that jobs on the event loop use: those of the one thread behind `sync_to_async`.

    Used in the event loop's thread. Handing work to the other thread costs as much as a short job, so this one looks
    from outside first. What it sees may belong to another job that is at work, so the other thread looks again.
    """

    def __init__(self) -> None:
        self._theirs: list[BaseDatabaseWrapper] | None = None  # until that thread has told
        self._running = 0
        self._ended_at = 0.0
        self._outages = 0
        self._timer: asyncio.TimerHandle | None = None
        self._errands: set[asyncio.Task[None]] = set()  # in that thread; the loop itself keeps only weak references

    async def begin_job(self, outages: int) -> None:
        """Have them closed if the database was away since the last job; `outages` is how often it has been."""
        self._running += 1
        if self._outages != outages:
            self._outages = outages
            await sync_to_async(close_connections)()

    async def end_job(self) -> None:
        """Have them tidied up if need be, and closed if no other job comes for some time."""
        self._running -= 1
        self._ended_at = time.monotonic()
        if self._theirs is None or any(map(_is_untidy, self._theirs)):
            tidying = self._send(self._tidy)
            # With others running that thread may be busy for long. It is enough to be the next in its queue.
            await (asyncio.sleep(0) if self._running else tidying)
        if self._timer is None and self._theirs:
            self._timer = asyncio.get_running_loop().call_later(IDLE_CONNECTION_AGE, self._close_idle)

    def _close_idle(self) -> None:
        loop, age = asyncio.get_running_loop(), time.monotonic() - self._ended_at
        if self._running or age < IDLE_CONNECTION_AGE:
            wait = IDLE_CONNECTION_AGE if self._running else IDLE_CONNECTION_AGE - age
            self._timer = loop.call_later(wait, self._close_idle)
        else:
            self._timer = None
            self._send(close_connections)

    def _tidy(self) -> None:
        """In that thread."""
        self._theirs = _own()
        tidy_connections()

    def _send(self, errand: Callable[[], None]) -> asyncio.Task[None]:
        """Have something done in that thread."""
        task = asyncio.get_running_loop().create_task(sync_to_async(errand)())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task
