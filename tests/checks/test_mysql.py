"""What MySQL and MariaDB tell."""

import re
from collections.abc import Callable

import pytest
from django.db import connections

from gnlqueue.checks import mysql
from tests.checks.conftest import Entry, in_database, in_settings, on_mysql


@on_mysql
@pytest.mark.parametrize("level", ["Read committed", "Repeatable read", "SERIALIZABLE"])
def test_isolation_that_the_project_chose_on_mysql(alias: str, entry: Entry, level: str) -> None:
    with entry(alias, OPTIONS={"isolation_level": level}):
        assert in_settings().keys() == (set() if level == "Read committed" else {"W010"})
        assert "W010" not in in_database(alias)


@on_mysql
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_isolation_that_comes_from_the_mysql_server(alias: str, entry: Entry, level: str) -> None:
    # None leaves what the server says; here its answer is set for the session, which is what counts.
    command = f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"
    with entry(alias, OPTIONS={"isolation_level": None, "init_command": command}):
        assert in_settings() == {}
        assert ("W010" in in_database(alias)) == (level != "READ COMMITTED")


@on_mysql
@pytest.mark.parametrize("value", ["0", "2"])
def test_mysql_that_does_not_flush_its_commits(alias: str, server_says: Callable[..., None], value: str) -> None:
    server_says(innodb_flush_log_at_trx_commit=value, log_bin="0")
    assert in_database(alias).keys() == {"W008"}


@on_mysql
@pytest.mark.parametrize("value", ["0", "100"])
def test_mysql_that_does_not_flush_its_binary_log(alias: str, server_says: Callable[..., None], value: str) -> None:
    server_says(innodb_flush_log_at_trx_commit="1", log_bin="1", sync_binlog=value)
    assert in_database(alias).keys() == {"W009"}


@on_mysql
def test_a_table_of_another_engine(alias: str, server_says: Callable[..., None]) -> None:
    server_says(innodb_flush_log_at_trx_commit="1", log_bin="0")
    table = "gnlqueue_queuestate"
    with connections[alias].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ENGINE=MyISAM")
        try:
            message = in_database(alias)["E008"]
        finally:
            written = re.search(r"ALTER TABLE .*;", message.hint)
            cursor.execute(written[0] if written else f"ALTER TABLE {table} ENGINE=InnoDB")
    assert f"{table} is MyISAM" in message.msg
    assert in_database(alias) == {}


@on_mysql
def test_tables_that_would_be_of_another_engine(
    alias: str, entry: Entry, server_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    server_says(innodb_flush_log_at_trx_commit="1", log_bin="0")
    monkeypatch.setattr(mysql, "_of_tables", lambda *_: [])  # not migrated yet
    assert in_database(alias) == {}
    with entry(alias, OPTIONS={"init_command": "SET default_storage_engine=MyISAM"}):
        assert "would be myisam" in in_database(alias)["E008"].msg


@on_mysql
def test_a_table_of_another_character_set(alias: str, server_says: Callable[..., None]) -> None:
    server_says(innodb_flush_log_at_trx_commit="1", log_bin="0")
    table = "gnlqueue_queuestate"
    with connections[alias].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET latin1")
        try:
            message = in_database(alias)["W017"]
        finally:
            cursor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4")
    assert f"({table} is latin1)" in message.msg
    assert message.hint == f"Run ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4;"
    assert in_database(alias) == {}


@on_mysql
def test_tables_that_would_be_of_another_character_set(
    alias: str, server_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "_of_tables", lambda *_: [])  # not migrated yet
    server_says(innodb_flush_log_at_trx_commit="1", log_bin="0", character_set_database="utf8mb3")
    message = in_database(alias)["W017"]
    assert "(they would be utf8mb3)" in message.msg
    assert "CHARACTER SET utf8mb4;" in message.hint
