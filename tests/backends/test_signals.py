"""The signals of `django.tasks`, and what Django logs by them."""

import logging
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django's own tasks came with Django 6.0")

from django.tasks import task_backends
from django.tasks.signals import task_enqueued, task_finished, task_started

from gnlqueue.backends import GnlqueueBackend
from gnlqueue.testing import run_jobs
from tests.app import tasks as our_tasks
from tests.backends.conftest import Heard, on_sqlite, run_until_nothing_waits
from tests.backends.tasks import cancel_itself, fail, give


def test_signals(alias: str, heard: Heard) -> None:
    good, bad = give.enqueue(1), fail.enqueue("x")
    run_until_nothing_waits()

    assert sorted(f"{name} {status} {result.id}" for name, _, status, result in heard) == sorted(
        [
            f"enqueued READY {good.id}", f"started RUNNING {good.id}", f"finished SUCCESSFUL {good.id}",
            f"enqueued READY {bad.id}", f"started RUNNING {bad.id}", f"started RUNNING {bad.id}",
            f"finished FAILED {bad.id}",
        ]
    )  # fmt: skip
    assert {sender for _, sender, _, _ in heard} == {GnlqueueBackend}
    (finished,) = [result for name, _, _, result in heard if name == "finished" and result.id == good.id]
    assert finished.return_value == 1
    assert finished == give.get_result(good.id)


@on_sqlite
def test_a_task_that_was_cancelled_has_finished(alias: str, heard: Heard) -> None:
    cancel_itself.enqueue()
    run_jobs()
    assert heard.names() == ["enqueued READY", "started RUNNING", "finished FAILED"]


@on_sqlite
def test_our_own_tasks_send_only_our_own_signals(alias: str, heard: Heard) -> None:
    task_backends["default"]
    our_tasks.nothing.enqueue()
    our_tasks.give_up.enqueue()
    run_jobs()
    assert heard == []


@on_sqlite
def test_a_receiver_that_raises_loses_nothing(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    def raise_it(**kwargs: Any) -> None:
        raise LookupError("bad receiver")

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(raise_it)
    try:
        result = give.enqueue(1)
        run_jobs()
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(raise_it)
    result.refresh()
    assert result.return_value == 1
    assert caplog.text.count("LookupError: bad receiver") == 3


@on_sqlite
def test_django_logs_the_exception_or_nothing(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django.tasks")
    good, bad = give.enqueue(1), fail.enqueue("no paper")
    run_until_nothing_waits()

    records = [record for record in caplog.records if record.name == "django.tasks"]
    finished = {
        record.args[0]: record for record in records if "state=SUCC" in record.message or "=FAI" in record.message
    }
    assert finished[good.id].exc_info is None
    assert finished[bad.id].exc_info[0] is ValueError
    assert finished[bad.id].levelname == "ERROR"
    assert f"Task id={good.id} path=tests.backends.tasks.give enqueued backend=default" in caplog.messages
    assert f"Task id={good.id} path=tests.backends.tasks.give state=RUNNING" in caplog.messages
