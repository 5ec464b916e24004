"""No page of the admin reads the table of jobs as a whole, or asks more often than it needs to."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connections
from django.db.backends.utils import CursorWrapper
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gnlqueue.models import Job, JobStatus
from tests.queue.test_plans import analyze, cursor, fill, plan  # noqa: F401  cursor is a fixture

DONE = 100_000
OTHERS = 20_000

#: Rows of the table that one statement may read; a look takes 20,000, and asks something of each.
MOST_ROWS = 25_000
#: As MariaDB counts: also the rows of indexes and of what is asked of each row.
MOST_READS = 90_000

NOON = "'2030-01-01 12:00:00'"


def between(column: str) -> str:
    """The query string of a time range of some days."""
    return f"{column}__range__gte_0=2029-12-31&{column}__range__lte_0=2030-01-02"


#: A page, and how many statements it may send besides those for the session and the user.
PAGES = {
    "/job/": 6,
    **{f"/job/?status={status}": 7 for status in JobStatus.values},
    "/job/?status=ready&queue_name=default": 7,
    "/job/?status=dead&queue_name=elsewhere": 8,
    "/job/?status=scheduled&queue_name=default&" + between("run_at"): 7,
    "/job/?status=scheduled&" + between("run_at"): 8,
    "/job/?" + between("finished_at"): 11,
    "/job/?" + between("enqueued_at"): 60,  # the halving of the ids, at each end
    "/job/?" + between("run_at"): 8,
    "/job/?task_name=demo": 8,
    "/job/?task_name=nobody": 8,
    "/job/?worker_id=nobody": 8,
    "/job/?error=builtins.TimeoutError": 8,
    "/job/?error=builtins.TimeoutError&status=done": 8,
    "/job/?error=builtins.TimeoutError&task_name=nobody": 8,
    "/job/?error=-&status=dead": 8,
    "/job/?q=5": 8,
    "/job/?q=key:nothing": 8,
    "/job/?q=dem": 8,
    "/job/?q=worker:nobody": 8,
    "/job/?q=error:TimeoutError": 9,
    "/job/?q=arg.order_id:5": 8,
    "/deadjob/": 9,
    "/deadjob/?task_name=demo&error=builtins.TimeoutError": 8,
    "/operatoraction/": 3,
    "/stepindoubt/": 4,
    "/job/bulk/?verb=retry": 14,
    "/job/bulk/?verb=cancel": 20,
    "/job/bulk/?verb=retry&criteria="
    + quote(json.dumps({"errors": ["builtins.TimeoutError"], "task_name": "demo"})): 14,
}


@pytest.fixture
def many_jobs(alias: str, cursor: CursorWrapper) -> Iterator[CursorWrapper]:  # noqa: F811
    """Some 200,000 jobs, half of them done."""
    fill(cursor, DONE, JobStatus.DONE, finished_at=NOON)
    fill(cursor, OTHERS, JobStatus.DEAD, finished_at=NOON, key_hash="NULL")
    fill(cursor, OTHERS, JobStatus.CANCELLED, finished_at=NOON)
    for status in (JobStatus.READY, JobStatus.SCHEDULED, JobStatus.IN_PROGRESS):
        fill(cursor, OTHERS, status)
    fill(cursor, 300, JobStatus.BLOCKED)
    analyze(cursor)  # or PostgreSQL looks up each foreign key as it did when there were few jobs: by reading them all
    cursor.execute(
        "INSERT INTO gnlqueue_jobattempt (job_id, number, lease_token, worker_id, started_at, ended_at, "
        f"exception_class, error) SELECT id, 1, 1, 'w1', {NOON}, {NOON}, 'builtins.TimeoutError', 'late' "
        "FROM gnlqueue_job WHERE status = 'dead'"
    )
    analyze(cursor)
    yield cursor
    with connections[alias].constraint_checks_disabled():
        cursor.execute("DELETE FROM gnlqueue_jobattempt")


def statements_of(alias: str, client: Client, url: str) -> list[tuple[str, Any]]:
    """What a page asks of the jobs; the page itself has to be well."""
    sent: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if re.search(r"gnlqueue_job\b", sql) and sql.lstrip("( ").startswith("SELECT"):
            sent.append((sql, params))
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(note):
        response = client.get(f"/admin/gnlqueue{url}")
        assert response.status_code == 200, (url, response)
    return sent


def rows_read(cursor: CursorWrapper, sql: str, params: Any) -> int:  # noqa: F811
    """How many rows of the table a statement reads, as the server counts them."""
    if cursor.db.vendor == "postgresql":
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
        (explained,) = cursor.fetchone()
        explained = json.loads(explained) if isinstance(explained, str) else explained
        return sum(_rows_of_nodes(explained[0]["Plan"]))
    cursor.execute("FLUSH STATUS")
    cursor.execute(sql, params)
    cursor.fetchall()
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for _name, value in cursor.fetchall())


def _rows_of_nodes(node: dict[str, Any]) -> Iterator[int]:
    if node.get("Relation Name") == "gnlqueue_job":
        assert node["Node Type"] != "Seq Scan", node
        yield int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
    for child in node.get("Plans", ()):
        yield from _rows_of_nodes(child)


def assert_bounded(cursor: CursorWrapper, url: str, sql: str, params: Any) -> None:  # noqa: F811
    if cursor.db.vendor == "sqlite":
        how = plan(cursor, sql, params)
        # Without a condition, the first rows in the order of the primary key are read, and no more.
        scans = re.search(r"SCAN gnlqueue_job(?! USING)", how)
        assert not scans or (" WHERE " not in sql and " LIMIT " in sql), f"{url}\n{sql}\n{how}"
        assert "TEMP B-TREE" not in how or re.search(r'"id" IN \(', sql), f"{url}\n{sql}\n{how}"
        return
    read = rows_read(cursor, sql, params)
    most = MOST_ROWS if cursor.db.vendor == "postgresql" else MOST_READS
    assert read <= most, f"{url}\n{read} rows\n{sql}\n{params}\n{plan(cursor, sql, params)}"


def test_no_page_reads_the_jobs_as_a_whole(alias: str, admin: Client, many_jobs: CursorWrapper) -> None:
    for url in PAGES:
        for sql, params in statements_of(alias, admin, url):
            assert_bounded(many_jobs, url, sql, params)

    # Deep in a list it costs what the first page costs.
    middle = Job.objects.using(alias).order_by("-id")[DONE // 2 :].values_list("id", flat=True)[0]
    deep = (
        f"/job/?after={middle}",
        f"/job/?before={middle}",
        f"/job/?status=done&after=2030-01-01T12:00:00%2B00:00~{middle}",
        f"/job/?status=done&before=2030-01-01T12:00:00%2B00:00~{middle}",
        f"/job/?task_name=nobody&after={middle}",
        "/job/?status=ready&after=default~1~2030-01-01T12:00:00%2B00:00~" + str(middle),
    )
    # One job's page, also of the last that would be claimed.
    latest = {status: Job.objects.using(alias).filter(status=status).order_by("-id").first() for status in JobStatus}
    single = [f"/job/{job.pk}/change/" for job in latest.values() if job is not None]
    for url in (*deep, *single):
        for sql, params in statements_of(alias, admin, url):
            assert_bounded(many_jobs, url, sql, params)


def test_pages_send_no_more_statements_than_they_need(alias: str, admin: Client) -> None:
    for number in range(3):
        Job.objects.using(alias).create(
            task_name="demo", run_at="2030-01-01T00:00Z", enqueued_at="2030-01-01T00:00Z", kwargs={"order_id": number}
        )
    for url, most in PAGES.items():
        with CaptureQueriesContext(connections[alias]) as captured:
            assert admin.get(f"/admin/gnlqueue{url}").status_code == 200
        ours = [query["sql"] for query in captured.captured_queries if "gnlqueue_" in query["sql"]]
        assert len(ours) <= most, "\n".join([url, *ours])
