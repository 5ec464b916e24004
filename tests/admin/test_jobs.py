"""The list of jobs: filters, pages, order, and what it shows to whom."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db.backends.utils import CursorWrapper
from django.test import Client

from gnlqueue import queue
from gnlqueue.admin.jobs import JobAdmin
from gnlqueue.finding import pages
from gnlqueue.models import Job, JobStatus
from tests.admin.conftest import LogIn
from tests.admin.pages import look
from tests.app import tasks
from tests.durable.conftest import on_sqlite
from tests.queue.conftest import NOON, after, claimed, dead
from tests.queue.test_plans import analyze, cursor, fill  # noqa: F401  cursor is a fixture

JOBS = "/admin/gnlqueue/job/"


def listed(client: Client, query: str = "") -> list[int]:
    """The numbers of the jobs that a page shows."""
    return [job.pk for job in changelist(client, query).result_list]


def changelist(client: Client, query: str = "") -> Any:
    response = client.get(f"{JOBS}{query}")
    assert response.status_code == 200, response
    return response.context["cl"]


def some(number: int, **options: Any) -> list[int]:
    """The numbers of new jobs, newest first."""
    return [queue.enqueue("demo", now=NOON, **options).pk for _ in range(number)][::-1]


@pytest.fixture
def five_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 5)


@pytest.mark.usefixtures("five_a_page")
def test_one_pages_through_all_jobs_and_back(alias: str, admin: Client) -> None:
    ids = some(12)
    seen, urls, url = [], [], ""
    while True:
        page = changelist(admin, url)
        seen.append([job.pk for job in page.result_list])
        urls.append(url)
        if not page.next_page:
            break
        url = page.next_page
    assert seen == [ids[:5], ids[5:10], ids[10:]]
    back = changelist(admin, page.previous_page)
    assert [job.pk for job in back.result_list] == ids[5:10]
    assert listed(admin, back.previous_page) == ids[:5]
    assert listed(admin, back.next_page) == ids[10:]


@pytest.mark.usefixtures("five_a_page")
@pytest.mark.parametrize("status", JobStatus)
def test_one_pages_through_each_status(alias: str, admin: Client, status: JobStatus) -> None:
    ids = set(some(7, queue_name="b") + some(2, queue_name="a") + some(2, queue_name="b", priority=5))
    rows = Job.objects.using(alias)
    rows.update(status=status, finished_at=NOON if status in ("done", "dead", "cancelled") else None)
    seen: list[int] = []
    url = f"?status={status}"
    while url:
        page = changelist(admin, url)
        assert len(page.result_list) <= 5
        seen += [job.pk for job in page.result_list]
        url = page.next_page
    assert len(seen) == len(ids)
    assert set(seen) == ids
    if status == JobStatus.READY:  # as workers will claim them
        assert [rows.get(pk=id).queue_name for id in seen] == ["a"] * 2 + ["b"] * 9
        assert [rows.get(pk=id).priority for id in seen] == [0] * 2 + [5] * 2 + [0] * 7


def test_the_order_can_be_turned_around(alias: str, admin: Client) -> None:
    ids = some(3)
    columns = list(changelist(admin).list_display)
    number = columns.index("number")
    assert listed(admin, f"?o={number}") == ids[::-1]
    assert listed(admin, f"?o=-{number}") == ids
    assert listed(admin, "?o=99.x") == ids
    assert listed(admin, f"?status=ready&o=-{columns.index('queue')}") == ids


def test_filters_hold_together(alias: str, admin: Client) -> None:
    mine = queue.enqueue("shop.charge", queue_name="billing").pk
    queue.enqueue("shop.charge")
    queue.enqueue("shop.refund", queue_name="billing")
    assert listed(admin, "?queue_name=billing&task_name=shop.charge") == [mine]
    assert listed(admin, "?queue_name__exact=billing&task_name=shop.charge&status=ready") == [mine]
    assert listed(admin, "?queue_name=billing&task_name=shop.charge&status=done") == []


def test_time_ranges(alias: str, admin: Client) -> None:
    done = claimed(now=after(days=5))
    queue.complete(done, now=after(days=6))
    early, late = queue.enqueue("demo", now=NOON).pk, queue.enqueue("demo", now=after(days=3)).pk
    first_days = "enqueued_at__range__gte_0=2029-12-31&enqueued_at__range__lte_0=2030-01-02"
    assert listed(admin, f"?{first_days}") == [early]
    assert listed(admin, f"?{first_days.replace('enqueued', 'run')}") == [early]
    assert listed(admin, "?run_at__range__gte_0=2030-01-01&run_at__range__gte_1=12:00:01") == [late, done.id]
    assert listed(admin, "?finished_at__range__gte_0=2030-01-02") == [done.id]
    assert listed(admin, "?status=done&finished_at__range__lte_0=2030-01-02") == []
    for day in ("0001-01-01", "9999-12-31"):
        for end in ("gte", "lte"):
            for column in ("enqueued_at", "run_at", "finished_at"):
                assert listed(admin, f"?{column}__range__{end}_0={day}") in ([], [late, early, done.id], [done.id])
    assert "Enter a valid date" in look(admin, f"{JOBS}?finished_at__range__gte_0=yesterday")


def test_a_filter_that_there_is_not_leads_back_to_the_list(alias: str, admin: Client) -> None:
    assert admin.get(f"{JOBS}?nonsense=1").status_code == 302
    assert admin.get(f"{JOBS}?status=nonsense").status_code == 200
    too_early, too_late = "0001-01-01T00:00:00%2B23:59~1", "9999-12-31T23:59:59-23:59~1"
    for place in ("nonsense", "1~2", "99999999999999999999", "%00", "", "-", too_early, too_late):
        assert admin.get(f"{JOBS}?after={place}").status_code == 200
        assert admin.get(f"{JOBS}?status=dead&before={place}").status_code == 200


def test_where_no_index_serves_the_page_says_how_far_it_looked(
    alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages.look, "__kwdefaults__", {"at_most": 10})
    wanted = queue.enqueue("rare", now=NOON).pk
    some(25)
    page = changelist(admin, "?task_name=rare")
    assert (page.result_list, page.page.looked_at, page.ends_early) == ([], 10, True)
    content = look(admin, f"{JOBS}?task_name=rare")
    assert "Look further back" in content
    assert "2030-01-01 12:00:00" in content
    second = changelist(admin, page.next_page)
    assert second.result_list == []
    third = changelist(admin, second.next_page)
    assert [job.pk for job in third.result_list] == [wanted]
    assert not third.next_page


def test_counts_end_at_a_cap(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnlqueue.admin.changelist.CAP", 3)
    some(3)
    assert str(changelist(admin).count) == "3"
    some(2)
    assert str(changelist(admin).count) == "3+"


def test_beyond_the_cap_the_database_says_about_how_many(
    alias: str,
    admin: Client,
    monkeypatch: pytest.MonkeyPatch,
    cursor: CursorWrapper,  # noqa: F811
) -> None:
    monkeypatch.setattr("gnlqueue.admin.changelist.CAP", 100)
    fill(cursor, 1_000, JobStatus.READY)
    fill(cursor, 1_000, JobStatus.DEAD, finished_at="'2026-01-01 12:00:00'")
    analyze(cursor)
    asked = {"": 2_000, "?status=ready&queue_name=default": 1_000}
    for query, number in asked.items():
        about = changelist(admin, query).count.estimate
        assert about is None if alias == "default" else abs(about - number) < number / 10, query
    assert re.search(r"100\+ rows \(about \d,\d00\)", look(admin, JOBS)) or alias == "default"


def test_the_list_reads_no_payload(alias: str, admin: Client) -> None:
    queue.enqueue("demo", ["secret"], {"card": "secret"})
    (job,) = changelist(admin).result_list
    assert {"args", "kwargs", "result", "last_error"} <= job.get_deferred_fields()
    assert "secret" not in admin.get(JOBS).content.decode()


@on_sqlite
def test_an_empty_list_says_what_to_do(alias: str, admin: Client) -> None:
    assert "manage.py runworker" in look(admin, JOBS)
    assert "No job matches" in look(admin, f"{JOBS}?status=dead")


@on_sqlite
def test_hostile_text_is_shown_and_not_run(alias: str, admin: Client) -> None:
    job = dead()
    Job.objects.using(alias).filter(pk=job.pk).update(
        task_name="<script>alert(1)</script>", queue_name="\"'><b>", worker_id="\u202egnp", last_error="<img onerror=x>"
    )
    for url in (JOBS, "/admin/gnlqueue/deadjob/", f"{JOBS}bulk/?verb=retry", f"{JOBS}{job.pk}/verb/cancel/"):
        content = admin.get(url).content.decode()
        assert "<script>alert" not in content
        assert "<img onerror" not in content
        assert "\"'><b>" not in content
        assert "\u202e" not in content


@on_sqlite
def test_who_may_only_view_sees_no_action(alias: str, log_in: LogIn) -> None:
    some(2)
    content = log_in("view_job").get(JOBS).content.decode()
    assert 'name="action"' not in content
    assert "All jobs that match" not in content
    assert log_in(name="bob").get(JOBS).status_code == 403


@on_sqlite
def test_actions_are_those_that_one_may(alias: str, log_in: LogIn) -> None:
    some(2)
    content = log_in("view_job", "cancel_job").get(JOBS).content.decode()
    assert '<option value="cancel">' in content
    assert '<option value="retry">' not in content
    assert "delete_selected" not in content


@on_sqlite
def test_who_may_not_do_it_gets_403(alias: str, log_in: LogIn) -> None:
    """Django would show the list again, and say nothing."""
    job = queue.enqueue("demo")
    posted = {"_selected_action": [job.pk], "index": "0"}
    viewer, canceller = log_in("view_job", "view_deadjob"), log_in("view_job", "cancel_job", name="bob")
    for address in (JOBS, "/admin/gnlqueue/deadjob/"):
        for data in ({}, posted, {**posted, "action": "cancel"}):
            assert viewer.post(address, data).status_code == 403
    assert canceller.post(JOBS, {**posted, "action": "reschedule"}).status_code == 403
    assert canceller.post(JOBS, {**posted, "action": ""}).status_code in {200, 302}
    assert canceller.post(JOBS, {**posted, "action": "cancel"}).status_code == 200


def test_a_long_error_is_cut_and_said_to_be(alias: str, admin: Client) -> None:
    queue.fail(claimed(), "x" * 1_500, final=True, now=NOON)
    assert f"{'x' * 120} … 1,380 more characters" in look(admin, JOBS)


@on_sqlite
def test_what_is_offered_for_all_that_match_applies_to_them(alias: str, admin: Client) -> None:
    queue.enqueue("demo", run_after=timedelta(days=1))
    dead()
    assert [verb.name for verb in changelist(admin).bulk_verbs] == ["retry", "run_now", "reschedule", "cancel"]
    assert [verb.name for verb in changelist(admin, "?status=scheduled").bulk_verbs] == [
        "run_now",
        "reschedule",
        "cancel",
    ]
    assert [verb.name for verb in changelist(admin, "?status=dead").bulk_verbs] == ["retry", "cancel"]


@on_sqlite
def test_a_job_s_payload_is_a_file_for_who_may_see_it(alias: str, log_in: LogIn, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    job = queue.enqueue(tasks.give.name, [{"card": 471108154711, "id": 1}], {"card": 471108154711})
    url = f"{JOBS}{job.pk}/payload/"
    assert log_in("view_job", name="bob").get(url).status_code == 404
    response = log_in("view_job", "view_job_payload").get(url)
    assert response.headers["Content-Disposition"] == f'attachment; filename="job-{job.pk}.json"'
    assert "no-store" in response.headers["Cache-Control"]
    content = json.loads(response.content)
    assert content["args"] == [{"card": "***", "id": 1}]
    assert content["kwargs"] == {"card": "***"}
    assert b"471108154711" not in response.content


@on_sqlite
def test_the_choices_never_come_from_the_jobs(alias: str, admin: Client) -> None:
    queue.enqueue("nowhere.registered", queue_name="unknown")
    page = changelist(admin)
    choices = [str(value) for spec in page.filter_specs for value, _ in getattr(spec, "lookup_choices", ())]
    assert "nowhere.registered" not in choices
    assert tasks.give.name in choices
    page = changelist(admin, "?task_name=nowhere.registered&queue_name=unknown")
    choices = [str(value) for spec in page.filter_specs for value, _ in getattr(spec, "lookup_choices", ())]
    assert {"nowhere.registered", "unknown"} <= set(choices)


def test_a_job_that_is_gone_leads_to_the_list(alias: str, admin: Client) -> None:
    for url in (f"{JOBS}1/change/", f"{JOBS}1/verb/retry/", f"{JOBS}99999999999999999999999/verb/retry/"):
        response = admin.get(url)
        assert (response.status_code, response.headers["Location"]) == (302, JOBS)
    assert admin.get(f"{JOBS}99999999999999999999999/payload/").status_code == 404


def test_jobs_of_one_time_are_all_listed(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three statuses in the order of the time at which they finished."""
    monkeypatch.setattr(JobAdmin, "list_per_page", 4)
    ids = some(12)
    for place, id in enumerate(ids):
        status = ("done", "dead", "cancelled")[place % 3]
        at = NOON - timedelta(seconds=place // 2)
        Job.objects.using(alias).filter(pk=id).update(status=status, finished_at=at)
    seen: list[int] = []
    url = "?finished_at__range__gte_0=2029-12-01"
    while url:
        page = changelist(admin, url)
        seen += [job.pk for job in page.result_list]
        url = page.next_page
    assert sorted(seen, reverse=True) == ids
    times = [Job.objects.using(alias).get(pk=id).finished_at for id in seen]
    assert times == sorted(times, reverse=True)  # type: ignore[type-var]
