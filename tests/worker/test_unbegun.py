"""What becomes of jobs that a worker holds and that have not begun: prefetched ones, and suspects."""

import threading
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, transaction

import gnlqueue
from gnlqueue.models import Job, JobStatus
from gnlqueue.queue import transitions
from gnlqueue.queue.transactions import alias_of
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.outbox import Outbox
from gnlqueue.worker.suspects import Suspects
from gnlqueue.worker.table import Stage
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker.conftest import drain, fails_once, on_sqlite, row, until_all, until_status, until_told
from tests.worker.processes import until

InThread = Callable[[Worker], Any]


def behind_a_long_job(in_thread: InThread, jobs: Iterable[gnlqueue.Call]) -> Any:
    """Let a worker with one slot learn that tasks are short, and meet one that waits for a gate; the jobs behind it."""
    gnlqueue.enqueue_many(tasks.nothing.using(priority=2).bind() for _ in range(30))
    tasks.wait.using(priority=1).enqueue()
    others = Job.objects.using(alias_of(None)).filter(pk__in=gnlqueue.enqueue_many(jobs))
    in_thread(Worker(concurrency=1))
    until_told("began")
    until(lambda: others.filter(lease_token__gt=0).exists(), "the claim of some behind it")
    return others


def test_prefetched_job_that_does_not_begin_is_released(alias: str, in_thread: InThread) -> None:
    others = behind_a_long_job(in_thread, (tasks.nothing.bind() for _ in range(20)))

    until(lambda: not others.exclude(status=JobStatus.READY).exists(), "the release of what was prefetched")
    # And they are not claimed again by the worker that could not begin them.
    assert set(others.filter(lease_token__gt=0).values_list("attempts", "lease_token")) == {(0, 1)}
    open_gate("go")

    until_all(JobStatus.DONE)
    assert set(others.values_list("attempts", flat=True)) == {1}


def test_last_attempt_is_never_prefetched(alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnlqueue.worker.loop.PATIENCE", 60)
    others = behind_a_long_job(in_thread, (tasks.nothing.using(max_attempts=1).bind() for _ in range(20)))

    until(lambda: not others.exclude(status=JobStatus.READY).exists(), "the release of last attempts")
    assert others.filter(lease_token=1).exists()
    open_gate("go")

    until_all(JobStatus.DONE)
    assert set(others.values_list("attempts", flat=True)) == {1}


@on_sqlite
def test_what_waits_does_not_begin_during_an_outage(
    alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have gone to somebody else long before there is a place for it."""
    workers: list[Worker] = []
    write, away = Outbox.write, threading.Event()

    def write_unless_away(self: Outbox) -> None:
        if away.is_set():
            raise OperationalError("server closed the connection unexpectedly")
        write(self)

    monkeypatch.setattr(Outbox, "write", write_unless_away)
    monkeypatch.setattr("gnlqueue.worker.loop.PATIENCE", 60)
    others = behind_a_long_job(
        lambda worker: (workers.append(worker), in_thread(worker)), (tasks.tell.bind() for _ in range(20))
    )
    (worker,) = workers
    until(lambda: any(held.stage is Stage.HELD for held in worker._table), "jobs that wait")

    away.set()
    monkeypatch.setattr("gnlqueue.worker.loop.PATIENCE", 0)
    worker._inbox.ring()
    until(lambda: not any(worker._pool._waiting.values()), "that nothing waits for a place")
    open_gate("go")
    until_told("ended")
    assert [each["what"] for each in told()] == ["began", "ended"]
    monkeypatch.setattr("gnlqueue.worker.loop.PATIENCE", 60)
    away.clear()

    until_all(JobStatus.DONE)
    assert set(others.values_list("attempts", flat=True)) == {1}


def test_suspect_is_put_off_when_its_neighbours_do_not_end(
    alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is claimed while it waits to be alone, and no other worker can take it."""
    monkeypatch.setattr("gnlqueue.worker.suspects.PATIENCE", 0)
    tasks.wait.enqueue()
    in_thread(Worker(concurrency=2, poll_interval=0.01))
    until_told("began")
    with transaction.atomic(using=alias):
        suspect = tasks.tell.using(priority=1).enqueue()
        Job.objects.using(alias).filter(pk=suspect.pk).update(crashes=2)
        neighbour = tasks.nothing.enqueue()

    until_status(neighbour, JobStatus.DONE)
    put_off = until_status(suspect, JobStatus.SCHEDULED)
    assert (put_off.attempts, put_off.crashes) == (0, 2)
    assert "ran" not in [each["what"] for each in told()]


def test_suspect_waits_twice_as_long_each_time_that_it_was_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it runs, however long its neighbours take."""
    clock, waits = [0.0], []
    monkeypatch.setattr("gnlqueue.worker.suspects.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("gnlqueue.queue.transitions.put_off", lambda *_: None)
    suspects = Suspects(mock.MagicMock(), mock.Mock())
    for _ in range(4):
        suspects.add(mock.Mock(id=7), mock.Mock())
        began = clock[0]
        while suspects._waiting is not None:
            clock[0] += 1
            suspects.put_off_if_late()
        waits.append(clock[0] - began)
    assert waits == [5, 10, 20, 40]


def test_two_suspects_in_two_queues_run_one_after_the_other(alias: str) -> None:
    jobs = [tasks.nothing.enqueue(), tasks.work_elsewhere.enqueue(), tasks.nothing.enqueue()]
    Job.objects.using(alias).update(crashes=2)

    drain()

    assert [row(job).status for job in jobs] == [JobStatus.DONE] * 3


def test_release_that_fails_is_tried_again(alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_once(monkeypatch, transitions, "release_many", when="before")
    others = behind_a_long_job(in_thread, (tasks.nothing.using(max_attempts=1).bind() for _ in range(20)))

    until(lambda: not others.exclude(status=JobStatus.READY).exists(), "the release")
    open_gate("go")
    until_all(JobStatus.DONE)
