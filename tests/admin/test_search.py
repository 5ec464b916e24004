"""The search box, and what it finds."""

from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.utils.html import escape

from gnlqueue import queue
from gnlqueue.admin import search
from gnlqueue.finding import Argument
from gnlqueue.models import Job
from tests.app import tasks
from tests.queue.conftest import NOON, claimed, queue_alias


def criteria(text: str, *, may_see_payload: bool = True) -> dict[str, Any]:
    return search.parse(text, queue_alias(), may_see_payload=may_see_payload).criteria


def notes(text: str, *, may_see_payload: bool = True) -> list[str]:
    return search.parse(text, queue_alias(), may_see_payload=may_see_payload).notes


def found(client: Client, query: str) -> list[int]:
    """The numbers of the jobs that the list shows for a search."""
    response = client.get("/admin/gnlqueue/job/", {"q": query})
    assert response.status_code == 200
    return [job.pk for job in response.context["cl"].result_list]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("5", {"ids": (5,)}),
        ("id:5 7", {"ids": (5, 7)}),
        ("99999999999999999999", {"ids": ()}),
        ("9" * 5000, {"ids": ()}),
        ("receipt", {"task_contains": "receipt"}),
        ("task:receipt", {"task_contains": "receipt"}),
        ("worker:web-1", {"worker_contains": "web-1"}),
        ('key:"receipt: 7"', {"key": "receipt: 7"}),
        ("key:receipt:7", {"key": "receipt:7"}),
        ("error:-", {"errors": ("-",)}),
        ("error:shop.Declined", {"errors": ("shop.Declined", "builtins.shop.Declined")}),
        ("arg.order_id:5", {"arguments": (Argument("order_id", 5),)}),
        ('arg.order_id:"5"', {"arguments": (Argument("order_id", "5"),)}),
        ("arg.a:true arg.b:x:y", {"arguments": (Argument("a", True), Argument("b", "x:y"))}),
        ("arg.a:NaN", {"arguments": (Argument("a", "NaN"),)}),
        ("arg.a:1e999", {"arguments": (Argument("a", "1e999"),)}),
        ("arg.a:" + "[" * 100_000, {"arguments": (Argument("a", "[" * 100_000),)}),
        ("arg.a:{}", {"arguments": (Argument("a", "{}"),)}),
        ("shop.tasks:x", {"task_contains": "shop.tasks:x"}),
        ("a\0b", {"task_contains": "ab"}),
        ("::: '\"", {"task_contains": ":::"}),
    ],
)
def test_what_a_search_says(alias: str, text: str, expected: dict[str, Any]) -> None:
    assert criteria(text) == expected


def test_a_short_name_of_an_error_means_what_ended_with_it_of_late(alias: str) -> None:
    queue.fail(claimed(), TimeoutError("late"), final=True, now=NOON)
    queue.fail(claimed(), queue_error(), final=True, now=NOON)
    assert criteria("error:timeouterror") == {"errors": ("builtins.TimeoutError",)}
    assert criteria("error:builtins.TimeoutError") == {"errors": ("builtins.TimeoutError",)}
    assert criteria("error:time") == {"errors": ("builtins.TimeoutError",)}


def queue_error() -> Exception:
    return LookupError("nothing")


def test_arguments_are_not_searched_by_who_may_not_see_them(alias: str, settings: Any) -> None:
    assert criteria("arg.order_id:5 task:x", may_see_payload=False) == {"task_contains": "x"}
    assert "permission" in notes("arg.order_id:5", may_see_payload=False)[0]
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    assert criteria("arg.card:5") == {}
    assert "hidden" in notes("arg.card:5")[0]


@pytest.mark.parametrize("value", ["ä", "日本", "a/b", "a\\b", "a'b", "%", "0", "x" * 300])
def test_values_are_found_whatever_letters_they_have(alias: str, admin: Client, value: str) -> None:
    by_position, by_keyword = tasks.give.enqueue(value), tasks.give.enqueue(value=value)
    tasks.give.enqueue("other")
    assert found(admin, f"arg.value:{value}") == [by_keyword.pk, by_position.pk]


def test_arguments_are_found_by_keyword_by_position_as_number_and_as_text(alias: str, admin: Client) -> None:
    by_keyword = queue.enqueue("demo", kwargs={"value": 5})
    by_position = tasks.give.enqueue(5)
    as_text = queue.enqueue("demo", kwargs={"value": "5"})
    queue.enqueue("demo", [5], {"value": 6})
    queue.enqueue("demo", kwargs={"value": 55})
    assert found(admin, "arg.value:5") == [as_text.pk, by_position.pk, by_keyword.pk]
    if connections[alias].vendor != "mysql":  # MariaDB holds "5" and 5 for equal
        assert found(admin, 'arg.value:"5"') == [as_text.pk]


@pytest.mark.parametrize(
    "name", ["contains", "isnull", "in", "a__b", "pk", "a-b", "a.b", "ä", "$", "%s", "a'b", "a\\b"]
)
def test_names_that_django_takes_for_lookups_are_names(alias: str, admin: Client, name: str) -> None:
    job = queue.enqueue("demo", kwargs={name: "x"})
    of_django = Job.objects.using(alias).create(task_name="demo", kwargs={name: "x"}, run_at=NOON, enqueued_at=NOON)
    queue.enqueue("demo", kwargs={"other": "x"})
    assert found(admin, f"arg.{name}:x") == [of_django.pk, job.pk]


@pytest.mark.parametrize("name", ['a"b', '"', '"a"', "5", "-1", "1_0", "٣"])
def test_names_that_cannot_be_searched_for_are_refused(alias: str, admin: Client, name: str) -> None:
    job = queue.enqueue("demo", kwargs={name: "x"})
    assert criteria(f"task:demo arg.{name}:x") == {"task_contains": "demo"}
    page = admin.get("/admin/gnlqueue/job/", {"q": f"arg.{name}:x"})
    assert [each.pk for each in page.context["cl"].result_list] == [job.pk]
    assert f"“{escape(name)}” was left out" in page.content.decode()


def test_a_job_is_found_by_its_number_its_key_its_worker_and_its_task(alias: str, admin: Client) -> None:
    job = queue.enqueue("shop.receipt", idempotency_key="Receipt:7")
    other = queue.enqueue("shop.charge")
    held = queue.claim(worker_id="web-1")
    assert held is not None
    assert found(admin, str(other.pk)) == [other.pk]
    assert found(admin, "key:Receipt:7") == [job.pk]
    assert found(admin, "key:receipt:7") == []
    assert found(admin, "worker:WEB-1") == [held.id]
    assert found(admin, "receipt") == [job.pk]
    assert found(admin, f"{other.pk} receipt") == []


def test_the_last_failed_attempt_says_what_a_job_failed_of(alias: str, admin: Client) -> None:
    job = queue.fail(claimed(max_attempts=2), TimeoutError("late"), after=0, now=NOON)
    assert found(admin, "error:TimeoutError") == [job.pk]
    again = queue.claim(worker_id="w1", now=NOON)
    assert again is not None
    queue.fail(again, KeyError("x"), now=NOON)
    assert found(admin, "error:TimeoutError") == []
    assert found(admin, "error:KeyError") == [job.pk]
    assert found(admin, "error:-") == []
    assert found(admin, f"{job.pk} error:KeyError") == [job.pk]
    without = queue.fail(claimed(), "no use", final=True, now=NOON)
    assert Job.objects.using(alias).count() == 2
    assert found(admin, f"{without.pk} error:-") == [without.pk]
