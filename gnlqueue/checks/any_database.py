"""Checks of the queue's database that more than one kind of database needs."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue import dialects
from gnlqueue.checks.base import Found, options_of
from gnlqueue.models import Job

# Django itself refuses most of what is older, some releases more than others.
FLOORS = {"postgresql": (14,), "mysql": (8, 0), "sqlite": (3, 35)}
MARIADB_FLOOR = (10, 11)


def unsupported(alias: str) -> Found:
    if alias not in connections:
        what = "is not in DATABASES"
    elif connections[alias].vendor not in dialects.SUPPORTED:
        what = f"is of the kind {connections[alias].vendor!r}"
    else:
        return None
    return Error(
        f"The queue's database is {alias!r}, which {what}. The queue works on PostgreSQL, MySQL, MariaDB and SQLite.",
        hint='Set GNLQUEUE["DATABASE"] to an alias of one of these; where it is not set, the routers are asked.',
        id="gnlqueue.E003",
    )


def unreachable(alias: str, error: Exception) -> CheckMessage:
    return Error(
        f"The queue's database {alias!r} cannot be queried: {error}",
        hint=f'Check that the server is running, and that DATABASES["{alias}"] is right.',
        id="gnlqueue.E009",
    )


def not_migrated(connection: BaseDatabaseWrapper) -> Found:
    if router.allow_migrate_model(connection.alias, Job):
        return None
    return Warning(
        f"A router does not let `migrate` create the queue's tables on {connection.alias!r}, the queue's database.",
        hint=f'Let its allow_migrate({connection.alias!r}, "gnlqueue") return True. Where another project creates the '
        'tables, add "gnlqueue.W015" to SILENCED_SYSTEM_CHECKS.',
        id="gnlqueue.W015",
    )


def too_old(connection: BaseDatabaseWrapper) -> Found:
    mariadb = connection.vendor == "mysql" and connection.display_name == "MariaDB"
    floor = MARIADB_FLOOR if mariadb else FLOORS[connection.vendor]
    version = connection.get_database_version()
    if version >= floor:
        return None
    return Error(
        f"{connection.display_name} {_dotted(version)} of {connection.alias!r} is too old: claims need statements that "
        "it does not have.",
        hint=f"Upgrade to {connection.display_name} {_dotted(floor)} or later.",
        id="gnlqueue.E005",
    )


def stores_local_times(connection: BaseDatabaseWrapper) -> Found:
    zone = connection.settings_dict["TIME_ZONE"]
    if zone in (None, "UTC", "Etc/UTC"):
        return None
    return Error(
        f"Times on {connection.alias!r} are stored in the time zone {zone!r}. The queue's clock is the database's, in "
        "UTC: jobs would become due hours early or late.",
        hint=f'Remove "TIME_ZONE" from DATABASES["{connection.alias}"], or move the queue to another alias with '
        'GNLQUEUE["DATABASE"].',
        id="gnlqueue.E004",
    )


def no_autocommit(connection: BaseDatabaseWrapper) -> Found:
    if connection.settings_dict["AUTOCOMMIT"]:
        return None
    return Error(
        f"AUTOCOMMIT is off for {connection.alias!r}: what the admin, commands and tasks write to the queue is rolled "
        "back at the end unless your own code commits it, and steps are refused.",
        hint=f'Remove "AUTOCOMMIT" from DATABASES["{connection.alias}"], or move the queue to another alias with '
        'GNLQUEUE["DATABASE"].',
        id="gnlqueue.E012",
    )


def strict_isolation(connection: BaseDatabaseWrapper, level: str, *, harm: str, write: str) -> Found:
    level = level.upper().replace("-", " ").replace("_", " ")
    if level not in ("REPEATABLE READ", "SERIALIZABLE"):
        return None
    return Warning(
        f"Transactions on {connection.alias!r} are {level}, in which {harm}. A worker's own connection is "
        "READ COMMITTED; gnlqueue.queue.claim() uses yours.",
        hint=f'Write "isolation_level": {write} in {options_of(connection)}. If you never claim jobs yourself, add '
        '"gnlqueue.W010" to SILENCED_SYSTEM_CHECKS.',
        id="gnlqueue.W010",
    )


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
