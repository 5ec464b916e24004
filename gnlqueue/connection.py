"""A database connection of our own: outside Django's pool, in autocommit, READ COMMITTED, never waiting long."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

from django.db import InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from gnlqueue import dialects
from gnlqueue.exceptions import DatabaseNotReady
from gnlqueue.models import Job

logger = logging.getLogger("gnlqueue.worker")

#: What a broken connection raises; everything else is an error of ours or of the data.
ConnectionProblem = (OperationalError, InterfaceError)


@contextmanager
def dedicated(alias: str, timeout: float) -> Iterator[BaseDatabaseWrapper]:
    """Use a connection of its own for `alias` in this thread, and close it at the end.

    `timeout` is how many seconds one network operation may take; it is below one heartbeat, so that a dead network is
    noticed before a lease runs out.
    """
    settings = deepcopy(connections[alias].settings_dict)
    options = settings.setdefault("OPTIONS", {})
    options.pop("pool", None)  # a claimer that keeps a pooled connection starves a small pool
    ours = dialects.of(alias).dedicated_options(timeout)
    settings["OPTIONS"] = {**options, **ours}
    settings["CONN_MAX_AGE"] = None
    settings["AUTOCOMMIT"] = True  # or nothing that we write would be committed
    before = connections[alias]
    connection = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, alias)
    connect = connection.connect

    def connect_and_set_up() -> None:
        connect()
        try:
            dialects.of(alias).set_up(connection)
        except BaseException:
            connection.close()  # or it would be used as it is
            raise

    # Each time: after an error that somebody has caught, Django connects anew by itself.
    connection.connect = connect_and_set_up
    connections[alias] = connection
    try:
        yield connection
    finally:
        connection.close()
        connections[alias] = before


def prepare(alias: str) -> None:
    """Make what all connections to `alias` share, without connecting, so that forked processes need not.

    For psycopg that is how each type is read and written, most of a megabyte. Wrong settings are left to whoever
    connects, who will report them.
    """
    with suppress(Exception):
        connections[alias].get_connection_params()


def require_tables(connection: BaseDatabaseWrapper) -> None:
    """Raise `DatabaseNotReady` where the queue's tables are missing."""
    if Job._meta.db_table not in connection.introspection.table_names():
        raise DatabaseNotReady(
            f"The database {connection.alias!r} has no table {Job._meta.db_table}. Create the queue's tables with "
            f"`manage.py migrate --database {connection.alias}`, or name another database with --database or "
            "GNLQUEUE['DATABASE']."
        )


SAY_AGAIN = 60.0  # seconds between two log lines that say that a database is still away


class Outage:
    """A database that cannot be reached: how long to wait before the next try, and a log line once a minute.

    Pauses grow to half a beat (seconds) at most, so that owners are back and renew before anybody rescues. `level` is
    that of the message that it is away; the threads of one worker need not all say it.
    """

    def __init__(self, alias: str, beat: float, level: int = logging.ERROR) -> None:
        self._alias = alias
        self._longest = min(beat / 2, 5.0)
        self._level = level
        self._tries = 0
        self._began = 0.0
        self._say_at = 0.0

    def pause(self, error: BaseException) -> float:
        """Note a failure; return the seconds to wait before the next try, with jitter."""
        now = time.monotonic()
        if self._tries == 0:
            self._began = self._say_at = now
        if now >= self._say_at:
            self._say_at = now + SAY_AGAIN
            state = f"has been unreachable for {now - self._began:.0f} s" if self._tries else "cannot be reached"
            logger.log(self._level, "The database %r %s; retrying: %s", self._alias, state, str(error).strip())
        self._tries += 1
        return float(min(0.05 * 2 ** min(self._tries, 10), self._longest) * random.uniform(0.5, 1))

    def over(self) -> None:
        """Note a success, and say that the database is back if it was away."""
        if self._tries:
            level = min(self._level, logging.WARNING)
            logger.log(level, "The database %r is back after %.1f s.", self._alias, time.monotonic() - self._began)
        self._tries = 0
