"""What the project's settings tell."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.checks.registry import registry

from gnlqueue import checks, conf
from gnlqueue.checks import project
from tests.checks.conftest import by_id, in_database, in_settings, on_postgresql, on_sqlite


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
        cwd=Path(__file__).parents[2],
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
