"""Dead letters, by task and error; and the operator log."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from gnlqueue import queue
from gnlqueue.admin import dead_letters
from gnlqueue.models import DeadJob, Job, JobStatus, OperatorAction
from tests.admin.conftest import LogIn
from tests.admin.pages import look, messages, text_of
from tests.admin.test_bulk import ask, confirm
from tests.durable.conftest import on_sqlite
from tests.queue.conftest import NOON, claimed

DEAD = "/admin/gnlqueue/deadjob/"
#: The cut-off of a bulk action goes by the database's clock.
PAST = datetime(2020, 1, 1, tzinfo=UTC)

LOG = "/admin/gnlqueue/operatoraction/"


def died_of(error: str | Exception, task_name: str = "demo", minutes: int = 0) -> int:
    """The number of a job that died of this, so many minutes after the beginning of 2020."""
    job = queue.fail(claimed(now=PAST), error, final=True, now=PAST + timedelta(minutes=minutes))
    Job.objects.using(job._state.db).filter(pk=job.pk).update(task_name=task_name)
    return job.pk


def groups(client: Client) -> Any:
    response = client.get(DEAD)
    assert response.status_code == 200
    return response.context["groups"]


def test_jobs_are_grouped_by_task_and_error(alias: str, admin: Client) -> None:
    for minute in range(3):
        died_of(TimeoutError("late"), "charge", minute)
    died_of("no use", "charge", 20)
    died_of(TimeoutError("late"), "refund", 10)
    found = groups(admin)
    assert [(each.task_name, each.error, each.count) for each in found.groups] == [
        ("charge", "builtins.TimeoutError", 3),
        ("charge", "", 1),
        ("refund", "builtins.TimeoutError", 1),
    ]
    largest = found.groups[0]
    assert (largest.first, largest.last) == (PAST, PAST + timedelta(minutes=2))
    assert sum(largest.per_bar) == 3
    assert largest.sample == "TimeoutError: late"
    assert (found.of, found.is_capped) == (5, False)


def test_a_group_leads_to_its_jobs_and_to_its_verbs(alias: str, admin: Client) -> None:
    mine = died_of(TimeoutError("late"), "charge")
    killed = died_of("no use", "charge")
    died_of(KeyError("x"), "charge")
    by_error = {each.error: each for each in groups(admin).groups}
    for error, id in (("builtins.TimeoutError", mine), ("", killed)):
        page = admin.get(f"{DEAD}?{by_error[error].jobs}")
        assert [job.pk for job in page.context["cl"].result_list] == [id]
        assert page.context["groups"] is None
        asked = admin.get("/admin/gnlqueue/job/bulk/", {"verb": "retry", "criteria": by_error[error].criteria})
        assert asked.context["preview"].ids == [id]


def test_a_trend_is_told_in_words(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timezone, "now", lambda: PAST + timedelta(hours=30))
    for minute in (0, 610, 620, 1440):
        died_of(TimeoutError("late"), "charge", minute)
    died_of("no use", "charge", 1440)
    assert [each.trend for each in groups(admin).groups] == [
        "4 jobs died, the first 1 d ago, the last 6 h ago; the peak was 19 h ago: 2 in 1 h.",
        "1 job died 6 h ago.",
    ]
    assert 'role="img" aria-label="1 job died 6 h ago."' in admin.get(DEAD).content.decode()


def test_groups_are_of_the_newest(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "CAP", 2)
    died_of("old", "old", 0)
    died_of("new", "new", 1)
    died_of("new", "new", 2)
    found = groups(admin)
    assert [(each.task_name, each.count) for each in found.groups] == [("new", 2)]
    assert found.is_capped
    assert "The newest 2 dead jobs" in look(admin, DEAD)


def test_only_dead_jobs_are_listed_whatever_one_asks_for(alias: str, admin: Client) -> None:
    id = died_of("no use")
    queue.enqueue("demo")
    assert [job.pk for job in admin.get(f"{DEAD}?q=demo").context["cl"].result_list] == [id]
    assert admin.get(f"{DEAD}?status=ready").status_code == 302
    assert admin.get(f"{DEAD}{id}/change/").headers["Location"] == f"/admin/gnlqueue/job/{id}/change/"


def test_the_ticked_ones_are_retried(alias: str, admin: Client) -> None:
    id = died_of("no use")
    died_of("no use")
    page = admin.get(DEAD).content.decode()
    assert '<option value="retry">' in page
    assert '<option value="reschedule">' not in page
    asked = admin.post(DEAD, {"action": "retry", "_selected_action": [id], "index": "0"})
    token = asked.context["token"]
    admin.post("/admin/gnlqueue/job/bulk/", {"token": token})
    assert queue.get(id).status == JobStatus.READY
    assert DeadJob.objects.using(alias).filter(status=JobStatus.DEAD).count() == 1


def test_who_may_only_view_sees_no_verb(alias: str, log_in: LogIn) -> None:
    died_of("no use")
    client = log_in("view_deadjob")
    assert "What died of what" in look(client, DEAD)
    assert "job/bulk/" not in client.get(DEAD).content.decode()
    assert log_in("view_job", name="bob").get(DEAD).status_code == 403


def test_nothing_is_dead(alias: str, admin: Client) -> None:
    assert "No job is dead" in look(admin, DEAD)


def act(alias: str, number: int, **fields: Any) -> None:
    for place in range(number):
        OperatorAction.objects.using(alias).create(
            **{"at": NOON, "by": "ann", "verb": "retry", "target": f"job {place}", **fields}
        )


def test_the_log_is_paged_and_searched(alias: str, admin: Client) -> None:
    act(alias, 60, finished_at=NOON)
    act(alias, 1, by="bob", verb="cancel", job_id=7, why="the customer called")
    page = admin.get(LOG).context["cl"]
    assert len(page.result_list) == 50
    assert page.result_list[0].by == "bob"
    assert len(admin.get(LOG + page.next_page).context["cl"].result_list) == 11
    for query in ("?verb=cancel", "?q=bob", "?q=customer+bob", "?q=7"):
        found = admin.get(LOG + query).context["cl"].result_list
        assert "bob" in [action.by for action in found], query
    assert admin.get(LOG + "?q=nobody").context["cl"].result_list == []


def test_the_log_hides_searched_arguments_from_who_may_not_see_them(alias: str, log_in: LogIn, admin: Client) -> None:
    act(alias, 1, where={"filter": {"arguments": [["card", "visa-4711"]]}})
    act(alias, 1, where={"filter": {"of another version": 1, "arguments": [["card", "visa-4711"]]}})
    assert "visa-4711" in look(admin, LOG)
    page = look(log_in("view_operatoraction"), LOG)
    assert "visa-4711" not in page
    assert "argument card" in page
    assert "of another version" in page


def test_nobody_writes_the_log_by_hand(alias: str, admin: Client) -> None:
    act(alias, 1)
    (action,) = OperatorAction.objects.using(alias)
    assert admin.post(f"{LOG}add/").status_code == 403
    assert admin.post(f"{LOG}{action.pk}/delete/", {"post": "yes"}).status_code == 403
    assert admin.get(f"{LOG}{action.pk}/change/").status_code == 302


@on_sqlite
def test_the_log_shows_whole_texts(alias: str, admin: Client) -> None:
    where = {"filter": {"task_contains": "t" * 3_000, "arguments": [["a" * 300, "v" * 300]]}}
    act(alias, 1, by="b" * 200, target="d" * 200, why="w" * 2_000, where=where)
    page = look(admin, LOG)
    for text in ("b" * 200, "d" * 200, "w" * 2_000, "t" * 3_000, "a" * 300, "v" * 300):
        assert text in page
    assert "more character" not in page


@on_sqlite
def test_whole_texts_of_a_filter_are_shown_before_it_is_used(alias: str, admin: Client) -> None:
    Job.objects.filter(pk=died_of("no use")).update(kwargs={"n" * 300: "v" * 300})
    page = text_of(ask(admin, arguments=[["n" * 300, "v" * 300]]).content.decode())
    assert "n" * 300 in page
    assert "v" * 300 in page


def test_an_empty_log(alias: str, admin: Client) -> None:
    assert "Nobody has done anything yet" in look(admin, LOG)


def test_links_of_a_group_carry_strange_names(alias: str, admin: Client) -> None:
    died_of("no use", "a&b=c #%\"'<ü>")
    (each,) = groups(admin).groups
    assert parse_qs(urlsplit("?" + each.jobs).query)["task_name"] == ["a&b=c #%\"'<ü>"]
    assert len(admin.get(f"{DEAD}?{each.jobs}").context["cl"].result_list) == 1


def test_a_group_is_cancelled_to_its_end(alias: str, admin: Client) -> None:
    mine = [died_of(TimeoutError("late"), "charge") for _ in range(3)]
    other = died_of(KeyError("x"), "charge")
    page = admin.get(DEAD)
    buttons = re.findall(r'<a class="button" href="([^"]+)">Cancel all</a>', page.content.decode())
    assert len(buttons) == 2
    addresses = [address for address in map(unescape, buttons) if "TimeoutError" in address]
    asked = admin.get(addresses[0])
    assert asked.context["preview"].ids == sorted(mine, reverse=True)
    response = confirm(admin, asked, next=asked.context["back"])
    assert response.redirect_chain == [(DEAD, 302)]
    assert "3 jobs were changed." in messages(response)
    statuses = {id: queue.get(id).status for id in (*mine, other)}
    assert statuses == {**dict.fromkeys(mine, JobStatus.CANCELLED), other: JobStatus.DEAD}
    assert [(each.error, each.count) for each in groups(admin).groups] == [("builtins.KeyError", 1)]
