"""Being told of new jobs, so that an idle worker need not poll often. Hints only: without them polling finds all.

PostgreSQL: LISTEN on a connection of its own. SQLite: `PRAGMA data_version`, which changes when another connection
commits; it costs some microseconds, outside any transaction. MySQL and MariaDB have nothing of the kind.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from django.db import Error, connections

from gnlqueue.conf import settings
from gnlqueue.connection import Outage, dedicated
from gnlqueue.queue import wakeups

logger = logging.getLogger("gnlqueue.worker")

DATA_VERSION_EVERY = 0.015  # seconds
NETWORK_TIMEOUT = 10.0  # seconds
LONGEST_GOODBYE = 1.0  # seconds to wait for the end of a thread that may be connecting


class Watcher(threading.Thread):
    """Calls `wake` when there may be work. Ends with `stop()`; a broken connection is made anew."""

    def __init__(self, database: str, wake: Callable[[], None]) -> None:
        super().__init__(name="gnlqueue-wakeup", daemon=True)
        self._database = database
        self._wake = wake
        self._stopped = threading.Event()

    def run(self) -> None:
        """Watch until stopped."""
        outage = Outage(self._database, NETWORK_TIMEOUT, logging.DEBUG)
        while not self._stopped.is_set():
            try:
                # What the driver raises comes as Django's errors too, where we use its connection directly.
                with dedicated(self._database, NETWORK_TIMEOUT) as connection, connection.wrap_database_errors:
                    self._watch(connection, outage.over)
            except Error as error:
                self._stopped.wait(outage.pause(error))

    def stop(self) -> None:
        """End the watching."""
        self._stopped.set()
        self.join(LONGEST_GOODBYE)

    def _watch(self, connection: Any, connected: Callable[[], None]) -> None:
        raise NotImplementedError


class DataVersionWatcher(Watcher):
    """Watches an SQLite file."""

    def _watch(self, connection: Any, connected: Callable[[], None]) -> None:
        connection.ensure_connection()
        # Straight on the driver's connection: Django's cursor would cost more than the pragma.
        cursor = connection.connection.cursor()
        seen = None
        while not self._stopped.is_set():
            time.sleep(DATA_VERSION_EVERY)  # not the event's own wait, which costs nearly as much as the pragma
            version = cursor.execute("PRAGMA data_version").fetchone()[0]
            if version != seen:
                seen = version
                self._wake()
            connected()


class ListenWatcher(Watcher):
    """Listens on PostgreSQL, for the queues that this worker serves."""

    def __init__(self, database: str, wake: Callable[[], None], queue_names: Collection[str]) -> None:
        super().__init__(database, wake)
        self._queue_names = frozenset(queue_names) | {wakeups.ANY_QUEUE}
        self._told_to_stop, self._tell = socket.socketpair()

    def stop(self) -> None:
        self._tell.close()
        super().stop()

    def run(self) -> None:
        with self._told_to_stop:
            super().run()

    def _watch(self, connection: Any, connected: Callable[[], None]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {wakeups.CHANNEL}")
        connected()
        self._wake()  # for what came before we listened
        libpq = connection.connection.pgconn
        with selectors.DefaultSelector() as news:  # unlike select.select, also in a process with many files open
            news.register(libpq.socket, selectors.EVENT_READ)
            news.register(self._told_to_stop, selectors.EVENT_READ)
            while not self._stopped.is_set():
                news.select()
                libpq.consume_input()  # raises when the server is gone
                heard = False
                while (notice := libpq.notifies()) is not None:
                    heard = heard or notice.extra.decode() in self._queue_names
                if heard:
                    self._wake()


def watcher(database: str, queue_names: Collection[str], wake: Callable[[], None]) -> Watcher | None:
    """Return what watches this database, not started yet; `None` where polling is all there is."""
    vendor = connections[database].vendor
    if vendor == "sqlite":
        return DataVersionWatcher(database, wake)
    if vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if is_psycopg3:
            return ListenWatcher(settings().LISTEN_DATABASE or database, wake, queue_names)
        logger.warning("psycopg 2 cannot listen without blocking: this worker polls. Install psycopg 3.")
    return None
