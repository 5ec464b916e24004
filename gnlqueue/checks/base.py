"""What the checks of one database share: types, and the questions they ask."""

from __future__ import annotations

from collections.abc import Callable

from django.core.checks import CheckMessage
from django.db.backends.base.base import BaseDatabaseWrapper

#: What a check returns: one message, or nothing.
Found = CheckMessage | None
Find = Callable[[BaseDatabaseWrapper], Found]


def setting_of(connection: BaseDatabaseWrapper, name: str) -> str:
    """Return what a setting of the server is for this connection, in lower case."""
    ask = {"postgresql": "SHOW {}", "mysql": "SELECT @@{}", "sqlite": "PRAGMA {}"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(ask.format(name))
        return str(cursor.fetchone()[0]).lower()


def options_of(connection: BaseDatabaseWrapper) -> str:
    return f'DATABASES["{connection.alias}"]["OPTIONS"]'
