"""What a job is to Django: its result."""

from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django's own tasks came with Django 6.0")

from asgiref.sync import async_to_sync
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch

import gnlqueue
from gnlqueue import queue
from gnlqueue.models import Job, JobStatus
from gnlqueue.testing import enqueued, run_jobs
from tests.app import tasks as our_tasks
from tests.backends.conftest import on_sqlite, use
from tests.backends.tasks import cancel_itself, fail, give, return_bytes


@on_sqlite
def test_results_become_json_as_django_does_it(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    results = [return_bytes.enqueue(size) for size in (1, 0)]
    run_jobs()

    assert [return_bytes.get_result(result.id).status for result in results] == ["SUCCESSFUL", "SUCCESSFUL"]
    assert [return_bytes.get_result(result.id).return_value for result in results] == [{"list": ["bytes"]}, None]
    assert "is done, but its result was not stored: result is a builtins.object" in caplog.text


@on_sqlite
def test_cancelled_tasks_have_failed(alias: str) -> None:
    waiting, running = give.enqueue(1), cancel_itself.enqueue()
    queue.cancel(int(waiting.id))
    run_jobs()

    for result, attempts in ((waiting, 0), (running, 1)):
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, attempts)
        assert result.errors[0].exception_class is gnlqueue.JobCancelled
        assert result.finished_at is not None


@pytest.mark.parametrize(
    ("status", "expected"),
    [("scheduled", "READY"), ("ready", "READY"), ("blocked", "READY"), ("in_progress", "RUNNING"),
     ("done", "SUCCESSFUL"), ("dead", "FAILED"), ("cancelled", "FAILED")],
)  # fmt: skip
@on_sqlite
def test_every_status_of_ours_is_one_of_djangos(alias: str, status: str, expected: str) -> None:
    result = give.enqueue(1)
    Job.objects.using(alias).update(status=status, last_error="a human said so")
    result.refresh()
    assert result.status == expected
    assert len(result.errors) == (expected == "FAILED")
    assert set(JobStatus.values) == {"scheduled", "ready", "blocked", "in_progress", "done", "dead", "cancelled"}


@on_sqlite
def test_an_attempt_whose_worker_died_is_an_error_without_exception(alias: str) -> None:
    result = give.enqueue("in the end")
    claimed = queue.claim(worker_id="gone", lease=60)
    queue.fail(claimed, "The worker gone died or lost contact.", after=0)

    run_jobs()
    result.refresh()

    assert (result.return_value, result.worker_ids[0], result.attempts) == ("in the end", "gone", 2)
    assert result.errors[0].exception_class is gnlqueue.GnlqueueError
    assert result.errors[0].traceback == "The worker gone died or lost contact."


@pytest.mark.parametrize(
    "id",
    ["", "0", "-1", "01", "1.0", "٣", " 1", "x" * 5000, "9" * 5000, str(2**63), str(2**63 - 1), 1],
    ids=lambda id: repr(id)[:21],
)
@on_sqlite
def test_ids_that_no_result_has(alias: str, id: Any) -> None:
    give.enqueue(1)
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(id)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(give.aget_result)(id)


@on_sqlite
def test_results_of_others(alias: str, settings: Any) -> None:
    use(settings, default={}, other={"OPTIONS": {"max_attempts": 1}})
    result, ours = give.using(backend="other").enqueue(1), our_tasks.nothing.enqueue()

    assert (result.backend, result.task.backend) == ("other", "other")
    assert task_backends["other"].get_result(result.id) == result
    for id in (result.id, str(ours.pk)):
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(id)
    with pytest.raises(TaskResultMismatch):
        fail.using(backend="other").get_result(result.id)
    assert [job.max_attempts for job in enqueued(give)] == [1]


@on_sqlite
def test_a_backend_that_is_not_there_any_more(alias: str, settings: Any) -> None:
    use(settings, default={}, old={"QUEUES": []})
    give.enqueue("declared for the default one")
    result = give.using(backend="old", queue_name="older").enqueue(1)
    use(settings, default={})

    run_jobs(["older"])

    assert give.get_result(result.id).return_value == 1
    assert give.get_result(result.id).task.queue_name == "default"  # no backend has the queue any more
