"""Checks of MySQL and MariaDB: the storage engine, the character set, and settings that give up commits."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.checks import Error, Warning
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.checks import any_database
from gnlqueue.checks.base import Found, options_of, setting_of

DJANGOS_ISOLATION = "read committed"  # unless OPTIONS say something else; None there means the server's


def strict_isolation(connection: BaseDatabaseWrapper) -> Found:
    """Find a level that the project chose."""
    level = connection.settings_dict["OPTIONS"].get("isolation_level", DJANGOS_ISOLATION)
    return _strict_isolation(connection, level) if level else None


def strict_isolation_by_default(connection: BaseDatabaseWrapper) -> Found:
    """Find a level that comes from the server, as the project wants no other."""
    if connection.settings_dict["OPTIONS"].get("isolation_level", DJANGOS_ISOLATION):
        return None
    variable = "tx_isolation" if connection.display_name == "MariaDB" else "transaction_isolation"
    return _strict_isolation(connection, setting_of(connection, variable))


def _strict_isolation(connection: BaseDatabaseWrapper, level: str) -> Found:
    return any_database.strict_isolation(
        connection,
        level,
        harm="the gap locks of a claim keep everybody else from enqueueing",
        write=f'"{DJANGOS_ISOLATION}"',
    )


def other_engine(connection: BaseDatabaseWrapper) -> Found:
    engines = dict(_of_tables(connection, "table_name, engine", "tables"))
    # Before the first migration, what counts is what it would create.
    if not engines and (default := setting_of(connection, "default_storage_engine")) != "innodb":
        what = f"they would be {default}"
        do = f'Write "init_command": "SET default_storage_engine=InnoDB" in {options_of(connection)}.'
    elif wrong := {table: engine for table, engine in engines.items() if str(engine).lower() != "innodb"}:
        what = ", ".join(f"{table} is {engine}" for table, engine in wrong.items())
        do = "Run " + " ".join(f"ALTER TABLE {table} ENGINE=InnoDB;" for table in wrong)
    else:
        return None
    return Error(
        f"The queue's tables on {connection.alias!r} are not all InnoDB ({what}). Without transactions and row locks "
        "two workers may hold one job, and a crash may lose jobs.",
        hint=do,
        id="gnlqueue.E008",
    )


def _of_tables(connection: BaseDatabaseWrapper, columns: str, view: str) -> list[tuple[str, Any]]:
    """Return what a view of the information schema says of those of the queue's tables that exist."""
    tables = [model._meta.db_table for model in apps.get_app_config("gnlqueue").get_models()]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT DISTINCT {columns} FROM information_schema.{view} WHERE table_schema = DATABASE()"
            f" AND table_name IN ({', '.join(['%s'] * len(tables))}) ORDER BY 1",
            tables,
        )
        return list(cursor.fetchall())


def other_character_set(connection: BaseDatabaseWrapper) -> Found:
    sets = [
        (table, name) for table, name in _of_tables(connection, "table_name, character_set_name", "columns") if name
    ]
    # Before the first migration, what counts is what it would create.
    if not sets and (default := setting_of(connection, "character_set_database")) != "utf8mb4":
        what = f"they would be {default}"
        do = f"ALTER DATABASE {connection.ops.quote_name(connection.settings_dict['NAME'])} CHARACTER SET utf8mb4;"
    elif wrong := {table: name for table, name in sets if name != "utf8mb4"}:
        what = ", ".join(f"{table} is {name}" for table, name in wrong.items())
        do = " ".join(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4;" for table in wrong)
    else:
        return None
    return Warning(
        f"The queue's tables on {connection.alias!r} are not all utf8mb4 ({what}). They cannot store every character: "
        "an error whose text has an emoji, say, is recorded without its text.",
        hint=f"Run {do}",
        id="gnlqueue.W017",
    )


def commits_get_lost(connection: BaseDatabaseWrapper) -> Found:
    value = setting_of(connection, "innodb_flush_log_at_trx_commit")
    if value not in ("0", "2"):  # 3, on MariaDB, is the older way to do what 1 does
        return None
    return Warning(
        f"`innodb_flush_log_at_trx_commit` of {connection.alias!r} is {value}: a crash loses the last second of "
        "commits. Jobs that were enqueued are lost, and steps that were done run again.",
        hint=_server_option("innodb_flush_log_at_trx_commit"),
        id="gnlqueue.W008",
    )


def commits_get_lost_with_binlog(connection: BaseDatabaseWrapper) -> Found:
    if setting_of(connection, "log_bin") != "1" or (value := setting_of(connection, "sync_binlog")) == "1":
        return None
    if setting_of(connection, "innodb_flush_log_at_trx_commit") == "3":
        return None  # MariaDB then recovers from InnoDB's own log
    return Warning(
        f"`sync_binlog` of {connection.alias!r} is {value} while the binary log is on: after a power cut the server "
        "undoes commits that the binary log does not have. Jobs that were enqueued are lost, and steps that were done "
        "run again.",
        hint=_server_option("sync_binlog"),
        id="gnlqueue.W009",
    )


def _server_option(name: str) -> str:
    return f"Write {name} = 1 under [mysqld] in the server's configuration; SET GLOBAL {name} = 1 does it at once."
