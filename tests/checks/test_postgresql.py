"""What PostgreSQL tells."""

from collections.abc import Callable

import pytest

from tests.checks.conftest import Entry, in_database, in_settings, on_postgresql


@on_postgresql
@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
def test_isolation_that_the_project_chose_on_postgresql(alias: str, entry: Entry, level: str) -> None:
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    with entry(alias, OPTIONS={"isolation_level": IsolationLevel[level]}):
        messages = in_settings()
        assert messages.keys() == (set() if level == "READ_COMMITTED" else {"W010"})
        assert all(level.replace("_", " ") in message.msg for message in messages.values())
        assert "W010" not in in_database(alias)  # said once


@on_postgresql
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_isolation_that_comes_from_the_postgresql_server(alias: str, entry: Entry, level: str) -> None:
    option = "-c default_transaction_isolation=" + level.replace(" ", r"\ ")
    with entry(alias, OPTIONS={"options": option}):
        assert in_settings() == {}
        assert ("W010" in in_database(alias)) == (level != "read committed")


@on_postgresql
@pytest.mark.parametrize("value", ["off", "local", "on"])
def test_postgresql_that_does_not_wait_for_its_commits(alias: str, entry: Entry, value: str) -> None:
    with entry(alias, OPTIONS={"options": f"-c synchronous_commit={value}"}):
        assert ("W005" in in_database(alias)) == (value == "off")


@on_postgresql
@pytest.mark.parametrize(("setting", "id"), [("fsync", "W006"), ("full_page_writes", "W007")])
def test_postgresql_that_breaks_at_a_power_cut(
    alias: str, server_says: Callable[..., None], setting: str, id: str
) -> None:
    server_says(**{"fsync": "on", "full_page_writes": "on", setting: "off"})
    assert in_database(alias).keys() - {"W005"} == {id}


@on_postgresql
@pytest.mark.parametrize(("psycopg3", "found"), [(False, {"W011"}), (True, set())])
def test_psycopg2(alias: str, psycopg3: bool, found: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", psycopg3)
    assert in_settings().keys() == found
