"""Checks of PostgreSQL: its driver, and settings that give up commits."""

from __future__ import annotations

from django.core.checks import Warning
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.checks import any_database
from gnlqueue.checks.base import Found, options_of, setting_of


def old_driver(connection: BaseDatabaseWrapper) -> Found:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    if is_psycopg3:
        return None
    return Warning(
        f"{connection.alias!r} uses psycopg2, with which workers cannot LISTEN: they poll, and start jobs later.",
        hint='Install psycopg 3: pip install "gnlqueue[postgres]". Django prefers it when both are there.',
        id="gnlqueue.W011",
    )


def strict_isolation(connection: BaseDatabaseWrapper) -> Found:
    """Find a level that the project chose."""
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    level = connection.settings_dict["OPTIONS"].get("isolation_level")
    return _strict_isolation(connection, IsolationLevel(level).name) if level in list(IsolationLevel) else None


def strict_isolation_by_default(connection: BaseDatabaseWrapper) -> Found:
    """Find a level that comes from the server, as the project chose none."""
    if "isolation_level" in connection.settings_dict["OPTIONS"]:
        return None
    return _strict_isolation(connection, setting_of(connection, "default_transaction_isolation"))


def _strict_isolation(connection: BaseDatabaseWrapper, level: str) -> Found:
    return any_database.strict_isolation(
        connection,
        level,
        harm="a claim fails with a serialization error where another worker was faster",
        write="psycopg.IsolationLevel.READ_COMMITTED",
    )


def commits_get_lost(connection: BaseDatabaseWrapper) -> Found:
    if setting_of(connection, "synchronous_commit") != "off":
        return None
    return Warning(
        f"PostgreSQL's `synchronous_commit` is off on {connection.alias!r}: a crash of the server loses the last "
        "commits. Jobs that were enqueued are lost, and steps that were done run again.",
        hint=f'Write "options": "-c synchronous_commit=on" in {options_of(connection)}, or run ALTER SYSTEM SET '
        "synchronous_commit = on; SELECT pg_reload_conf();",
        id="gnlqueue.W005",
    )


def no_fsync(connection: BaseDatabaseWrapper) -> Found:
    if setting_of(connection, "fsync") == "on":
        return None
    return Warning(
        f"PostgreSQL's `fsync` is off on {connection.alias!r}: a power cut may destroy the whole database.",
        hint="Run ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();",
        id="gnlqueue.W006",
    )


def no_full_pages(connection: BaseDatabaseWrapper) -> Found:
    if setting_of(connection, "full_page_writes") == "on":
        return None
    return Warning(
        f"PostgreSQL's `full_page_writes` is off on {connection.alias!r}: a power cut may leave pages half written, "
        "which cannot be repaired.",
        hint="Run ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf(); or, where the storage writes whole "
        'pages (ZFS, Amazon Aurora), add "gnlqueue.W007" to SILENCED_SYSTEM_CHECKS.',
        id="gnlqueue.W007",
    )
