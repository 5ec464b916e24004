"""A worker's own connection is what the queue needs, whatever the project's is; and what is said where it is away."""

import pytest
from django.db import connections

from gnlqueue import connection
from gnlqueue.connection import Outage, dedicated, prepare
from gnlqueue.models import JobStatus
from tests.app import tasks
from tests.worker.conftest import drain, row

ISOLATION = {"postgresql": "SHOW transaction_isolation", "mysql": "SHOW VARIABLES LIKE 't%%_isolation'"}


def test_outcomes_are_committed_where_the_project_does_that_by_hand(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tasks.nothing.enqueue()
    with monkeypatch.context() as patch:
        patch.setitem(connections[alias].settings_dict, "AUTOCOMMIT", False)
        drain()

    assert row(job).status == JobStatus.DONE


@pytest.mark.parametrize("alias", ["postgresql", "mysql"], indirect=True)
def test_it_is_read_committed_outside_transactions_too(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = connections[alias].settings_dict["OPTIONS"]
    if alias == "postgresql":
        monkeypatch.setitem(options, "options", r"-c default_transaction_isolation=repeatable\ read")
    else:
        monkeypatch.setitem(options, "isolation_level", None)  # the server's, which is REPEATABLE READ by default

    with dedicated(alias, 5) as own, own.cursor() as cursor:
        cursor.execute(ISOLATION[own.vendor])
        assert cursor.fetchone()[-1].lower().replace("-", " ") == "read committed"


def test_what_connections_share_is_made_without_connecting(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connections[alias].close()

    prepare(alias)
    with monkeypatch.context() as patch:
        patch.setitem(connections[alias].settings_dict, "NAME", "")
        patch.setitem(connections[alias].settings_dict, "PORT", "no number")
        prepare(alias)  # wrong settings are told by who connects

    assert connections[alias].connection is None


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_how_types_are_read_and_written_is_made_for_all_connections_to_postgresql(alias: str) -> None:
    psycopg_any = pytest.importorskip("django.db.backends.postgresql.psycopg_any")
    if not psycopg_any.is_psycopg3:
        pytest.skip("psycopg 2 has no such thing")
    psycopg_any.get_adapters_template.cache_clear()

    prepare(alias)
    made = psycopg_any.get_adapters_template.cache_info().misses
    with dedicated(alias, 5) as own:
        own.ensure_connection()

    assert (made, psycopg_any.get_adapters_template.cache_info().misses) == (1, 1)


def test_an_outage_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = [1000.0]
    monkeypatch.setattr(connection.time, "monotonic", lambda: clock[0])
    outage = Outage("billing", 20)

    for clock[0] in (1000.0, 1005.0, 1059.0, 1061.0, 1062.0, 1121.5):
        assert 0 < outage.pause(OSError("no route\n")) <= 5
    outage.over()
    outage.over()
    outage.pause(OSError("refused"))

    assert caplog.messages == [
        "The database 'billing' cannot be reached; retrying: no route",
        "The database 'billing' has been unreachable for 61 s; retrying: no route",
        "The database 'billing' has been unreachable for 122 s; retrying: no route",
        "The database 'billing' is back after 121.5 s.",
        "The database 'billing' cannot be reached; retrying: refused",
    ]
