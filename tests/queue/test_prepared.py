"""On PostgreSQL a worker's own connection keeps the plan of its claim, and claims also where that is lost."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.db import DataError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from gnlqueue import queue
from gnlqueue.connection import dedicated
from gnlqueue.dialects import prepared
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.candidates import Floor
from gnlqueue.queue.claiming import claim_ready
from tests.queue.conftest import queue_alias


@pytest.fixture
def connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """A connection as a worker has it."""
    if connections[alias].vendor != "postgresql":
        pytest.skip("only PostgreSQL plans a statement apart from running it")
    with dedicated(alias, 5) as connection:
        yield connection


def names(connection: BaseDatabaseWrapper) -> list[str]:
    """The statements that the server keeps for this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return [name for (name,) in cursor.fetchall()]


def plans(connection: BaseDatabaseWrapper, name: str) -> tuple[int, int]:
    """How often a statement was planned for its values, and how often it was run by a plan for any."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE name = %s", [name])
        return cursor.fetchone()


def claim_one(limit: int = 5, beyond: Floor | None = None) -> ClaimedJob:
    """Enqueue a job, and claim it."""
    queue.enqueue("demo")
    (job,) = claim_ready("default", worker_id="w1", lease=60, limit=limit, alias=queue_alias(), beyond=beyond)
    return job


def test_claims_of_any_size_share_one_plan(connection: BaseDatabaseWrapper) -> None:
    for limit in range(1, 12):  # PostgreSQL goes over to a plan for any values after five times
        claim_one(limit)
    assert len(names(connection)) == 1


def test_a_claim_beyond_a_place_is_planned_anew(connection: BaseDatabaseWrapper) -> None:
    job = claim_one()
    assert len(names(connection)) == 1
    claim_one(beyond=(job.priority, job.run_at, job.id))
    assert len(names(connection)) == 1


def test_a_pooler_may_lend_another_connection(connection: BaseDatabaseWrapper) -> None:
    claim_one()
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    claim_one()
    claim_one()
    assert names(connection) == []  # not again and again


def test_a_pooler_may_lend_a_connection_that_knows_the_statement(connection: BaseDatabaseWrapper) -> None:
    claim_one()
    prepared.keep(connection)  # as one that has prepared nothing yet
    claim_one()
    claim_one()
    assert len(names(connection)) == 1


def test_a_connection_that_was_lost_in_what_may_fail_keeps_plans_again(connection: BaseDatabaseWrapper) -> None:
    """Whoever goes on after the error gets a new session from Django, in which nothing is prepared or set."""
    claim_one()
    with suppress(OperationalError), transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    claim_one()
    claim_one()
    assert len(names(connection)) == 1


def test_a_migration_may_change_a_column(connection: BaseDatabaseWrapper) -> None:
    claim_one()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE gnlqueue_job ALTER COLUMN worker_id TYPE varchar(101)")
        try:
            claim_one()
        finally:
            cursor.execute("ALTER TABLE gnlqueue_job ALTER COLUMN worker_id TYPE varchar(100)")
    claim_one()


def test_a_statement_that_was_slow_is_planned_anew(
    connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan for a small table reads a large one from end to end."""
    monkeypatch.setattr(prepared, "SLOW", 60)  # whatever else the machine does
    (name,) = claim_one() and names(connection)
    for _ in range(9):
        claim_one()
    assert sum(plans(connection, name)) == 10
    monkeypatch.setattr(prepared, "PLAN_EVERY", 0.0)
    monkeypatch.setattr(prepared, "SLOW", 0.0)
    claim_one()
    monkeypatch.setattr(prepared, "SLOW", 60)
    claim_one()
    assert names(connection) == [name]
    assert sum(plans(connection, name)) == 1  # its count began anew with the statement


def test_a_slow_network_does_not_make_each_claim_plan_anew(
    connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "SLOW", 0.0)
    monkeypatch.setattr(prepared, "PLAN_EVERY", 60)
    (name,) = claim_one() and names(connection)
    for _ in range(9):
        claim_one()
    assert sum(plans(connection, name)) == 10


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_nothing_is_kept_where_the_server_binds_the_values(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EXECUTE takes no values of the protocol."""
    monkeypatch.setitem(connections[alias].settings_dict["OPTIONS"], "server_side_binding", True)
    with dedicated(alias, 5) as connection:
        claim_one()
        assert names(connection) == []


def test_in_a_transaction_and_on_other_connections_nothing_is_kept(alias: str, connection: BaseDatabaseWrapper) -> None:
    with transaction.atomic(using=alias):
        claim_one()
    assert names(connection) == []


def test_an_ordinary_connection_keeps_nothing(alias: str) -> None:
    if connections[alias].vendor != "postgresql":
        pytest.skip("only PostgreSQL plans a statement apart from running it")
    claim_one()
    assert names(connections[alias]) == []


def test_an_error_of_the_statement_itself_is_raised(connection: BaseDatabaseWrapper) -> None:
    with connection.cursor() as cursor, pytest.raises(DataError):
        prepared.execute(cursor, "SELECT 1 / %s::int", [0])
