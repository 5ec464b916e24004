"""What the checks found, and databases that are set otherwise."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue import checks
from gnlqueue.checks import mysql, postgresql

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
