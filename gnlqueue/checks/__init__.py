"""System checks: they find what keeps the queue from keeping its promise, and say what to write instead.

`manage.py check` looks at the settings and touches no database; with `--deploy` it also finds what is for development
only. `manage.py check --database <alias>` and `migrate` also query the queue's database, and only that one. `--tag
gnlqueue` leaves out everybody else's checks. What is intended goes into `SILENCED_SYSTEM_CHECKS`.

Missing tables are left to `migrate --check`, because `migrate` runs these checks before it creates them.

============= ======== =====================================================================================
id            looks at finds
============= ======== =====================================================================================
gnlqueue.E001 settings a key of `GNLQUEUE` that does not exist, or a value of the wrong kind
gnlqueue.E002 settings `USE_TZ` is off
gnlqueue.E003 settings the queue's database does not exist, or is of a kind that the queue does not support
gnlqueue.E004 settings the queue's database, SQLite or MySQL, stores times in a zone other than UTC
gnlqueue.E005 both     the database is too old
gnlqueue.E006 settings `LISTEN_DATABASE` is not PostgreSQL
gnlqueue.E007 database the SQLite file or its directory cannot be written
gnlqueue.E008 database tables of the queue have, or would get, a storage engine other than InnoDB
gnlqueue.E009 database the queue's database cannot be queried
gnlqueue.E010 settings `REDACT` names a function that cannot be imported
gnlqueue.E011 settings `TASKS` names gnlqueue's backend, but gnlqueue is not installed as an app
gnlqueue.E012 settings the queue's database has `AUTOCOMMIT` off
gnlqueue.W001 settings transactions on SQLite begin without the write lock
gnlqueue.W002 settings the SQLite database is in memory
gnlqueue.W003 database SQLite has no write-ahead log
gnlqueue.W004 database SQLite: `synchronous` lets commits get lost
gnlqueue.W005 database PostgreSQL: `synchronous_commit` lets commits get lost
gnlqueue.W006 database PostgreSQL: `fsync` is off
gnlqueue.W007 database PostgreSQL: `full_page_writes` is off
gnlqueue.W008 database MySQL, MariaDB: `innodb_flush_log_at_trx_commit` lets commits get lost
gnlqueue.W009 database MySQL, MariaDB: `sync_binlog` lets commits get lost
gnlqueue.W010 both     transactions are REPEATABLE READ or SERIALIZABLE
gnlqueue.W011 settings PostgreSQL through psycopg2, with which workers cannot listen
gnlqueue.W012 settings leases are shorter than three heartbeats
gnlqueue.W013 settings the admin's date filters are not installed
gnlqueue.W014 settings `manage.py runworker` is another app's command
gnlqueue.W015 settings a router does not let `migrate` create the queue's tables on its database
gnlqueue.W016 --deploy `INLINE` is on
gnlqueue.W017 database tables of the queue have, or would get, a character set other than utf8mb4
============= ======== =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseTrouble
from django.db import connections

from gnlqueue.checks import any_database, mysql, postgresql, project, sqlite
from gnlqueue.checks.base import Find, Found
from gnlqueue.conf import settings
from gnlqueue.queue.transactions import alias_of

TAG = "gnlqueue"

PROJECT: Sequence[Callable[[], Found]] = (
    project.no_time_zones,
    project.cannot_listen,
    project.short_lease,
    project.broken_redact,
    project.no_date_filters,
    project.other_runworker,
)

#: vendor -> what its entry in DATABASES tells, without a connection
CONFIGURED: dict[str, Sequence[Find]] = {
    "postgresql": (
        any_database.not_migrated,
        any_database.no_autocommit,
        postgresql.strict_isolation,
        postgresql.old_driver,
    ),
    "mysql": (
        any_database.not_migrated,
        any_database.no_autocommit,
        any_database.stores_local_times,
        mysql.strict_isolation,
    ),
    "sqlite": (
        any_database.not_migrated,
        any_database.no_autocommit,
        any_database.stores_local_times,
        any_database.too_old,  # the library is in this process
        sqlite.late_write_lock,
        sqlite.in_memory,
    ),
}

#: vendor -> what the database itself tells
ASKED: dict[str, Sequence[Find]] = {
    "postgresql": (
        any_database.too_old,
        postgresql.strict_isolation_by_default,
        postgresql.commits_get_lost,
        postgresql.no_fsync,
        postgresql.no_full_pages,
    ),
    "mysql": (
        any_database.too_old,
        mysql.strict_isolation_by_default,
        mysql.other_engine,
        mysql.other_character_set,
        mysql.commits_get_lost,
        mysql.commits_get_lost_with_binlog,
    ),
    "sqlite": (sqlite.not_writable, sqlite.no_write_ahead_log, sqlite.commits_get_lost),
}


@register(TAG)
def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Find what the settings alone show."""
    try:
        settings()
    except ImproperlyConfigured as error:
        hint = "The keys and what they take are listed in the docstring of gnlqueue.conf."
        return [Error(str(error), hint=hint, id="gnlqueue.E001")]
    found = [find() for find in PROJECT]
    alias = alias_of(None)
    if unsupported := any_database.unsupported(alias):
        found.append(unsupported)
    else:
        found += [find(connections[alias]) for find in CONFIGURED[connections[alias].vendor]]
    return [message for message in found if message]


@register(TAG, deploy=True)
def check_deployment(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Find what is meant for development only."""
    try:
        found = project.runs_inline()
    except ImproperlyConfigured:
        return []  # check_settings says so
    return [found] if found else []


@register(TAG, Tags.database)
def check_database(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Find what only the queue's database can tell, if it is among `databases`."""
    try:
        alias = alias_of(None)
    except ImproperlyConfigured:
        return []  # check_settings says so
    if alias not in (databases or ()) or any_database.unsupported(alias):
        return []
    found: list[CheckMessage] = []
    try:
        for find in ASKED[connections[alias].vendor]:
            if message := find(connections[alias]):
                found.append(message)  # noqa: PERF401  what came before the trouble is kept
    except DatabaseTrouble as error:
        if not any(message.is_serious() for message in found):  # which would be the cause
            found.append(any_database.unreachable(alias, error))
    return found
