"""An idle worker costs next to nothing, and yet hears of a new job at once where the database can tell it."""

import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections

from gnlqueue.models import JobStatus
from gnlqueue.queue import claiming, wakeups
from gnlqueue.worker import loop, wakeup
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.pace import Pace
from tests.app import tasks
from tests.worker.conftest import on_sqlite, until_status, until_told
from tests.worker.processes import PATIENCE, RunWorker, until

Run = Callable[..., RunWorker]
InThread = Callable[[Worker], Any]


def test_pauses_double_up_to_the_longest() -> None:
    pace = Pace(0.2, 6.4)
    pauses = [pace.pause(lambda: None) for _ in range(12)]

    # The first ones not: whoever has just had a job soon has another.
    for pause, full in zip(pauses, [0.2] * 5 + [0.4, 0.8, 1.6, 3.2, 6.4, 6.4, 6.4], strict=True):
        assert 0.9 * full <= pause <= full
    pace.reset()
    assert pace.pause(lambda: None) <= 0.2


def test_pause_ends_when_a_job_is_due() -> None:
    pace = Pace(0.2, 6.4)
    for _ in range(5):
        pace.pause(lambda: 0.01)

    assert pace.pause(lambda: 0.25) == 0.25
    # Due, and still not claimed: it is locked. No reason to ask without a pause.
    assert pace.pause(lambda: -3.0) == 0.2


def test_woken_worker_looks_once_more_when_the_window_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("gnlqueue.worker.pace.time.monotonic", lambda: clock[0])
    pace = Pace(5, 60)
    pace.wake()
    pace.note_look()
    assert pace.is_woken
    assert 0 < pace.pause(lambda: None) <= wakeups.WINDOW * 1.5

    clock[0] += wakeups.WINDOW * 2
    assert pace.pause(lambda: None) == 0  # it has not looked yet
    pace.note_look()
    assert pace.pause(lambda: None) > 4
    assert not pace.is_woken


def counting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When `claim_ready` is called from now on."""
    claim_ready, calls = claiming.claim_ready, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(time.monotonic())
        return claim_ready(*args, **kwargs)

    monkeypatch.setattr(claiming, "claim_ready", counted)
    return calls


def test_idle_worker_polls_ever_less_often(alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    asked = []
    monkeypatch.setattr(loop, "LONGEST_NAP", 0.01)  # it looks after its supervisor a hundred times a second
    worker = Worker(["default"], poll_interval=0.002, max_poll_interval=30)

    run = worker.run
    worker.run = lambda: run(lambda: not asked.append(None))  # type: ignore[method-assign, func-returns-value]
    in_thread(worker)
    until(lambda: len(asked) > 100, "naps")

    # In more than a second: pauses of 2, 4, … 512 ms, and at the start some wakeups by the worker's own commits.
    assert len(calls) <= 25


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_idle_worker_hears_of_a_job_that_another_process_enqueues(alias: str, runworker: Run) -> None:
    """With a poll interval that polling cannot be what finds it."""
    runworker("--poll-interval", "60", "--queues", "default")
    until_status(tasks.nothing.enqueue(), JobStatus.DONE)
    waits = []
    for number in range(1, 11):
        job = tasks.tell.enqueue()
        enqueued_at = time.monotonic()
        waits.append(until_told("ran", number)["at"] - enqueued_at)
        until_status(job, JobStatus.DONE)

    assert statistics.median(waits) < 0.15, waits


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_without_listen_polling_finds_everything(
    alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind PgBouncer in transaction mode, for example."""

    def refuse(*_: Any) -> None:
        raise OperationalError("LISTEN is not for you")

    monkeypatch.setattr(wakeup.ListenWatcher, "_watch", refuse)
    in_thread(Worker(poll_interval=0.02))

    until_status(tasks.nothing.enqueue(), JobStatus.DONE)
    assert not caplog.records


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_listen_begins_anew_on_a_new_connection(alias: str, in_thread: InThread) -> None:
    in_thread(Worker(["default"], poll_interval=60))
    until_status(tasks.nothing.enqueue(), JobStatus.DONE)

    def listeners(but: int = 0) -> list[int]:
        with connections[alias].cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN gnlqueue' AND datname = current_database()"
                " AND pid <> %s",
                [but],
            )
            return [pid for (pid,) in cursor.fetchall()]

    (listener,) = until(listeners, "LISTEN")
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [listener])
    until(lambda: listeners(but=listener), "another LISTEN")

    until_status(tasks.nothing.enqueue(), JobStatus.DONE)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_job_whose_notification_was_left_out_is_found_once_the_window_is_over(
    alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the outcome of the job before it came in between."""
    in_thread(Worker(["default"], poll_interval=60))
    until_status(tasks.nothing.enqueue(), JobStatus.DONE)
    monkeypatch.setattr(wakeups, "WINDOW", 0.5)
    wakeups._last_sent.clear()

    until_status(tasks.nothing.enqueue(), JobStatus.DONE)
    until_status(tasks.nothing.enqueue(), JobStatus.DONE)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_look_that_began_within_the_window_is_not_the_last_one(
    alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: a job may have been committed after it."""
    in_thread(Worker(["default"], poll_interval=60))
    until_status(tasks.nothing.enqueue(), JobStatus.DONE)
    looks, looked, committed = claiming.claim_ready, threading.Event(), threading.Event()

    def look_slowly(*args: Any, **kwargs: Any) -> Any:
        found = looks(*args, **kwargs)
        if not looked.is_set():
            looked.set()
            committed.wait(PATIENCE)
            time.sleep(wakeups.WINDOW * 3)  # slow on purpose: the window is over when it is
        return found

    monkeypatch.setattr(claiming, "claim_ready", look_slowly)
    wakeups._last_sent.clear()
    wakeups.wake(alias, ["default"])
    assert looked.wait(PATIENCE)
    wakeups._last_sent[alias, "default"] = time.monotonic()
    job = tasks.nothing.enqueue()
    committed.set()

    until_status(job, JobStatus.DONE)


def test_woken_worker_without_a_free_slot_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot look for what it was woken for, and must not try to without a pause until it can."""
    monkeypatch.setattr(wakeups, "WINDOW", 0)  # over at once: it should look again
    worker = Worker(["default"], concurrency=1)
    worker._pace.wake()

    assert worker._pause(0) == loop.PATIENCE
    assert worker._pause(1) == 0


@on_sqlite
def test_scheduled_job_is_waited_for(alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would sleep for a minute gets up when the next job is due."""
    monkeypatch.setattr(wakeup.DataVersionWatcher, "_watch", lambda self, *_: self._stopped.wait())
    job = tasks.nothing.using(run_after=timedelta(seconds=0.5)).enqueue()

    in_thread(Worker(poll_interval=0.01, max_poll_interval=60))

    done = until_status(job, JobStatus.DONE)
    assert (done.finished_at - done.run_at).total_seconds() < 0.3
