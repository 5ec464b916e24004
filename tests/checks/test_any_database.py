"""What more than one kind of database tells."""

from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections

from gnlqueue.checks import any_database, sqlite
from gnlqueue.models import Job
from tests.checks.conftest import Entry, in_database, in_settings, on_mysql, on_sqlite


class Router:
    """Sends jobs to `alias`, or lets nobody create their tables."""

    def __init__(self, alias: str | None = None, migrate: bool | None = None) -> None:
        self.alias, self.migrate = alias, migrate

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return self.alias if model is Job else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return self.migrate if app_label == "gnlqueue" else None


def test_an_unsupported_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert "'oracle'" in in_settings()["E003"].msg
    assert in_database("default") == {}


def test_a_router_that_names_no_database(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Router(alias="jobs")]
    assert "'jobs', which is not in DATABASES" in in_settings()["E003"].msg
    assert in_database("jobs") == {}


def test_a_router_that_forbids_the_tables(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Router(migrate=False)]
    assert in_settings().keys() == {"W015"}
    settings.DATABASE_ROUTERS = [Router(migrate=True)]
    assert in_settings() == {}


def test_a_database_without_autocommit(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections[alias].settings_dict, "AUTOCOMMIT", False)
    assert in_settings().keys() == {"E012"}


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Rome"])
def test_local_times_in_the_database(alias: str, entry: Entry, zone: str | None) -> None:
    with entry(alias, TIME_ZONE=zone) as connection:
        harmful = zone == "Europe/Rome" and connection.vendor != "postgresql"  # which knows what zone it is told
        assert in_settings().keys() == ({"E004"} if harmful else set())


def test_an_old_database(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connections[alias]
    old, floor = {"sqlite": ((3, 34, 1), "3.35"), "postgresql": ((13, 20), "14"), "mysql": ((5, 7, 44), "")}[
        connection.vendor
    ]
    monkeypatch.setattr(connection, "get_database_version", lambda: old)
    message = (in_settings() | in_database(alias))["E005"]
    assert f"{connection.display_name} {'.'.join(map(str, old))} " in message.msg
    assert f"Upgrade to {connection.display_name} {floor}" in message.hint


@on_mysql
@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("MariaDB", (10, 10, 7), True),
        ("MariaDB", (10, 11, 0), False),
        ("MySQL", (5, 7, 44), True),
        ("MySQL", (8, 0, 11), False),
    ],
)
def test_mysql_and_mariadb_count_differently(
    alias: str, name: str, version: tuple[int, ...], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connections[alias]
    monkeypatch.setattr(connection, "display_name", name)
    monkeypatch.setattr(connection, "get_database_version", lambda: version)
    assert (any_database.too_old(connection) is not None) == found


def test_a_database_that_cannot_be_asked(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def down() -> None:
        raise OperationalError("the server has gone fishing")

    connections[alias].close()
    with monkeypatch.context() as patch:
        patch.setattr(connections[alias], "connect", down)
        assert "gone fishing" in in_database(alias)["E009"].msg


@on_sqlite
def test_trouble_whose_cause_was_named_is_not_reported_again(
    alias: str, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing" / "db.sqlite3"
    monkeypatch.setattr(sqlite.os.path, "exists", lambda path: path == missing)
    with entry(alias, NAME=missing):
        assert in_database(alias).keys() == {"E007"}
