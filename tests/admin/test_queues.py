"""Pausing and resuming queues, and the list of workers."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gnlqueue import queue
from gnlqueue.admin import queues
from gnlqueue.models import Job, OperatorAction, QueueState, WorkerProcess
from gnlqueue.worker.loop import Worker
from tests.admin.conftest import LogIn
from tests.admin.test_overview import claim, start_worker, text
from tests.durable.conftest import on_sqlite
from tests.worker.processes import until

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
    assert "The queue default is resumed." in page.content.decode()
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
    mine, other = claim(), claim(worker_id="stranger")
    said = text(admin, WORKERS)
    assert f"1 / 4 {mine.id} shop.pay" in said
    assert "w2 host, process 5 silent 1 h ago" in said
    assert f"{other.id} shop.pay default stranger" in said[said.index("Held by others") :]


def test_a_worker_is_silent_after_one_lease_of_its_own(alias: str, admin: Client) -> None:
    start_worker(alias, silent=200)
    assert " silent 3 min ago" in text(admin, WORKERS)
    WorkerProcess.objects.using(alias).update(lease_seconds=600)
    assert " live 3 min ago" in text(admin, WORKERS)
    job = queue.enqueue("shop.pay")
    assert "no worker runs" not in text(admin)
    assert "No worker is running" not in text(admin, f"/admin/gnlqueue/job/{job.pk}/change/")


def test_a_worker_tells_how_long_its_lease_is(alias: str) -> None:
    worker = Worker(["default"], lease=600, database=alias)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    rows = WorkerProcess.objects.using(alias).filter(worker_id=worker.worker_id)
    try:
        until(rows.exists, "the worker's row")
        assert rows.get().lease_seconds == 600
    finally:
        worker.stop()
        thread.join(10)


def test_what_is_not_written_down_is_not_done(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("no log")

    monkeypatch.setattr(queues, "record", fail)
    with pytest.raises(OSError, match="no log"):
        admin.post(QUEUES + "pause/", {"queue_name": "default"})
    assert not QueueState.objects.using(alias).filter(paused_at__isnull=False).exists()


@on_sqlite
def test_more_queues_than_are_shown(alias: str, admin: Client) -> None:
    now = timezone.now()
    Job.objects.using(alias).bulk_create(
        Job(task_name="shop.pay", queue_name=f"tenant{number:05}", run_at=now, enqueued_at=now)
        for number in range(2000)
    )
    for page in (QUEUES, "/admin/gnlqueue/overview/"):
        with CaptureQueriesContext(connections[alias]) as captured:
            said = text(admin, page)
        assert len(captured) < 40
        assert "tenant00099" in said
        assert "tenant00100" not in said
        assert "There are more than are shown here." in said


@on_sqlite
def test_a_worker_that_serves_very_many_queues(alias: str, admin: Client) -> None:
    start_worker(alias, queues=[f"tenant{number:05}" for number in range(2000)])
    queue.pause("zebra")
    with CaptureQueriesContext(connections[alias]) as captured:
        said = text(admin, QUEUES)
    assert len(captured) < 60
    assert "There are more than are shown here." in said
    assert "zebra paused" in said
