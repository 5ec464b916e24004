"""The overview: what it says, how it draws it, and how little it reads for that."""

import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.db import connections
from django.db.backends.utils import CursorWrapper
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gnlqueue import dialects, queue
from gnlqueue.admin import charts, facts, figures
from gnlqueue.admin.figures import WINDOWS, Slot
from gnlqueue.admin.looks import Question
from gnlqueue.models import Job, JobStatus, RunJournalEntry, TaskMinute, WorkerProcess
from tests.admin.conftest import LogIn
from tests.durable.conftest import on_sqlite
from tests.queue.test_plans import analyze, cursor, fill, plan  # noqa: F401  cursor is a fixture

OVERVIEW = "/admin/gnlqueue/overview/"
HOSTILE = "<script>alert(1)</script>\"'\u202e\u200f"


def text(client: Client, url: str = OVERVIEW) -> str:
    """What a page says, without its tags, in one line."""
    response = client.get(url)
    assert response.status_code == 200
    content = response.content.decode().replace("<wbr>", "")
    main = content[content.index("<main") : content.index("</main>")] if "<main" in content else content
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


def start_worker(alias: str, worker_id: str = "w1", *, queues: list[str] | None = None, silent: float = 0) -> None:
    """Register a worker which has been silent for so many seconds."""
    now = timezone.now()
    WorkerProcess.objects.using(alias).create(
        worker_id=worker_id, hostname="host", pid=5, queues=queues or ["default"], concurrency=4,
        started_at=now, heartbeat_at=now - timedelta(seconds=silent),
    )  # fmt: skip


def claim(queue_name: str = "default", worker_id: str = "w1") -> queue.ClaimedJob:
    job = queue.claim(queue_name, worker_id=worker_id)
    assert job is not None
    return job


def test_all_is_well_where_there_is_nothing(alias: str, admin: Client) -> None:
    said = text(admin)
    assert "Nothing: no job waits without a worker" in said
    assert "Nothing finished in this time." in said
    assert "No worker is running, so nothing is being done. Start one: python manage.py runworker" in said
    assert "No attempt failed in this time." in said


def test_jobs_that_wait_and_no_worker_at_all(alias: str, admin: Client) -> None:
    for _ in range(3):
        queue.enqueue("shop.pay")
    assert "3 jobs are waiting and no worker is running. Start one: python manage.py runworker" in text(admin)
    start_worker(alias, silent=3600)
    assert "3 jobs are waiting and no worker is running." in text(admin)
    start_worker(alias, "w2")
    assert "Nothing: no job waits without a worker" in text(admin)


def test_a_queue_that_no_live_worker_serves(alias: str, admin: Client) -> None:
    start_worker(alias)
    start_worker(alias, "w2", queues=["mails"], silent=3600)
    queue.enqueue("shop.mail", queue_name="mails", now=timezone.now() - timedelta(hours=3))
    said = text(admin)
    assert "No live worker serves the queue mails, where 1 job is waiting (3 h)." in said
    assert "python manage.py runworker --queues mails" in said
    queue.pause("mails")
    assert "No live worker serves" not in text(admin)


def test_about_how_many_wait_in_a_long_queue(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "CAP", 2)
    monkeypatch.setattr(dialects, "estimate", lambda rows: 1_712)
    for queue_name, number in {"mails": 3, "bills": 2}.items():
        for _ in range(number):
            queue.enqueue("shop.mail", queue_name=queue_name)
    with CaptureQueriesContext(connections[alias]) as captured:
        said = text(admin)
    assert "4+ (about 1,700) jobs are waiting and no worker is running." in said
    assert "mails no worker 2+ about 1,700 " in said
    assert "bills no worker 2 just now" in said
    start_worker(alias, queues=["bills"])
    assert "No live worker serves the queue mails, where 2+ (about 1,700) jobs are waiting" in text(admin)
    monkeypatch.setattr(dialects, "estimate", lambda rows: None)
    with CaptureQueriesContext(connections[alias]) as without:
        assert "where 2+ jobs are waiting" in text(admin)
    assert len(captured) <= len(without)
    queue.enqueue("shop.mail", queue_name="bills")
    monkeypatch.setattr(dialects, "estimate", lambda rows: 1_712)
    assert "2+ about" not in text(admin).partition("Queue State")[2]  # nobody knows which of the two


def test_a_queue_that_a_consumer_of_one_s_own_serves(alias: str, admin: Client) -> None:
    start_worker(alias)
    for _ in range(2):
        queue.enqueue("shop.mail", queue_name="mails")
    assert "No live worker serves the queue mails" in text(admin)
    claim("mails", worker_id="my consumer")
    assert "No live worker serves" not in text(admin)


def test_a_scheduled_job_that_is_due_waits_too(alias: str, admin: Client) -> None:
    start_worker(alias)
    long_ago = timezone.now() - timedelta(hours=1)
    queue.enqueue("shop.mail", queue_name="mails", run_after=timedelta(minutes=5), now=long_ago)
    assert "where 1 job is waiting (55 min)." in text(admin)


def test_steps_in_doubt_and_mismatches(alias: str, admin: Client) -> None:
    for _ in range(2):
        queue.enqueue("shop.pay")
    queue.block(claim(), "in_doubt")
    queue.block(claim(), "mismatch")
    for number in range(2):
        RunJournalEntry.objects.using(alias).create(
            run_id="job:1", position=number, key="charge", key_hash=str(number), kind="step", status="in_doubt",
            lease_token=1, started_at=timezone.now(),
        )  # fmt: skip
    said = text(admin)
    assert "2 steps are in doubt." in said
    assert "1 job does not fit its code." in said
    assert said.index("in doubt") < said.index("Jobs")


def test_a_task_that_no_worker_knows(alias: str, admin: Client) -> None:
    start_worker(alias)
    queue.enqueue("shop.gone", run_after=timedelta(minutes=1))
    assert "do not know the task" not in text(admin)
    Job.objects.using(alias).update(unknown_since=timezone.now())
    assert "The workers of the queue default do not know the task shop.gone." in text(admin)


def test_counts_and_queues(alias: str, admin: Client) -> None:
    now = timezone.now()
    start_worker(alias)
    for priority, minutes in ((5, 1), (0, 40), (0, 90), (-5, 20)):
        queue.enqueue("shop.pay", priority=priority, now=now - timedelta(minutes=minutes))
    queue.complete(claim())
    claim()
    said = text(admin)
    # one is done, the one of 90 minutes in progress, and of the others the one of 40 minutes is the oldest
    assert "0 scheduled 2 ready 1 in progress 0 blocked 1 done 0 dead 0 cancelled" in said
    assert re.search(r"default running 2 40 min ago 1 / 4 ", said)
    assert re.search(r"w1 host, process 5 live \S+( s)?.* 1 / 4 shop\.pay", said)


def test_a_count_stops_at_its_cap(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        queue.enqueue("shop.pay")
    counted = facts.ask(alias, {"few": facts.Count(Job.objects.using(alias).order_by("id"), 3)})
    assert str(counted["few"]) == "3+"


def test_beyond_the_cap_the_database_says_about_how_many(
    alias: str,
    admin: Client,
    monkeypatch: pytest.MonkeyPatch,
    cursor: CursorWrapper,  # noqa: F811
) -> None:
    fill(cursor, 3_000, JobStatus.DONE, finished_at="'2026-01-01 12:00:00'")
    fill(cursor, 200, JobStatus.READY)
    analyze(cursor)
    exact = statements(alias, admin)
    monkeypatch.setattr(facts, "CAP", 500)
    said = text(admin)
    about = r"" if alias == "default" else r"about (2,[5-9]00|3,[0-4]00) "
    assert re.search(rf" 200 ready .* 500\+ {about}done 0 dead ", said), said
    assert statements(alias, admin) == exact + (alias != "default")


def test_queues_that_nobody_names_are_found(alias: str) -> None:
    names = ["a", "a-b", "aa", "b.c", "d_e", "default2", "zz"]
    for name in names[:3]:
        queue.enqueue("shop.pay", queue_name=name)
    for name in names[3:5]:
        queue.enqueue("shop.pay", queue_name=name, run_after=timedelta(days=1))
    for name in names[5:]:
        queue.enqueue("shop.pay", queue_name=name)
        claim(name)
    found = facts.read_queues(alias, timezone.now(), facts.read_workers(alias, timezone.now())).all
    assert set(names) <= {each.name for each in found}
    assert next(each for each in found if each.name == "default2").running.number == 1


def minute_row(minutes_ago: float, *, task: str = "shop.pay", queue_name: str = "default", **values: Any) -> TaskMinute:
    """What has become of a task's jobs in one minute."""
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    known = {"minute": at, "queue_name": queue_name, "task_name": task, "worker_id": "w1", "waits": {}, "runs": {}}
    return TaskMinute(**{**known, **values})


def store(alias: str, minutes_ago: float, **values: Any) -> None:
    minute_row(minutes_ago, **values).save(using=alias)


def test_figures_of_a_window(alias: str) -> None:
    store(alias, 1, succeeded=8, failed=2, waits={"0": 10}, runs={"8": 10})
    store(alias, 2, succeeded=10, task="shop.mail", queue_name="mails", runs={"-8": 10})
    store(alias, 70, succeeded=1000)
    shown = figures.read(alias, WINDOWS["1h"], timezone.now())
    assert len(shown.slots) == 60
    assert (shown.whole.succeeded, shown.whole.failed) == (18, 2)
    assert shown.queues["default"].failures == 20
    assert [(name, total.failed) for name, total in shown.failing(10)] == [("shop.pay", 2)]
    assert shown.whole.run[95] == pytest.approx(2**2.125)
    assert figures.read(alias, WINDOWS["6h"], timezone.now()).whole.succeeded == 1018


def test_no_cursor_stays_open_on_the_server(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind PgBouncer, which pools transactions, the next statement may go to another server process."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a server-side cursor")

    monkeypatch.setattr(QuerySet, "iterator", refuse)
    store(alias, 1, succeeded=8)
    assert figures.read(alias, WINDOWS["1h"], timezone.now()).whole.succeeded == 8


def test_every_window_is_drawn(alias: str, admin: Client) -> None:
    TaskMinute.objects.using(alias).bulk_create(
        minute_row(minute, succeeded=minute, failed=1, waits={"-20": 3}, runs={"3": 1, "60": 1})
        for minute in range(0, 10_000, 97)
    )
    for window in (*WINDOWS, "nonsense"):
        said = text(admin, f"{OVERVIEW}?window={window}")
        assert "succeeded" in said, window
        assert "shop.pay" in said, window


def test_drawings_stay_within_their_frame() -> None:
    now = timezone.now()
    slots = [Slot(begin=now + timedelta(minutes=number)) for number in range(15)]
    slots[3].succeeded, slots[3].failed = 99_999, 1
    slots[4].failed = 7
    slots[4].runs.update({-40: 1, 200: 1})
    drawn = charts.finished_per_minute(slots, WINDOWS["15m"])
    for bar in drawn.bars:
        assert 0 <= bar.failed_y <= bar.succeeded_y <= charts.BOTTOM
    assert drawn.bars[3].failed_height == 2  # is to be seen beside 100,000
    assert [tick.label for tick in drawn.chart.ticks] == ["0", "50,000", "100,000"]
    lines = charts.over_time(slots, slots[4], WINDOWS["15m"], lambda slot: slot.run)
    heights = [float(y) for line in lines.lines for y in re.findall(r"[ML]\S+ ([\d.]+)", line.path + line.marks)]
    assert heights
    assert all(charts.TOP <= y <= charts.BOTTOM for y in heights)


def test_a_line_breaks_where_nothing_finished() -> None:
    slots = [Slot(begin=timezone.now()) for _ in range(5)]
    for place in (0, 1, 3):
        slots[place].waits[0] = 1
    median = charts.over_time(slots, slots[0], WINDOWS["15m"], lambda slot: slot.wait).lines[0]
    shapes = [re.sub(r"[\d. ]", "", drawn) for drawn in (median.path, median.marks)]
    assert shapes == ["ML", "Mh"]  # a lone minute is a mark, as it would be a line without length


@on_sqlite
def test_hostile_names_are_shown_and_not_run(alias: str, admin: Client) -> None:
    start_worker(alias, f"w{HOSTILE}", queues=["default", HOSTILE])
    Job.objects.using(alias).bulk_create(
        [Job(task_name=HOSTILE, queue_name="default", run_at=timezone.now(), enqueued_at=timezone.now())]
    )
    job = claim(worker_id=f"w{HOSTILE}")
    store(alias, 0, task=HOSTILE, failed=1, queue_name=HOSTILE)
    assert job.task_name == HOSTILE
    for page in (OVERVIEW, "/admin/gnlqueue/workerprocess/", "/admin/gnlqueue/queuestate/"):
        content = admin.get(page).content.decode()
        assert "<script>alert" not in content
        assert "\u202e" not in content
        assert "\\u202e" in content


@on_sqlite
def test_who_may_not_see_it(alias: str, log_in: LogIn) -> None:
    assert log_in("view_job").get(OVERVIEW).status_code == 403
    assert log_in("view_overview", name="bob").get(OVERVIEW).status_code == 200
    assert Client().get(OVERVIEW).status_code == 302


def statements(alias: str, client: Client) -> int:
    """How many statements the overview costs."""
    sent = []

    def wrapper(execute: Any, sql: str, *rest: Any) -> Any:
        sent.append(sql)
        return execute(sql, *rest)

    with connections[alias].execute_wrapper(wrapper):
        assert client.get(OVERVIEW).status_code == 200
    return len([sql for sql in sent if "gnlqueue" in sql or "SELECT STRFTIME" in sql])


def test_the_number_of_statements_does_not_depend_on_what_there_is(alias: str, admin: Client) -> None:
    queue.enqueue("shop.pay")
    few = statements(alias, admin)
    for number in range(30):
        start_worker(alias, f"w{number}", queues=["default", f"q{number % 5}"])
        queue.enqueue("shop.pay", queue_name=f"q{number % 5}")
        queue.enqueue("shop.pay", run_after=timedelta(days=1))
        store(alias, number, task=f"shop.{number}", succeeded=1)
    assert statements(alias, admin) <= few + 3
    assert few <= 12


FULL_SCAN = {
    "postgresql": r"Seq Scan on gnlqueue_job\b",
    "mysql": r"gnlqueue_job \| (None \| )?(ALL|index) ",
    # a small partial index may be read from one end
    "sqlite": r"SCAN gnlqueue_job(?! USING (COVERING )?INDEX gnlqueue_job_(ready|scheduled|in_progress|blocked))",
}


def test_nothing_reads_the_table_of_jobs(alias: str, admin: Client, cursor: CursorWrapper) -> None:  # noqa: F811
    fill(cursor, 170_000, JobStatus.DONE, finished_at="'2026-01-01 12:00:00'")
    fill(cursor, 10_000, JobStatus.SCHEDULED, run_at="'2099-01-01 13:00:00'")
    fill(cursor, 10_000, JobStatus.READY)
    fill(cursor, 200, JobStatus.IN_PROGRESS, lease_expires_at="'2030-01-01 13:00:00'")
    fill(cursor, 20, JobStatus.BLOCKED, blocked_reason="'mismatch'")
    analyze(cursor)
    sent: dict[str, Any] = {}

    def wrapper(execute: Any, sql: str, params: Any, *rest: Any) -> Any:
        if "gnlqueue_job" in sql and not sql.startswith("EXPLAIN"):  # which reads nothing
            sent.setdefault(sql, params)
        return execute(sql, params, *rest)

    with connections[alias].execute_wrapper(wrapper):
        for page in (OVERVIEW, "/admin/gnlqueue/queuestate/", "/admin/gnlqueue/workerprocess/"):
            assert admin.get(page).status_code == 200
    whole = "SELECT COUNT(*) FROM gnlqueue_job WHERE task_name = %s", ["demo"]
    assert re.search(FULL_SCAN[cursor.db.vendor], plan(cursor, *whole)), "what would not be noticed"
    assert sent
    for sql, params in sent.items():
        how = plan(cursor, sql, params)
        assert not re.search(FULL_SCAN[cursor.db.vendor], how), f"{sql}\n{how}"


SORT = {"postgresql": r"\bSort\b", "mysql": "filesort", "sqlite": "TEMP B-TREE"}


def test_many_blocked_jobs_are_not_all_read_to_be_counted(
    alias: str,
    cursor: CursorWrapper,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a deploy that does not fit their journals. A sort reads all, however early the count ends."""
    fill(cursor, 40_000, JobStatus.BLOCKED)
    analyze(cursor)
    asked: dict[str, Question] = {}
    monkeypatch.setattr(facts, "ask", lambda alias, questions: asked.update(questions))
    facts.count_statuses(alias)
    sql, params = asked["blocked"].sql(alias)
    how = plan(cursor, f"SELECT {sql}", params)
    assert not re.search(SORT[cursor.db.vendor], how), f"{sql}\n{how}"


# --- figures on the page ---------------------------------------------------------------------------------------------


@on_sqlite
def test_percentiles_and_rates_stand_on_the_page(alias: str, admin: Client) -> None:
    start_worker(alias, queues=["default", "mails"])
    store(alias, 1, succeeded=8, failed=2, waits={"0": 90, "16": 10}, runs={"8": 90, "-8": 10})
    store(alias, 2, succeeded=120, task="shop.mail", queue_name="mails")
    store(alias, 70, succeeded=1000, waits={"40": 1000}, runs={"40": 1000})
    said = text(admin, f"{OVERVIEW}?window=1h")
    assert "Wait: from due to start p50 1.1 s p95 17 s p99 17 s" in said
    assert "Run: from start to end p50 4.4 s p95 4.4 s p99 4.4 s" in said
    assert re.search(r"default running 0 — 0 / 4 0\.2 20 % mails running 0 — 0 / 4 2\.0 0 %", said), said
    longer = text(admin, f"{OVERVIEW}?window=6h")
    assert "Wait: from due to start p50 18 min" in longer
    assert "Run: from start to end p50 18 min" in longer


@on_sqlite
@pytest.mark.parametrize("window", ["1h", "7d"])
def test_the_tables_beneath_the_charts_name_the_same_times(alias: str, admin: Client, window: str) -> None:
    store(alias, 1, succeeded=8)
    page = admin.get(f"{OVERVIEW}?window={window}").content.decode()
    tables = [
        page[page.index(f'id="gq-{name}-table"') :].partition("</table>")[0] for name in ("finished", "wait", "run")
    ]
    finished, wait, run = (re.findall(r'<th scope="row">([^<]*)', table) for table in tables)
    assert finished == wait == run
    assert re.fullmatch(r"\d\d:\d\d" if window == "1h" else r"\w{3} \d\d:\d\d", finished[0])


@on_sqlite
def test_series_differ_by_more_than_their_colours(alias: str, admin: Client) -> None:
    store(alias, 1, succeeded=8, failed=2, waits={"0": 9}, runs={"0": 9})
    page = admin.get(OVERVIEW).content.decode()
    chart = page[page.index('id="gq-finished"') : page.index('id="gq-finished-table"')]
    assert chart.count('fill="url(#gq-stripes)"') == 2  # a bar, and the legend
    assert chart.count('class="gq-succeeded"') == 2
    found = finders.find("gnlqueue/admin.css")
    assert isinstance(found, str)
    css = Path(found).read_text()
    dashes, marks = [], []
    for name in ("p50", "p95", "p99"):
        assert page.count(f'class="gq-line gq-mark gq-{name}"') == 2
        (line,), (mark,) = (re.findall(rf"^{kind}\.gq-{name} {{([^}}]*)}}", css, re.M) for kind in ("", r"\.gq-mark"))
        dashes.append(re.findall(r"stroke-dasharray: ([^;]*);", line))
        marks.append(re.findall(r"stroke-width: ([^;]*);", mark))
    assert len({tuple(each) for each in dashes}) == 3
    assert len({tuple(each) for each in marks}) == 3


@on_sqlite
def test_where_all_workers_are_silent_one_reads_how_to_start_one(alias: str, admin: Client) -> None:
    start_worker(alias, silent=3600)
    command = "Start one: python manage.py runworker"
    for page in (OVERVIEW, "/admin/gnlqueue/workerprocess/"):
        assert command in text(admin, page)
    start_worker(alias, "w2")
    for page in (OVERVIEW, "/admin/gnlqueue/workerprocess/"):
        assert command not in text(admin, page)
