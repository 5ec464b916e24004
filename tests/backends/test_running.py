"""Django's own tasks as our jobs: what `django.tasks` promises, on every database."""

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django's own tasks came with Django 6.0")

from asgiref.sync import async_to_sync
from django.db import transaction
from django.tasks import TaskResult, TaskResultStatus, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.utils import timezone

import gnlqueue
from gnlqueue import queue, registry
from gnlqueue.backends import GnlqueueBackend
from gnlqueue.testing import enqueued, run_jobs
from gnlqueue.worker import Worker
from tests.backends.conftest import Heard, on_sqlite, run_until_nothing_waits, use
from tests.backends.tasks import afail_first, fail, fail_first, give, interrupt, leave, take_step


def test_a_task_runs_and_its_result_is_there(alias: str) -> None:
    result = give.enqueue({"a": [1, "naïve"]})
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 0, False)
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    (job,) = enqueued(give)
    assert (job.task_name, str(job.pk)) == ("tests.backends.tasks.give", result.id)
    assert (job.options, job.max_attempts, job.priority) == ({"backend": "default"}, 2, 0)
    assert give.get_result(result.id) == result
    with pytest.raises(ValueError, match="has not finished yet"):
        result.return_value  # noqa: B018

    worker = Worker()
    assert worker.run_once() == job
    result.refresh()

    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, {"a": [1, "naïve"]})
    assert (result.attempts, result.worker_ids, result.errors) == (1, [worker.worker_id], [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert result.started_at.tzinfo is not None
    assert (result.args, result.kwargs, result.backend) == ([{"a": [1, "naïve"]}], {}, "default")


def test_a_task_that_fails_is_ready_again_then_failed(alias: str) -> None:
    result = fail.enqueue(message="no paper")

    run_jobs()
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 1, False)
    assert result.errors[0].exception_class is ValueError
    assert fail.get_result(result.id).task.run_after > result.last_attempted_at

    run_until_nothing_waits()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)
    assert result.errors[1].traceback.endswith("ValueError: no paper\n")
    assert "in fail" in result.errors[1].traceback
    assert result.started_at < result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018


def test_the_context_is_djangos(alias: str) -> None:
    result = fail_first.enqueue(1)

    run_until_nothing_waits()
    result.refresh()

    assert result.return_value == [2, result.id, "RUNNING", 1, 2, [1]]
    assert result.attempts == 2


def test_async(alias: str) -> None:
    result = afail_first.enqueue(how_often=1)

    run_until_nothing_waits()
    result.refresh()

    assert result.return_value == [2, "RUNNING"]


@on_sqlite
def test_async_on_the_worker_s_event_loop(alias: str, heard: Heard) -> None:
    result = afail_first.enqueue(0)

    Worker(drain=True).run()
    result.refresh()

    assert result.return_value == [1, "RUNNING"]
    assert heard.names() == ["enqueued READY", "started RUNNING", "finished SUCCESSFUL"]


def test_enqueueing_and_asking_from_asynchronous_code(alias: str) -> None:
    async def enqueue_and_ask() -> TaskResult:
        result = await give.aenqueue(3)
        assert await give.aget_result(result.id) == result
        return result

    result = async_to_sync(enqueue_and_ask)()
    run_jobs()
    async_to_sync(result.arefresh)()

    assert result.return_value == 3


def test_a_task_commits_and_rolls_back_with_the_transaction(alias: str) -> None:
    with transaction.atomic(alias):
        kept = give.enqueue(1)
    with pytest.raises(RuntimeError), transaction.atomic(alias):  # noqa: PT012  the enqueue belongs in there
        lost = give.enqueue(2)
        raise RuntimeError

    assert [str(job.pk) for job in enqueued()] == [kept.id]
    with pytest.raises(TaskResultDoesNotExist):
        give.get_result(lost.id)


def test_a_deferred_task(alias: str) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = give.using(run_after=later).enqueue("later")

    assert result.task.run_after == later
    assert give.get_result(result.id).task.run_after == later
    assert give.get_result(result.id).status == TaskResultStatus.READY
    assert run_jobs() == []
    queue.reschedule(int(result.id), timedelta())
    assert [job.result for job in run_jobs()] == ["later"]


def test_priorities(alias: str) -> None:
    for priority in (0, -100, 100, 50):
        give.using(priority=priority).enqueue(priority)

    assert [job.result for job in run_jobs()] == [100, 50, 0, -100]
    assert fail_first.enqueue(0).task.priority == 7
    assert [job.priority for job in enqueued()] == [7]


@on_sqlite
def test_queues(alias: str, settings: Any) -> None:
    use(settings, default={"QUEUES": ["default", "emails"]})
    result = give.using(queue_name="emails").enqueue(1)

    assert give.get_result(result.id).task.queue_name == "emails"
    assert [job.queue_name for job in run_jobs(["emails"])] == ["emails"]
    assert "emails" in registry.default_queues()
    with pytest.raises(InvalidTask, match="Queue 'slow' is not valid"):
        give.using(queue_name="slow")


@on_sqlite
def test_any_queue_is_one_that_we_can_name(alias: str, settings: Any) -> None:
    use(settings, default={"QUEUES": []})
    assert give.using(queue_name="slow").enqueue().task.queue_name == "slow"
    with pytest.raises(InvalidTask, match="'Emails & more' is not a queue name"):
        give.using(queue_name="Emails & more")


@on_sqlite
def test_arguments_become_json_as_django_does_it(alias: str) -> None:
    result = give.enqueue(value=(1, b"two", {"three": (3,)}))
    assert (result.args, result.kwargs) == ([], {"value": [1, "two", {"three": [3]}]})
    assert result == give.get_result(result.id)
    for refused, error in (
        (object(), TypeError),
        (float("nan"), gnlqueue.PayloadError),
        ({1: 2}, gnlqueue.PayloadError),
    ):
        with pytest.raises(error):
            give.enqueue(refused)
    with pytest.raises(TypeError, match=r"tests\.backends\.tasks\.give: too many positional arguments"):
        give.enqueue(1, 2)
    assert len(enqueued()) == 1


@on_sqlite
def test_system_exit_is_a_failure_and_only_ctrl_c_passes(alias: str) -> None:
    result = leave.enqueue(3)
    run_until_nothing_waits()
    result.refresh()
    assert (result.status, result.errors[1].exception_class) == (TaskResultStatus.FAILED, SystemExit)

    result = interrupt.enqueue()
    with pytest.raises(KeyboardInterrupt):
        run_jobs()
    result.refresh()
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.READY, 0, [])


@on_sqlite
def test_a_task_may_take_steps(alias: str) -> None:
    result = take_step.enqueue()
    run_jobs()
    result.refresh()
    assert result.return_value == "stepped"


@on_sqlite
def test_enqueueing_by_name(alias: str) -> None:
    """A Django task is as registered as any other; its backend is then that of its declaration."""
    give.enqueue("known from here on")
    job = gnlqueue.enqueue("tests.backends.tasks.give", "by name")
    assert job.options is None
    assert [each.result for each in run_jobs()] == ["known from here on", "by name"]
    assert give.get_result(str(job.pk)).return_value == "by name"


@on_sqlite
def test_the_task_called_outside_of_a_job_is_just_the_function(alias: str, heard: Heard) -> None:
    for each in (give, afail_first):
        each.enqueue(0)
    heard.clear()
    assert registry.get_task("tests.backends.tasks.give").call(b"as it is") == b"as it is"
    assert async_to_sync(registry.get_task("tests.backends.tasks.give").acall)(2) == 2
    context = SimpleNamespace(attempt=1, task_result=SimpleNamespace(status="as it is"))
    assert registry.get_task("tests.backends.tasks.afail_first").call(context, 0) == [1, "as it is"]
    assert heard == []


def test_another_database(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "DATABASE": "default"}
    use(settings, default={"OPTIONS": {"database": alias}})
    result = give.enqueue(1)
    assert [job.pk for job in enqueued(give, database=alias)] == [int(result.id)]
    run_jobs(database=alias)
    result.refresh()
    assert result.return_value == 1


@on_sqlite
def test_each_thread_has_a_backend_of_its_own(alias: str) -> None:
    seen: list[Any] = [task_backends["default"]]
    thread = threading.Thread(target=lambda: seen.append(task_backends["default"]))
    thread.start()
    thread.join()
    assert seen[0] is not seen[1]
    assert all(isinstance(each, GnlqueueBackend) for each in seen)
