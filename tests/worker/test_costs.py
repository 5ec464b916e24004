"""What an enqueue, a job and a step cost in statements and commits, as the database's driver sees them. Never time.

PostgreSQL and SQLite: the drivers of MySQL cannot tell what they send.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

import gnlqueue
from gnlqueue import JobContext
from gnlqueue.models import JobStatus
from gnlqueue.queue import wakeups
from gnlqueue.worker.loop import Worker
from tests.app.tasks import nothing
from tests.durable import tasks as durable
from tests.worker.conftest import row, until_all

WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|WITH\b.*\bUPDATE)\b", re.DOTALL)


class Wire:
    """What was sent to the database, connection by connection."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sqlite: list[list[str]] = []
        self._postgresql: list[Path] = []
        self._counted = (0, 0)
        self._opened: list[Any] = []

    def listen(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        """Note what this connection sends from now on."""
        driver: Any = connection.connection
        if connection.vendor == "sqlite":
            self._sqlite.append([])
            driver.set_trace_callback(self._sqlite[-1].append)
        elif connection.vendor == "postgresql":
            self._postgresql.append(self._directory / f"wire-{len(self._postgresql)}")
            file = self._postgresql[-1].open("wb")
            self._opened.append(file)
            driver.pgconn.trace(file.fileno())

    def close(self) -> None:
        """Close the files, once the connections that write to them are closed."""
        for file in self._opened:
            file.close()

    def sent(self) -> list[list[str]]:
        """Return the statements of each connection, from its beginning."""
        return [list(each) for each in self._sqlite] + [_statements(path.read_text()) for path in self._postgresql]

    def cost(self) -> tuple[int, int]:
        """Return how many statements were sent, and how many commits wrote something, since the last call."""
        sent = self.sent()
        before, self._counted = self._counted, (sum(map(len, sent)), sum(map(_commits, sent)))
        return self._counted[0] - before[0], self._counted[1] - before[1]


def _statements(trace: str) -> list[str]:
    """Return what libpq's trace says was executed: simple queries, and prepared statements by their text."""
    texts: dict[str, str] = {}
    executed = []
    for kind, said in re.findall(
        r"^[^\n]*F\t\d+\t(Query|Parse|Bind)\t ?(.*?)(?=^[^\n]*[FB]\t\d+\t|\Z)", trace, re.M | re.S
    ):
        if kind == "Query":
            executed.append(said.strip().strip('"'))
        elif kind == "Parse":
            name, text = re.match(r'"(.*?)" "(.*)"', said, re.DOTALL).groups()  # type: ignore[union-attr]
            texts[name] = text
        else:
            executed.append(texts[re.match(r'".*?" "(.*?)"', said).group(1)])  # type: ignore[union-attr]
    return executed


def _commits(statements: list[str]) -> int:
    """Return how many commits there were that the disk had to wait for."""
    commits, inside, wrote = 0, False, False
    for statement in statements:
        if statement.startswith("BEGIN"):
            inside, wrote = True, False
        elif statement.startswith(("COMMIT", "ROLLBACK")) and " TO " not in statement:
            commits += wrote and statement.startswith("COMMIT")
            inside = wrote = False
        elif WRITES.match(statement):
            commits += not inside
            wrote = inside
    return commits


@pytest.fixture
def wire(alias: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """What is sent from now on; for the databases whose drivers can tell."""
    if connections[alias].vendor == "mysql":
        pytest.skip("MySQL's drivers cannot tell what they send")
    monkeypatch.setattr(wakeups, "WINDOW", 60)  # one notification, whatever the machine does meanwhile
    wakeups._last_sent.clear()
    connections[alias].close()  # so that its end is not ours to look for
    wire = Wire(tmp_path)
    connection_created.connect(wire.listen)
    try:
        nothing.enqueue()  # connects, and sends that notification
        wire.cost()
        yield wire
    finally:
        connection_created.disconnect(wire.listen)
        connections[alias].close()
        wire.close()


def test_an_enqueue_is_one_statement_and_one_commit(wire: Wire) -> None:
    nothing.enqueue()
    assert wire.cost() == (1, 1)


def test_an_enqueue_in_the_caller_s_transaction_commits_nothing_itself(alias: str, wire: Wire) -> None:
    with transaction.atomic(alias):
        nothing.enqueue()
        statements, commits = wire.cost()
        assert (statements, commits) == (2, 0)  # BEGIN is the other one
        nothing.enqueue()
        assert wire.cost() == (1, 0)


def test_a_thousand_jobs_are_enqueued_with_two_statements_and_one_commit(wire: Wire) -> None:
    gnlqueue.enqueue_many(nothing.bind() for _ in range(1000))
    assert wire.cost() == (4, 1)  # with BEGIN and COMMIT


def test_a_busy_worker_claims_and_writes_in_groups(alias: str, wire: Wire, in_thread: Callable[[Worker], Any]) -> None:
    gnlqueue.enqueue_many(nothing.bind() for _ in range(1000))
    known = len(wire.sent())
    worker = Worker(lease=600)
    running = in_thread(worker)
    until_all(JobStatus.DONE)
    worker.stop()
    running.result(20)
    statements, commits = sum(map(len, wire.sent()[known:])), sum(map(_commits, wire.sent()[known:]))
    assert commits <= 500  # some 40, unless the machine lets the worker's threads run one by one
    assert statements <= 1000


def cost_of_a_run(wire: Wire, handler: Callable[[JobContext], None]) -> tuple[int, int]:
    durable.handlers["play"] = handler
    durable.play.enqueue()
    wire.cost()
    job = Worker(heartbeat=False).run_once()
    assert job is not None
    assert job.status == JobStatus.DONE
    return wire.cost()


STATEMENTS = {"step": 8, "idempotent_step": 5, "atomic_step": 7}  # with BEGIN and COMMIT
COMMITS = {"step": 2, "idempotent_step": 1, "atomic_step": 1}  # an atomic_step's is that of what the step itself writes


@pytest.mark.parametrize("kind", COMMITS)
def test_a_step_costs_so_many_commits(wire: Wire, kind: str) -> None:
    def steps(count: int) -> Callable[[JobContext], None]:
        def handler(context: JobContext) -> None:
            for number in range(count):
                getattr(context, kind)("work", int, number)

        return handler

    Worker(heartbeat=False).run_once()  # the fixture's job
    fewer, more = cost_of_a_run(wire, steps(2)), cost_of_a_run(wire, steps(12))
    assert more[1] - fewer[1] == 10 * COMMITS[kind]
    assert more[0] - fewer[0] <= 10 * STATEMENTS[kind]


def test_the_statements_of_a_replay_do_not_grow_with_its_steps(wire: Wire) -> None:
    costs: list[int] = []

    def handler(context: JobContext, steps: int) -> None:
        wire.cost()
        for number in range(steps):
            context.idempotent_step("work", int, number)
        costs.append(wire.cost()[0])
        if context.attempt == 1:
            raise OSError("once more")

    durable.handlers["play"] = handler
    Worker(heartbeat=False).run_once()  # the fixture's job
    for steps in (10, 200):
        job = durable.play.enqueue(steps)
        while row(job).status != JobStatus.DONE:
            Worker(heartbeat=False).run_once()
    _, few, _, many = costs
    assert few == many
