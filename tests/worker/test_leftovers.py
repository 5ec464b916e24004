"""What a job leaves behind in its thread, the next one does not find."""

from typing import Any

import pytest
from django.db import connections
from django.utils import translation

import gnlqueue
from gnlqueue import signals
from gnlqueue.models import Job, JobStatus
from gnlqueue.worker.loop import Worker
from tests.app import tasks
from tests.app.models import Note
from tests.worker.conftest import drain, on_sqlite, until_status
from tests.worker.processes import until


@pytest.mark.parametrize("task", [tasks.speak, tasks.aspeak], ids=["def", "async def"])
@on_sqlite
def test_context_of_one_job_is_not_that_of_the_next(alias: str, task: gnlqueue.Task) -> None:
    ids = gnlqueue.enqueue_many(task.bind(language) for language in ["de", "fr", "it"])
    alone = task.using(queue_name="elsewhere").enqueue("es")

    drain(concurrency=1, queues=["default"])
    Worker(["elsewhere"]).run_once()

    jobs = Job.objects.using(alias).in_bulk([*ids, alone.pk])
    assert {job.result for job in jobs.values()} == {"en-us"}
    assert translation.get_language() == "en-us"


@pytest.mark.parametrize("task", [tasks.ask_connection, tasks.aask_connection], ids=["def", "async def"])
@on_sqlite
def test_connection_of_one_job_is_that_of_the_next(alias: str, task: gnlqueue.Task) -> None:
    """It is the thread's, whatever context a job runs in."""
    ids = gnlqueue.enqueue_many(task.bind() for _ in range(3))

    drain(concurrency=1)

    assert len({job.result for job in Job.objects.using(alias).in_bulk(ids).values()}) == 1


@pytest.mark.parametrize(
    ("task", "then"),
    [
        (tasks.leave_transaction_open, tasks.write_note),
        (tasks.begin, tasks.write_note),
        (tasks.aleave_transaction_open, tasks.awrite_note),
        (tasks.abegin, tasks.awrite_note),
    ],
    ids=["set_autocommit", "BEGIN", "set_autocommit, async def", "BEGIN, async def"],
)
def test_task_that_leaves_a_transaction_open_does_not_spoil_the_next_one(
    alias: str, task: gnlqueue.Task, then: gnlqueue.Task
) -> None:
    connections[alias].ensure_connection()
    tells = connections[alias].vendor != "mysql" or hasattr(connections[alias].connection, "server_status")
    if task in (tasks.begin, tasks.abegin) and not tells:
        pytest.skip("mysqlclient does not tell what the server told it")
    task.enqueue()
    gnlqueue.enqueue_many(then.bind(str(number)) for number in range(3))

    drain(concurrency=1)

    assert Note.objects.using(alias).count() == 3


@on_sqlite
def test_idle_connection_of_async_jobs_is_closed(alias: str, in_thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnlqueue.worker.connections.IDLE_CONNECTION_AGE", 0.05)
    worker = Worker()
    in_thread(worker)
    for _ in range(2):
        until_status(tasks.awrite_note.enqueue("here"), JobStatus.DONE)

        theirs = worker._pool._async_connections._theirs
        assert theirs
        until(lambda theirs=theirs: all(each.connection is None for each in theirs), "the end of its connection")


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_broken_connection_of_a_receiver_is_not_kept(alias: str) -> None:
    """One to another database than the queue's."""
    raised: list[bool] = []

    def use_other_database(**_: Any) -> None:
        with connections["default"].cursor() as cursor:
            raised.append(connections["default"].errors_occurred)
            cursor.execute("SELECT * FROM nowhere")

    signals.job_finished.connect(use_other_database)
    try:
        gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(3))
        drain(concurrency=1)
    finally:
        signals.job_finished.disconnect(use_other_database)

    assert raised == [False] * 3
