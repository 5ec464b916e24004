"""Claim, promotion and rescue read what they take by their index, however much lies beside it."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.backends.utils import CursorWrapper

from gnlqueue.models import JobStatus
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.candidates import Floor
from gnlqueue.queue.claiming import AT_ONCE, claim_ready, promote, rescue
from gnlqueue.queue.leases import renew
from gnlqueue.queue.transitions import complete_many, release_many
from tests.queue.conftest import NOON, after, count

#: The plans are the same beside a million; to insert that many takes 14 s on PostgreSQL and 26 s on MariaDB.
#: A million of them takes half a minute on MariaDB; CI asks for that.
FINISHED, SCHEDULED = int(os.environ.get("GNLQUEUE_TEST_FINISHED", "200000")), 100_000

Statements = list[tuple[str, Any]]


def fill(cursor: CursorWrapper, number: int, status: JobStatus, **columns: str) -> None:
    """Insert jobs of one status with one statement; the columns are given as SQL."""
    noon = "'2030-01-01 12:00:00'"
    values = {
        "task_name": "'demo'",
        "queue_name": "'default'",
        "worker_id": "'w1'",
        "args": "'[]'",
        "kwargs": "'{}'",
        "status": f"'{status}'",
        **dict.fromkeys(["run_at", "enqueued_at", "last_attempted_at"], noon),
        **dict.fromkeys(["priority", "attempts", "crashes", "lease_token"], "1"),
        **columns,
    }
    cursor.execute(
        f"INSERT INTO gnlqueue_job ({', '.join(values)}) SELECT {', '.join(values.values())} FROM ("
        "WITH RECURSIVE numbers AS ("
        f"SELECT 1 AS number UNION ALL SELECT number + 1 FROM numbers WHERE number < {number}"
        ") SELECT number FROM numbers) AS numbers"
    )


def analyze(cursor: CursorWrapper) -> None:
    cursor.execute("ANALYZE TABLE gnlqueue_job" if cursor.db.vendor == "mysql" else "ANALYZE gnlqueue_job")


@pytest.fixture
def cursor(alias: str) -> Iterator[CursorWrapper]:
    """A cursor to fill the table with, which it empties at the end: the usual DELETE would take seconds."""
    with connections[alias].cursor() as cursor:
        if cursor.db.vendor == "mysql":
            name = "max_recursive_iterations" if cursor.db.mysql_is_mariadb else "cte_max_recursion_depth"
            cursor.execute(f"SET {name} = 10000000")
        yield cursor
        # SQLite empties a table at once where no foreign key has to be looked at.
        with connections[alias].constraint_checks_disabled():
            cursor.execute(
                {"postgresql": "TRUNCATE gnlqueue_job CASCADE", "mysql": "TRUNCATE gnlqueue_job"}.get(
                    cursor.db.vendor, "DELETE FROM gnlqueue_job"
                )
            )
        analyze(cursor)


def sent(alias: str, verb: Callable[[], Any]) -> Statements:
    """The different statements on jobs that a verb sends."""
    statements: dict[str, Any] = {}

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "gnlqueue_job" in sql and "INSERT" not in sql:
            statements.setdefault(sql, params)
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(wrapper):
        verb()
    return list(statements.items())


def plan(cursor: CursorWrapper, sql: str, params: Any) -> str:
    explain = "EXPLAIN QUERY PLAN" if cursor.db.vendor == "sqlite" else "EXPLAIN"
    cursor.execute(f"{explain} {sql}", params)
    return "\n".join(" | ".join(map(str, row)) for row in cursor.fetchall())


#: What a plan says of a table that is read as a whole, and of rows that are sorted.
FULL_SCAN = {"postgresql": "Seq Scan on gnlqueue_job", "mysql": "| ALL |", "sqlite": "SCAN gnlqueue_job"}
SORT = {"postgresql": "Sort", "mysql": "filesort", "sqlite": "TEMP B-TREE"}


def assert_reads_by(index: str, cursor: CursorWrapper, statements: Statements) -> None:
    """Each of the statements goes by this index in its order, or to single rows by their primary key."""
    vendor, by_index = cursor.db.vendor, 0
    assert statements
    for sql, params in statements:
        how = plan(cursor, sql, params)
        assert FULL_SCAN[vendor] not in how, f"{sql}\n{how}"
        if index in how:
            by_index += 1
            if "ROW_NUMBER" not in sql:  # which sorts the few rows that are claimed
                assert SORT[vendor] not in how, f"{sql}\n{how}"
        else:
            assert any(name in how for name in ("PRIMARY KEY", "gnlqueue_job_pkey", "| PRIMARY |")), f"{sql}\n{how}"
    assert by_index, [plan(cursor, *each) for each in statements]


def claims(alias: str, limit: int) -> Statements:
    return sent(alias, lambda: claim_ready("default", worker_id="w1", lease=10**6, limit=limit, alias=alias, now=NOON))


def test_claim_promotion_and_rescue_go_by_their_indexes(alias: str, cursor: CursorWrapper) -> None:
    fill(cursor, FINISHED, JobStatus.DONE, finished_at="'2030-01-01 12:00:00'")
    fill(cursor, SCHEDULED, JobStatus.SCHEDULED, run_at="'2030-01-01 13:00:00'")
    fill(cursor, 1000, JobStatus.READY)
    fill(cursor, 1000, JobStatus.IN_PROGRESS, lease_expires_at="'2030-01-01 13:00:00'")
    analyze(cursor)

    assert_reads_by("gnlqueue_job_ready", cursor, claims(alias, 1))
    assert_reads_by("gnlqueue_job_ready", cursor, claims(alias, 100))

    for hours in (0, 2):  # nothing is due; all are due at the same second
        statements = sent(alias, lambda: promote(["default"], alias=alias, now=after(hours=hours)))  # noqa: B023
        assert_reads_by("gnlqueue_job_scheduled", cursor, statements)
    assert count(JobStatus.SCHEDULED) == SCHEDULED - AT_ONCE

    for hours in (0, 2):  # no lease has expired; all have
        statements = sent(alias, lambda: rescue(["default"], alias=alias, now=after(hours=hours)))  # noqa: B023
        assert_reads_by("gnlqueue_job_in_progress", cursor, statements)
    assert count(JobStatus.IN_PROGRESS) == 1000 + 101 - AT_ONCE


def test_a_claim_goes_by_its_index_where_the_statistics_are_of_an_empty_table(
    alias: str, cursor: CursorWrapper
) -> None:
    analyze(cursor)
    fill(cursor, 20_000, JobStatus.DONE)
    fill(cursor, 1000, JobStatus.READY)
    assert_reads_by("gnlqueue_job_ready", cursor, claims(alias, 10))


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_claim_beyond_the_last_one_does_not_walk_over_what_a_held_snapshot_keeps(
    alias: str, cursor: CursorWrapper
) -> None:
    def claim(beyond: Floor | None = None, limit: int = 1) -> list[ClaimedJob]:
        return claim_ready("default", worker_id="w1", lease=60, limit=limit, alias=alias, beyond=beyond)

    def pages(beyond: Floor | None = None) -> int:
        ((sql, params),) = sent(alias, lambda: claim(beyond))
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", params)
        of_all = next(line for (line,) in cursor.fetchall() if "Buffers:" in line)
        return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", of_all)))

    fill(cursor, 10_000, JobStatus.READY)
    analyze(cursor)
    pages()  # the first one has more to do
    before = pages()
    with closing(connections[alias].copy()) as other, other.cursor() as snapshot:
        snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT 1 FROM gnlqueue_job LIMIT 1")
        done = claim(limit=5000)
        complete_many([(job, None) for job in done])
        last = done[-1]

        assert pages() > 5 * before
        assert pages((last.priority, last.run_at, last.id)) <= 3 * before


def test_what_is_held_is_found_by_primary_key(alias: str, cursor: CursorWrapper) -> None:
    """However many others are in progress, and however large the table is."""
    fill(cursor, 20_000, JobStatus.DONE)
    fill(cursor, 2000, JobStatus.READY)
    fill(cursor, 2000, JobStatus.IN_PROGRESS, lease_expires_at="'2030-01-01 13:00:00'")
    analyze(cursor)

    def claimed() -> list[ClaimedJob]:
        return claim_ready("default", worker_id="w1", lease=60, limit=200, alias=alias, now=NOON)

    for verb in (
        lambda: complete_many([(job, None) for job in claimed()]),
        lambda: complete_many([(job, [job.id]) for job in claimed()]),
        lambda: release_many(claimed()),
        lambda: renew([job.pair for job in claimed()], timedelta(seconds=60), alias=alias),
    ):
        statements = sent(alias, verb)
        by_pair = [each for each in statements if "lease_token + 1" not in each[0] and "LIMIT" not in each[0]]
        assert by_pair
        for sql, params in by_pair:
            how = plan(cursor, sql, params)
            assert FULL_SCAN[cursor.db.vendor] not in how, f"{sql}\n{how}"
            assert "gnlqueue_job_in_progress" not in how, f"{sql}\n{how}"
