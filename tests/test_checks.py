"""Each check finds what it is for, and a project that is set up well hears nothing."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.checks import CheckMessage
from django.core.checks.registry import registry
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue import checks, conf
from gnlqueue.checks import any_database, mysql, postgresql, project, sqlite
from gnlqueue.models import Job

Entry = Callable[..., AbstractContextManager[BaseDatabaseWrapper]]

on_sqlite, on_postgresql, on_mysql = (
    pytest.mark.parametrize("alias", [name], indirect=True) for name in ("sqlite", "postgresql", "mysql")
)

# What these ids are about belongs to the server, which a developer may well run faster and less safely.
SERVERS_OWN = {"W005", "W006", "W007", "W008", "W009"}


def by_id(messages: list[CheckMessage]) -> dict[str, CheckMessage]:
    found = {message.id.removeprefix("gnlqueue."): message for message in messages}
    assert len(found) == len(messages), "one cause, two messages"
    for id, message in found.items():
        assert message.hint
        assert message.is_serious() == id.startswith("E")
    return found


def in_settings() -> dict[str, CheckMessage]:
    return by_id(checks.check_settings(None))


def in_database(alias: str) -> dict[str, CheckMessage]:
    return by_id(checks.check_database(None, databases=[alias]))


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Entry:
    """``with entry(alias, TIME_ZONE=…, OPTIONS={…}) as connection:`` DATABASES says something else.

    What OPTIONS says besides stays; the connection is made anew with all of it.
    """

    @contextmanager
    def changed(alias: str, **values: Any) -> Iterator[BaseDatabaseWrapper]:
        connection = connections[alias]
        values["OPTIONS"] = {**connection.settings_dict["OPTIONS"], **values.get("OPTIONS", {})}
        connection.close()
        with monkeypatch.context() as patch:
            for key, value in values.items():
                patch.setitem(connection.settings_dict, key, value)
            yield connection
        connection.close()

    return changed


@pytest.fixture
def server_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``server_says(fsync="off")``: for settings that cannot be changed for one connection only."""
    real = postgresql.setting_of

    def answers(**settings: str) -> None:
        for module in (mysql, postgresql):
            monkeypatch.setattr(module, "setting_of", lambda of, name: settings.get(name) or real(of, name))

    return answers


# ------------------------------------------------------------------------------------------------------- all is well


def test_a_well_configured_project_hears_nothing(alias: str) -> None:
    assert in_settings() == {}
    assert in_database(alias).keys() - SERVERS_OWN == set()


@on_postgresql
def test_a_safe_postgresql_server_is_not_mentioned(alias: str, server_says: Callable[..., None]) -> None:
    server_says(synchronous_commit="remote_apply", fsync="on", full_page_writes="on")
    assert in_database(alias) == {}


@on_mysql
@pytest.mark.parametrize(
    ("flush", "log_bin", "sync_binlog"), [("1", "0", "0"), ("1", "1", "1"), ("3", "0", "0"), ("3", "1", "0")]
)
def test_a_safe_mysql_server_is_not_mentioned(
    alias: str, server_says: Callable[..., None], flush: str, log_bin: str, sync_binlog: str
) -> None:
    server_says(innodb_flush_log_at_trx_commit=flush, log_bin=log_bin, sync_binlog=sync_binlog)
    assert in_database(alias) == {}


def test_the_table_lists_every_id_once_and_no_other() -> None:
    listed = re.findall(r"^gnlqueue\.([EW]\d{3}) ", checks.__doc__ or "", re.MULTILINE)
    package = Path(checks.__file__ or "").parents[1]
    sources = "".join(file.read_text() for file in package.rglob("*.py"))
    assert listed == sorted(set(re.findall(r'id="gnlqueue\.([EW]\d{3})"', sources)))
    tests = Path(__file__).read_text() + Path(__file__).with_name("test_backends.py").read_text()
    assert [id for id in listed if f'{id}"' not in tests] == []


# -------------------------------------------------------------------------------- through Django: which checks run when


def test_check_runs_them_without_a_database(settings: Any) -> None:
    settings.USE_TZ = False
    with pytest.raises(SystemCheckError, match=re.escape("gnlqueue.E002")):
        call_command("check")
    with pytest.raises(SystemCheckError, match=re.escape("gnlqueue.E002")):
        call_command("check", tags=["gnlqueue"])


@on_sqlite
def test_check_database_and_migrate_ask_the_database(
    alias: str, entry: Entry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with entry(alias, NAME=tmp_path / "new.sqlite3", OPTIONS={"init_command": ""}):
        call_command("check", databases=[alias])
        assert "gnlqueue.W003" in capsys.readouterr().err
        call_command("migrate", database=alias, skip_checks=False, verbosity=0)
        assert "gnlqueue.W003" in capsys.readouterr().err
        assert not Job.objects.using(alias).exists()


def test_only_the_queues_database_is_asked(settings: Any) -> None:
    # pytest-django would refuse a connection.
    settings.GNLQUEUE = {"DATABASE": "default"}
    assert checks.check_database(None, databases=None) == []
    assert checks.check_database(None, databases=["another"]) == []


def test_a_silenced_id_is_not_reported(settings: Any) -> None:
    settings.USE_TZ = False
    settings.SILENCED_SYSTEM_CHECKS = ["gnlqueue.E002"]
    call_command("check", tags=["gnlqueue"])


# ------------------------------------------------------------------------------------------------------- the project


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"LEASE": 1}, "'LEASE'"),
        ({"MAX_ATTEMPTS": 0}, "MAX_ATTEMPTS"),
        ({"DATABASE": "postgres"}, "'postgres'"),
        ([], "dict"),
    ],
)
def test_wrong_settings(given: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # no signal: as if the project had been started so
        patch.setattr(django_settings, "GNLQUEUE", given)
        conf.settings.cache_clear()
        assert says in in_settings()["E001"].msg
        assert in_database("default") == {}
    conf.settings.cache_clear()


@on_sqlite
def test_a_project_with_wrong_settings_starts_far_enough_to_hear_so(alias: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "django", "check"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "GNLQUEUE_TEST_ALIAS": "nowhere"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert "(gnlqueue.E001) GNLQUEUE['DATABASE'] is 'nowhere'" in process.stderr
    assert "Traceback" not in process.stderr


def test_no_time_zones(settings: Any) -> None:
    settings.USE_TZ = False
    assert in_settings().keys() == {"E002"}


def test_listening_on_another_database_than_postgresql(settings: Any) -> None:
    settings.GNLQUEUE = {"LISTEN_DATABASE": "default"}
    assert in_settings().keys() == {"E006"}


@on_postgresql
def test_listening_on_postgresql(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {"DATABASE": alias, "LISTEN_DATABASE": alias}
    assert in_settings() == {}


@pytest.mark.parametrize(("lease", "found"), [(1, {"W012"}), (2.9, {"W012"}), (3, set()), (60, set())])
def test_a_short_lease(settings: Any, lease: float, found: set[str]) -> None:
    settings.GNLQUEUE = {"LEASE_SECONDS": lease}
    assert in_settings().keys() == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["card"], set()),
        (str.isupper, set()),
        ("fnmatch.fnmatch", set()),
        ("shop.nowhere.hide", {"E010"}),
        ("string.ascii_letters", {"E010"}),
    ],
)
def test_a_function_that_hides_values(settings: Any, given: Any, found: set[str]) -> None:
    settings.GNLQUEUE = {"REDACT": given}
    assert in_settings().keys() == found


def test_the_admin_without_its_date_filters(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "rangefilter"]
    assert in_settings().keys() == {"W013"}
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django.contrib.admin"]
    assert in_settings() == {}


@pytest.mark.parametrize(
    ("commands", "found"),
    [({"runworker": "channels"}, {"W014"}), ({"runworker": "gnlqueue"}, set()), ({}, set())],
)
def test_another_apps_runworker(monkeypatch: pytest.MonkeyPatch, commands: dict[str, str], found: set[str]) -> None:
    monkeypatch.setattr(project, "get_commands", lambda: commands)
    messages = in_settings()
    assert messages.keys() == found
    assert all('put "gnlqueue" before "channels"' in message.hint for message in messages.values())


def test_jobs_that_run_in_the_request_are_not_for_deployment(settings: Any) -> None:
    settings.GNLQUEUE = {"INLINE": True}
    assert in_settings() == {}
    assert by_id(checks.check_deployment(None)).keys() == {"W016"}
    settings.GNLQUEUE = {"INLINE": False}
    assert checks.check_deployment(None) == []
    assert checks.check_deployment in registry.deployment_checks


# ------------------------------------------------------------------------------------------------------ any database


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


# --------------------------------------------------------------------------------------------------------- isolation


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


# ------------------------------------------------------------------------------------------------------------ SQLite


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


# -------------------------------------------------------------------------------------------------------- PostgreSQL


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


# ---------------------------------------------------------------------------------------------------- MySQL, MariaDB


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
