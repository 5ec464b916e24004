"""Processes that a task starts are the task's: they end as it wants, and none goes on as a worker."""

import signal
from collections.abc import Callable

import pytest
from django.db import connections

import gnlqueue
from gnlqueue.models import JobStatus
from gnlqueue.worker.forking import close_connections_and_pools
from tests.app import tasks
from tests.worker.conftest import on_sqlite, until_status
from tests.worker.processes import RunWorker


@on_sqlite
@pytest.mark.parametrize("flags", [[], ["--no-heartbeat"]], ids=["supervised", "single"])
def test_process_of_a_task_ends_by_a_signal(alias: str, runworker: Callable[..., RunWorker], flags: list[str]) -> None:
    job = tasks.end_child.enqueue()
    runworker("--drain", *flags)

    assert until_status(job, JobStatus.DONE).result == -signal.SIGTERM


@on_sqlite
@pytest.mark.parametrize("task", [tasks.exit_in_child, tasks.aexit_in_child], ids=["def", "async def"])
def test_process_that_a_task_forks_does_not_go_on_as_a_worker(
    alias: str, runworker: Callable[..., RunWorker], task: gnlqueue.Task
) -> None:
    jobs = [task.enqueue(0), task.enqueue(7)]
    run = runworker("--drain")

    assert [until_status(job, JobStatus.DONE).result for job in jobs] == [0, 7]
    assert run.ends() == 0, run.log


@on_sqlite
def test_no_pool_of_connections_is_there_when_workers_are_forked(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query at the project's start may have opened one, and closing the connection only gives it back."""
    closed = []
    monkeypatch.setattr(connections[alias], "close_pool", lambda: closed.append(alias), raising=False)

    close_connections_and_pools()

    assert closed == [alias]
