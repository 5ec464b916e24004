"""What SQLite tells."""

import os
import re
import sqlite3
from pathlib import Path

import pytest
from django.db import connections

from gnlqueue.checks import sqlite
from tests.checks.conftest import Entry, in_database, in_settings, on_sqlite


@pytest.mark.parametrize(
    ("mode", "found"),
    [(None, {"W001"}), ("deferred", {"W001"}), ("IMMEDIATE", set()), ("immediate", set()), ("EXCLUSIVE", set())],
)
def test_transactions_without_the_write_lock(entry: Entry, mode: str | None, found: set[str]) -> None:
    with entry("default", OPTIONS={"transaction_mode": mode}):
        assert in_settings().keys() == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (":memory:", {"W002"}),
        ("file:mine?mode=memory&cache=shared", {"W002"}),
        ("file:memorydb_default?mode=memory&cache=shared", set()),  # Django's test runner chose that
    ],
)
@on_sqlite
def test_a_database_in_memory(alias: str, name: str, found: set[str]) -> None:
    # On a copy, because Django does not close a connection to memory.
    real = connections[alias]
    connections[alias] = connection = real.copy()
    connection.settings_dict.update(NAME=name, OPTIONS={"transaction_mode": "IMMEDIATE"})
    try:
        assert in_settings().keys() == found
        assert in_database(alias) == {}  # neither WAL nor a durable commit is asked of memory
    finally:
        connections[alias] = real
        if connection.connection is not None:
            connection.connection.close()


@on_sqlite
@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ("PRAGMA synchronous=FULL", {"W003"}),
        ("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;", set()),
        ("PRAGMA journal_mode=WAL; PRAGMA synchronous=EXTRA;", set()),
        ("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;", {"W004"}),
        ("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;", {"W004"}),
        ("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF;", {"W003", "W004"}),
    ],
)
def test_sqlites_journal_and_durability(
    alias: str, commands: str, found: set[str], entry: Entry, tmp_path: Path
) -> None:
    with entry(alias, NAME=tmp_path / "db.sqlite3", OPTIONS={"init_command": commands}):
        assert in_database(alias).keys() == found


@on_sqlite
def test_what_the_hint_says_is_enough(alias: str, entry: Entry, tmp_path: Path) -> None:
    with entry(alias, NAME=tmp_path / "db.sqlite3", OPTIONS={"init_command": ""}):
        written = re.search(r'Write "init_command": "(.*?)"', in_database(alias)["W003"].hint)
    assert written
    with entry(alias, NAME=tmp_path / "db.sqlite3", OPTIONS={"init_command": written[1]}):
        assert in_database(alias) == {}


@on_sqlite
@pytest.mark.parametrize("refused", ["db.sqlite3", "."])
@pytest.mark.parametrize("uri", [False, True])
def test_a_file_that_cannot_be_written(
    alias: str, refused: str, uri: bool, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "with space" / "db.sqlite3"
    file.parent.mkdir()
    sqlite3.connect(file).close()
    file.touch()
    with entry(alias, NAME=file.as_uri() if uri else str(file)):
        assert in_database(alias) == {}
        # Asked of the system, not tried with chmod: tests may run as root, who may write everywhere.
        unwritable = file.parent / refused
        monkeypatch.setattr(sqlite.os, "access", lambda path, mode: Path(path) != unwritable)
        message = in_database(alias)["E007"]
    assert f"may not write {unwritable}." in message.msg


@on_sqlite
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_really_cannot_be_written(alias: str, entry: Entry, tmp_path: Path) -> None:
    file = tmp_path / "db.sqlite3"
    file.touch()
    tmp_path.chmod(0o500)
    try:
        with entry(alias, NAME=file):
            assert in_database(alias).keys() == {"E007"}  # and not that it cannot be opened, which follows
    finally:
        tmp_path.chmod(0o700)


@on_sqlite
def test_a_directory_that_does_not_exist(alias: str, entry: Entry, tmp_path: Path) -> None:
    with entry(alias, NAME=tmp_path / "missing" / "db.sqlite3"):
        assert in_database(alias).keys() == {"E009"}
