"""Checks of SQLite: its locks, its file, its durability."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from django.core.checks import Error, Warning
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue.checks.base import Found, options_of, setting_of

# FULL said aloud: some builds of SQLite turn to NORMAL with WAL, which may lose the last commits at a power cut.
INIT_COMMAND = '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"'


def late_write_lock(connection: BaseDatabaseWrapper) -> Found:
    mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED"
    if mode.upper() != "DEFERRED":
        return None
    return Warning(
        f"Transactions on {connection.alias!r} begin without SQLite's write lock. One that reads and then writes fails "
        'with "database is locked" when somebody else writes meanwhile: at once, whatever the timeout.',
        hint=f'Write "transaction_mode": "IMMEDIATE" in {options_of(connection)}.',
        id="gnlqueue.W001",
    )


def in_memory(connection: BaseDatabaseWrapper) -> Found:
    # "file:memorydb_…" is where Django's test runner puts an SQLite database, whatever the project chose.
    if not is_in_memory(connection) or str(connection.settings_dict["NAME"]).startswith("file:memorydb_"):
        return None
    return Warning(
        f"The queue's database {connection.alias!r} is in the memory of this process: workers, which are other "
        "processes, do not see its jobs, and these are lost when it ends.",
        hint=f'Give DATABASES["{connection.alias}"]["NAME"] the path of a file.',
        id="gnlqueue.W002",
    )


def not_writable(connection: BaseDatabaseWrapper) -> Found:
    if is_in_memory(connection):
        return None
    name = os.fspath(connection.settings_dict["NAME"])
    file = Path(unquote(urlsplit(name).path) if name.startswith("file:") else name).absolute()
    for path in (file, file.parent):
        if os.path.exists(path) and not os.access(path, os.W_OK):
            return Error(
                f"This process may not write {path}. SQLite needs to write the file of {connection.alias!r} and, for "
                "its journal, the directory: nothing could be enqueued or claimed.",
                hint=f"Give the user of the web server and the workers write access to {file} and {file.parent}.",
                id="gnlqueue.E007",
            )
    return None


def no_write_ahead_log(connection: BaseDatabaseWrapper) -> Found:
    if is_in_memory(connection) or (mode := setting_of(connection, "journal_mode")) == "wal":
        return None
    return Warning(
        f"SQLite's journal of {connection.alias!r} is {mode.upper()}, not WAL: readers and writers block each "
        'other, and requests and workers may fail with "database is locked".',
        hint=f"Write {INIT_COMMAND} in {options_of(connection)}. (WAL does not work on a network file system.)",
        id="gnlqueue.W003",
    )


def commits_get_lost(connection: BaseDatabaseWrapper) -> Found:
    level = setting_of(connection, "synchronous")
    if is_in_memory(connection) or level not in ("0", "1"):
        return None
    return Warning(
        f"SQLite's `synchronous` on {connection.alias!r} is {('OFF', 'NORMAL')[int(level)]}: a power cut may lose "
        "the last commits. Jobs that were enqueued are lost, and steps that were done run again.",
        hint=f"Write {INIT_COMMAND} in {options_of(connection)}.",
        id="gnlqueue.W004",
    )


def is_in_memory(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.is_in_memory_db())  # type: ignore[attr-defined]  # only SQLite's connections have it
