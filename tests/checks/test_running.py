"""Which checks run when; a project that is set up well hears nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from gnlqueue import checks
from gnlqueue.models import Job
from tests.checks.conftest import SERVERS_OWN, Entry, in_database, in_settings, on_mysql, on_postgresql, on_sqlite


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
    files = [*Path(__file__).parent.glob("test_*.py"), Path(__file__).parents[1] / "backends" / "test_setup.py"]
    tests = "".join(file.read_text() for file in files)
    assert [id for id in listed if f'{id}"' not in tests] == []


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
