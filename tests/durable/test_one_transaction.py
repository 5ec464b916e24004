"""What an `atomic_step` does in its transaction, in which order, and what would break it and is refused there."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction

from gnlqueue import JobContext, StepFailed
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.app.models import Note
from tests.durable.conftest import attempt, entries, on_sqlite

Play = Callable[..., Job]


@contextmanager
def statements(alias: str) -> Iterator[list[str]]:
    """What is sent to the database in the block: each statement's verb, and which of our tables it is about."""
    sent: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        tables = {"runjournalentry": "journal", "gnlqueue_job": "job", "testapp_note": "effect"}
        about = [name for table, name in tables.items() if table in sql]
        locks = " FOR UPDATE" if "FOR UPDATE" in sql else ""
        sent.extend(f"{sql.split()[0]}{locks} {name}" for name in about[:1])
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(note):
        yield sent


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_the_guard_is_its_last_statement_and_above_read_committed_its_first_too(
    alias: str, play: Play, level: str
) -> None:
    if alias == "default" and level != "READ COMMITTED":
        pytest.skip("SQLite has one writer at a time, and no such level")
    sent: list[list[str]] = []

    def reserve() -> None:
        Note.objects.using(alias).create(text="reserved")

    def handler(context: JobContext) -> None:
        context.step("warm up", lambda: None)
        set_level(alias, level)
        with statements(alias) as each:
            context.atomic_step("reserve", reserve)
        sent.append(each)

    assert attempt(play(handler)).status == JobStatus.DONE
    connections[alias].close()  # forgets the level
    looks, *in_transaction = sent[0]
    assert looks == "SELECT job"
    first = ["SELECT FOR UPDATE job"] if level != "READ COMMITTED" else []
    assert in_transaction == [*first, "INSERT journal", "INSERT effect", "UPDATE journal", "UPDATE job"]


def set_level(alias: str, level: str) -> None:
    """Let what follows on this connection run at this isolation level."""
    connection = connections[alias]
    levels = {
        "postgresql": f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}",
        "mysql": f"SET SESSION TRANSACTION ISOLATION LEVEL {level}",
    }
    if alias in levels:
        with connection.cursor() as cursor:
            cursor.execute(levels[alias])
    if alias == "mysql":
        connection.isolation_level = level.lower()  # what the dialect goes by


@on_sqlite
def test_it_takes_the_right_to_write_at_once(alias: str, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that reads first, and whose settings say nothing, could not write any more if others have."""
    begun: list[str] = []

    def handler(context: JobContext) -> None:
        monkeypatch.setattr(connections[alias], "transaction_mode", None)
        connections[alias].connection.set_trace_callback(begun.append)
        context.atomic_step("reserve", lambda: Note.objects.using(alias).count())
        connections[alias].connection.set_trace_callback(None)

    assert attempt(play(handler)).status == JobStatus.DONE
    assert [each for each in begun if each.startswith("BEGIN")] == ["BEGIN IMMEDIATE"]


def test_what_the_server_rolls_back_beneath_the_function_is_not_recorded_as_done(alias: str, play: Play) -> None:
    """As it does on a deadlock: Django knows nothing of it, and what follows looks like one transaction."""

    def reserve(context: JobContext) -> str:
        Note.objects.using(alias).create(text="reserved")
        if context.attempt == 1:
            connections[alias].connection.cursor().execute("ROLLBACK")  # the driver's own: Django's is refused
        return "reserved"

    job = play(lambda context: context.atomic_step("reserve", lambda: reserve(context)))
    failed = attempt(job)
    assert failed.status == JobStatus.SCHEDULED
    assert "rolled back while its function ran" in (failed.last_error or "")
    assert (Note.objects.using(alias).count(), entries(job).count()) == (0, 0)
    assert attempt(job).result == "reserved"
    assert Note.objects.using(alias).count() == 1


def test_hooks_of_on_commit_run_once_the_step_is_committed_and_never_again(alias: str, play: Play) -> None:
    stored: list[list[str]] = []

    def handler(context: JobContext) -> None:
        def reserve() -> None:
            transaction.on_commit(hook, using=alias)
            if context.attempt == 1:
                raise OSError("no")

        def hook() -> None:
            stored.append([each.status for each in entries(job)])

        context.atomic_step("reserve", reserve)
        if context.attempt == 2:
            raise OSError("crash")

    job = play(handler, max_attempts=5)
    for _ in range(3):
        ended = attempt(job)
    assert ended.status == JobStatus.DONE
    assert stored == [[EntryStatus.DONE]]


# --- what commits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "end",
        "Begin",
        "rollback",
        "ROLLBACK /* not to a savepoint */",
        "/* by a */ /* tool */ -- with notes\n START  TRANSACTION",
    ],
    ids=repr,
)
def test_what_ends_the_transaction_is_refused(alias: str, play: Play, statement: str) -> None:
    refuse(alias, play, statement)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["SQL", "Composed", "bytes"])
def test_also_where_the_driver_composes_the_statement(alias: str, play: Play, how: str) -> None:
    sql = pytest.importorskip("psycopg.sql")
    composed = {"SQL": sql.SQL("COMMIT"), "Composed": sql.SQL("{} WORK").format(sql.SQL("COMMIT")), "bytes": b"COMMIT"}
    refuse(alias, play, composed[how])


@on_sqlite
def test_a_composed_statement_on_another_alias_is_known_for_what_it_is(alias: str, play: Play) -> None:
    if "postgresql" not in connections:
        pytest.skip("there is no such server")
    sql = pytest.importorskip("psycopg.sql")
    notes = sql.Identifier("testapp_note")

    def ask(statement: str) -> Any:
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(sql.SQL(statement).format(notes))
            return cursor.fetchone()

    def handler(context: JobContext) -> Any:
        with pytest.raises(StepFailed, match="writes to 'postgresql'"):
            context.atomic_step("write", ask, "UPDATE {} SET text = 'x'")
        return context.atomic_step("read", ask, "SELECT count(*) FROM {}")

    assert attempt(play(handler)).result == [0]


def refuse(alias: str, play: Play, statement: Any, *, swallowed: bool = False) -> None:
    """After it a failure would roll back only the rest, so that the next attempt does the first half once more."""

    def reserve() -> None:
        Note.objects.using(alias).create(text="the first half")
        with contextlib.suppress(RuntimeError if swallowed else ()), connections[alias].cursor() as cursor:
            cursor.execute(statement)
        raise OSError("crash")

    job = play(lambda context: context.atomic_step("reserve", reserve), max_attempts=1)
    dead = attempt(job)
    assert dead.status == JobStatus.DEAD
    assert ("OSError: crash" if swallowed else "begins or ends a transaction") in (dead.last_error or "")
    assert (Note.objects.using(alias).count(), entries(job).count()) == (0, 0)
    assert "made_by_a_step" not in connections[alias].introspection.table_names()


#: What MySQL commits with: the function's writes until then, and the record that its step has begun.
COMMITS = [
    "CREATE TABLE made_by_a_step (id integer)",
    "  alter table testapp_note add column made_by_a_step integer",
    "TRUNCATE TABLE testapp_note",
    "ANALYZE LOCAL TABLE testapp_note",
    "/*!40000 CREATE TABLE made_by_a_step (id integer) */",
    "/*M! CREATE TABLE made_by_a_step (id integer) */",
    "# TEMPORARY\n/* TEMPORARY */ CREATE /* TEMPORARY */ TABLE made_by_a_step (id integer)",
    "set  autocommit=1",
    "SET SESSION autocommit = 1",
    "SET @@autocommit = 1",
    "SET NAMES utf8mb4, @@session.autocommit = 1",
]


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
@pytest.mark.parametrize("statement", COMMITS, ids=repr)
def test_what_would_commit_half_of_it_is_refused(alias: str, play: Play, statement: str) -> None:
    refuse(alias, play, statement)


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
def test_a_function_that_swallows_the_refusal_has_committed_nothing(alias: str, play: Play) -> None:
    refuse(alias, play, COMMITS[0], swallowed=True)


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
def test_a_temporary_table_commits_nothing_and_is_not_refused(alias: str, play: Play) -> None:
    def reserve() -> None:
        Note.objects.using(alias).create(text="reserved")
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE made_by_a_step (id integer)")
            cursor.execute("/*!40000 create or replace  temporary table made_by_a_step (id integer) */")
            cursor.execute("DROP TEMPORARY TABLE made_by_a_step")
        if Note.objects.using(alias).count() == 1:
            raise OSError("crash")

    job = play(lambda context: context.atomic_step("reserve", reserve), max_attempts=1)
    assert "OSError: crash" in (attempt(job).last_error or "")
    assert (Note.objects.using(alias).count(), entries(job).count()) == (0, 0)


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_elsewhere_ddl_is_part_of_it(alias: str, play: Play) -> None:
    def make() -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE TABLE made_by_a_step (id integer)")
        raise OSError("crash")

    job = play(lambda context: context.atomic_step("make", make))
    assert "OSError: crash" in (attempt(job).last_error or "")
    assert "made_by_a_step" not in connections[alias].introspection.table_names()
