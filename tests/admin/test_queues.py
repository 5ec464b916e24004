"""Pausing and resuming queues, and the list of workers."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from gnlqueue import queue
from gnlqueue.models import OperatorAction, QueueState
from tests.admin.conftest import LogIn
from tests.admin.test_overview import claim, start_worker, text

QUEUES = "/admin/gnlqueue/queuestate/"
WORKERS = "/admin/gnlqueue/workerprocess/"


def test_a_queue_is_paused_and_resumed(alias: str, log_in: LogIn) -> None:
    ann = log_in("view_queuestate", "pause_queuestate")
    queue.enqueue("shop.pay")
    page = ann.post(QUEUES + "pause/", {"queue_name": "default"}, follow=True)
    assert "The queue default is paused" in page.content.decode()
    assert queue.claim(worker_id="w1") is None
    assert "default paused" in text(ann, QUEUES)

    page = ann.post(QUEUES + "resume/", {"queue_name": "default"}, follow=True)
    assert "The queue default goes on." in page.content.decode()
    assert queue.claim(worker_id="w1") is not None

    log = OperatorAction.objects.using(alias).order_by("id")
    assert [(row.by, row.verb, row.target, row.done) for row in log] == [
        ("ann", "pause", "queue default", 1),
        ("ann", "resume", "queue default", 1),
    ]
    assert all(row.at is not None and row.finished_at is not None for row in log)


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_who_may_only_look_has_no_button_and_is_refused(alias: str, log_in: LogIn, verb: str) -> None:
    bob = log_in("view_queuestate", name="bob")
    assert "/pause/" not in bob.get(QUEUES).content.decode()
    assert bob.post(f"{QUEUES}{verb}/", {"queue_name": "default"}).status_code == 403
    assert not QueueState.objects.using(alias).exists()
    assert not OperatorAction.objects.using(alias).exists()


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_looking_changes_nothing(alias: str, admin: Client, verb: str) -> None:
    assert admin.get(f"{QUEUES}{verb}/?queue_name=default").status_code == 405
    assert not QueueState.objects.using(alias).exists()


def test_a_post_without_the_page_s_token_is_refused(alias: str, admin: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = admin.cookies
    assert strict.post(QUEUES + "pause/", {"queue_name": "default"}).status_code == 403


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("values", [{}, {"queue_name": ""}, {"queue_name": "No Queue"}, {"queue_name": "x" * 100}])
def test_what_is_no_queue_is_refused(alias: str, admin: Client, values: dict[str, Any]) -> None:
    assert admin.post(QUEUES + "pause/", values).status_code == 400


@pytest.mark.parametrize("page", [QUEUES, WORKERS])
def test_who_may_not_look(alias: str, log_in: LogIn, page: str) -> None:
    assert log_in("view_job").get(page).status_code == 403


def test_queues_are_listed_though_they_have_no_row(alias: str, admin: Client) -> None:
    queue.enqueue("shop.pay", queue_name="elsewhere", run_after=timedelta(days=1))
    said = text(admin, QUEUES)
    assert "default no worker" in said
    assert "elsewhere no worker" in said


def test_workers_and_what_they_work_on(alias: str, admin: Client) -> None:
    assert "Start one: python manage.py runworker" in text(admin, WORKERS)
    start_worker(alias)
    start_worker(alias, "w2", silent=3600)
    for _ in range(2):
        queue.enqueue("shop.pay")
    mine, other = claim(alias), claim(alias, worker_id="stranger")
    said = text(admin, WORKERS)
    assert f"1 / 4 {mine.id} shop.pay" in said
    assert "w2 host, process 5 silent 1 h ago" in said
    assert f"{other.id} shop.pay default stranger" in said[said.index("Held by others") :]


def test_a_worker_is_silent_after_one_lease(alias: str, admin: Client, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "LEASE_SECONDS": 300}
    start_worker(alias, silent=200)
    assert "live" in text(admin, WORKERS)
    settings.GNLQUEUE = {**settings.GNLQUEUE, "LEASE_SECONDS": 30}
    assert "silent" in text(admin, WORKERS)
