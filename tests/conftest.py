"""One run covers every database that is there. See ``tests/servers.py`` for how they are found."""

import contextlib
import gc
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import hypothesis
import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from pytest_django import DjangoDbBlocker

from tests import servers

ALIASES = {"sqlite": "default", "postgresql": "postgresql", "mysql": "mysql"}
tested: dict[str, str] = {}  # alias -> the server's name and version

# An example's time depends on the database's commits, and on what else the machine does.
hypothesis.settings.register_profile("databases", deadline=None)
hypothesis.settings.load_profile("databases")


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Run one process more than there are cores: each waits for its databases half of the time."""
    return (yield) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among thousands of tests while they are collected: that took almost a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def django_db_setup(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Real databases under names of their own, so that child processes see the same ones."""
    with django_db_blocker.unblock(), servers.created():
        try:
            for alias in connections:
                # run_syncdb: tests.app has no migrations.
                call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
            yield
        finally:
            connections.close_all()


@pytest.fixture(params=ALIASES)
def alias(
    request: pytest.FixtureRequest,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """The alias of the database under test, in turn each one that is there. Everything commits.

    It is the queue's database while the test runs, here and in the processes that the test starts.
    """
    alias = ALIASES[request.param]
    if alias in servers.missing:
        pytest.skip(servers.missing[alias])
    settings.GNLQUEUE = {**settings.GNLQUEUE, "DATABASE": alias}
    monkeypatch.setenv("GNLQUEUE_TEST_ALIAS", alias)
    with django_db_blocker.unblock():
        if alias not in tested:
            connection = connections[alias]
            version = ".".join(map(str, connection.get_database_version()))
            tested[alias] = f"{connection.display_name} {version}"
        with _connections_of_other_threads_closed():
            yield alias
        unfinished = [connection.alias for connection in connections.all(initialized_only=True) if _reset(connection)]
        for each in connections:
            _empty(each)
    assert not unfinished, f"the test left a transaction open on {', '.join(unfinished)}"


@contextlib.contextmanager
def _connections_of_other_threads_closed() -> Iterator[None]:
    """At the end, close what threads of the test left open: an open transaction would block the next test."""
    opened: list[BaseDatabaseWrapper] = []

    def remember(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
        opened.append(connection)

    connection_created.connect(remember)
    try:
        yield
    finally:
        connection_created.disconnect(remember)
        own = connections.all(initialized_only=True)
        for connection in opened:
            if connection not in own:
                connection.inc_thread_sharing()
                connection.close()
                connection.dec_thread_sharing()


def _reset(connection: BaseDatabaseWrapper) -> bool:
    """End the transaction that a test left open, if it did."""
    if connection.connection is None or (connection.get_autocommit() and not connection.in_atomic_block):
        return False
    connection.close()
    connection.connect()  # forgets the atomic blocks
    return True


def _empty(alias: str) -> None:
    models = [*apps.get_app_config("gnlqueue").get_models(), *apps.get_app_config("testapp").get_models()]
    connection = connections[alias]
    models += [User.user_permissions.through, LogEntry, Session, User]
    tables = [connection.ops.quote_name(model._meta.db_table) for model in models]
    with connection.cursor() as cursor:  # most are empty, and a look costs less than a write
        looks = (
            f"SELECT {place} FROM (SELECT 1) one WHERE EXISTS (SELECT 1 FROM {table})"
            for place, table in enumerate(tables)
        )
        cursor.execute(" UNION ALL ".join(looks))
        filled = [tables[place] for (place,) in cursor.fetchall()]
    if not filled:
        return
    # The order doesn't matter: MySQL doesn't check foreign keys here, PostgreSQL and SQLite only at commit.
    with connection.constraint_checks_disabled(), transaction.atomic(alias), connection.cursor() as cursor:
        for table in filled:
            cursor.execute(f"DELETE FROM {table}")


@pytest.fixture
def run_threads() -> Callable[..., list[Any]]:
    """``run_threads(n, fn)`` runs fn(0) … fn(n-1) at once, each in a thread; their results, or the first exception."""

    def run(n: int, fn: Callable[[int], Any]) -> list[Any]:
        barrier = threading.Barrier(n, timeout=30)

        def body(i: int) -> Any:
            try:
                barrier.wait()
                return fn(i)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(n) as pool:
            futures = [pool.submit(body, i) for i in range(n)]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in futures]

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show lone surrogates, which some tests log, as escapes: a report travels to the first process as UTF-8."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several processes: the first one writes the summary
        session.config.workeroutput["databases tested"] = tested


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    tested.update(getattr(node, "workeroutput", {}).get("databases tested", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if tested:
        # Always in the same order, whatever order pytest-randomly ran the tests in.
        versions = ", ".join(tested[alias] for alias in ALIASES.values() if alias in tested)
        terminalreporter.write_line(f"databases tested: {versions}")
    names = {"postgresql": "PostgreSQL", "mysql": "MySQL/MariaDB"}
    for alias, reason in servers.missing.items():
        terminalreporter.write_line(f"NOT TESTED: {names[alias]} ({reason})", yellow=True)
