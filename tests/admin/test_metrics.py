"""What workers count of finished jobs, how it is written, merged and pruned."""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections
from hypothesis import given
from hypothesis import strategies as st

from gnlqueue import dialects, queue
from gnlqueue.dialects import read_clock
from gnlqueue.metrics import counting, histograms, merging
from gnlqueue.metrics.counting import Minutes
from gnlqueue.metrics.histograms import bucket, percentile
from gnlqueue.models import TaskMinute
from gnlqueue.queue import ClaimedJob
from gnlqueue.worker import Worker
from gnlqueue.worker.maintenance import FLUSH_EVERY, Maintenance
from tests.app import tasks

QUARTER = timedelta(minutes=15)
NOON = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)


def claimed(
    alias: str, *, waited: float = 1.0, task: str = "shop.pay", at: datetime = NOON, queue_name: str = "default"
) -> ClaimedJob:
    """A job as its worker has it, which waited so many seconds."""
    values: dict[str, Any] = dict.fromkeys(ClaimedJob._fields)
    values.update(id=1, task_name=task, queue_name=queue_name, worker_id="w1", database=alias)
    return ClaimedJob(**{**values, "run_at": at - timedelta(seconds=waited), "last_attempted_at": at})


def minutes_of(alias: str) -> list[TaskMinute]:
    return list(TaskMinute.objects.using(alias).order_by("minute", "queue_name", "task_name", "id"))


def statements(alias: str, flush: Any) -> list[str]:
    sent: list[str] = []

    def wrapper(execute: Any, sql: str, *rest: Any) -> Any:
        sent.append(sql)
        return execute(sql, *rest)

    with connections[alias].execute_wrapper(wrapper):
        flush()
    return sent


@given(st.floats(2**-10 * 1.001, 10**7))
def test_a_percentile_is_at_most_a_tenth_off(seconds: float) -> None:
    found = percentile({bucket(seconds): 1}, 0.5)
    assert found is not None
    assert abs(found - seconds) <= seconds / 10


@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e-6])
def test_no_time_at_all_is_in_the_lowest_bucket(seconds: float) -> None:
    assert bucket(seconds) == bucket(histograms.SHORTEST) == -40


def test_percentiles_count_from_below() -> None:
    histogram = {0: 50, 8: 45, 16: 5}  # about 1 s, 4 s, 16 s
    assert [percentile(histogram, share) for share in (0.5, 0.95, 0.99)] == [2**0.125, 2**2.125, 2**4.125]
    assert percentile({}, 0.5) is None


def test_one_row_per_minute_queue_and_task(alias: str) -> None:
    minutes = Minutes()
    for seconds in (0.5, 0.5, 8.0):
        minutes.note(claimed(alias, waited=2.0), seconds, succeeded=True)
    minutes.note(claimed(alias, waited=2.0), 0.5, succeeded=False)
    minutes.note(claimed(alias), 40.0, succeeded=True)  # ends in the next minute
    minutes.note(claimed(alias, task="shop.mail"), 0.5, succeeded=True)
    minutes.flush(alias)

    mail, pay, later = minutes_of(alias)
    assert mail.task_name == "shop.mail"
    assert (pay.minute, pay.worker_id) == (NOON.replace(second=0), "w1")
    assert (pay.succeeded, pay.failed) == (3, 1)
    assert pay.waits == {"4": 4}
    assert pay.runs == {"-4": 3, "12": 1}
    assert later.minute == NOON.replace(minute=1, second=0)


@pytest.mark.parametrize("returning", [True, False], ids=["RETURNING", "as MySQL, without RETURNING"])
def test_a_minute_that_goes_on_changes_its_row(alias: str, returning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not returning:
        if alias == "postgresql":
            pytest.skip("always has RETURNING")
        monkeypatch.setattr(type(dialects.of(alias)), "supports_returning", lambda *_: False)
    minutes = Minutes()
    minutes.note(claimed(alias), 0.5, succeeded=True)
    minutes.flush(alias)
    minutes.note(claimed(alias), 0.5, succeeded=False)
    minutes.note(claimed(alias), 0.5, succeeded=True)
    minutes.flush(alias)
    [row] = minutes_of(alias)
    assert (row.succeeded, row.failed, row.runs) == (2, 1, {"-4": 3})


def test_nothing_is_sent_where_nothing_finished(alias: str) -> None:
    minutes = Minutes()
    assert statements(alias, lambda: minutes.flush(alias)) == []
    minutes.note(claimed(alias), 0.5, succeeded=True)
    minutes.flush(alias)
    assert statements(alias, lambda: minutes.flush(alias)) == []


def test_a_minute_that_is_over_is_forgotten(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = Minutes()
    minutes.note(claimed(alias), 0.5, succeeded=True)
    monkeypatch.setattr(counting, "FORGOTTEN_AFTER", -1.0)
    minutes.flush(alias)
    minutes.note(claimed(alias), 0.5, succeeded=True)
    minutes.flush(alias)
    assert [row.succeeded for row in minutes_of(alias)] == [1, 1]


def test_a_flush_that_fails_is_said_once_and_made_up_for(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any) -> None:
        raise OperationalError("no database")

    minutes = Minutes()
    minutes.note(claimed(alias), 0.5, succeeded=True)
    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, "gnlqueue.worker"):
        patched.setattr(counting, "_write", refuse)
        minutes.flush(alias)
        minutes.note(claimed(alias), 0.5, succeeded=True)
        minutes.flush(alias)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    minutes.flush(alias)
    assert [row.succeeded for row in minutes_of(alias)] == [2]


def test_memory_is_bounded_where_nobody_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_ROWS", 3)
    minutes = Minutes()
    for number in range(10):
        minutes.note(claimed("default", task=f"shop.{number}"), 0.5, succeeded=True)
    assert len(minutes._counts) == 3


def test_a_note_costs_next_to_nothing() -> None:
    minutes, job = Minutes(), claimed("default")
    fastest = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(1000):
            minutes.note(job, 0.1, succeeded=True)
        fastest = min(fastest, (time.perf_counter() - began) / 1000)
    assert fastest < 10e-6  # 1.5 µs where nothing else runs


def test_a_worker_writes_what_it_finished(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "finished", Minutes())
    for number in range(3):
        tasks.give.using(queue_name="sums").enqueue(number)
    tasks.fail.using(queue_name="sums", max_attempts=1).enqueue("no")
    worker = Worker(["sums"], drain=True)
    worker.run()
    counted = {row.task_name: (row.succeeded, row.failed, row.queue_name, row.worker_id) for row in minutes_of(alias)}
    mine = worker.worker_id
    assert counted == {tasks.give.name: (3, 0, "sums", mine), tasks.fail.name: (0, 1, "sums", mine)}
    assert queue.stats("sums")["done"] == 3


def test_a_worker_that_goes_on_writes_every_ten_seconds(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "finished", Minutes())
    upkeep = Maintenance(["default"], database=alias, beat=20)
    counting.finished.note(claimed(alias), 0.5, succeeded=True)
    upkeep.do_what_is_due(idle=True)
    assert minutes_of(alias) == []
    later = time.monotonic() + FLUSH_EVERY
    monkeypatch.setattr("gnlqueue.worker.maintenance.time.monotonic", lambda: later)
    upkeep.do_what_is_due(idle=True)
    assert len(minutes_of(alias)) == 1


def store(alias: str, minute: datetime, **values: Any) -> None:
    row = {"queue_name": "default", "task_name": "shop.pay", "worker_id": "w1", "succeeded": 1, "waits": {"0": 1}}
    TaskMinute.objects.using(alias).create(minute=minute, **{**row, "runs": {"4": 1}, **values})


def test_settled_minutes_of_several_workers_become_one(alias: str) -> None:
    now = read_clock(alias).replace(second=0, microsecond=0)
    settled, fresh = now - timedelta(minutes=7), now - timedelta(minutes=1)
    for minute in (settled, fresh):
        store(alias, minute, failed=2)
        store(alias, minute, worker_id="w2", runs={"4": 2, "-3": 1})
        store(alias, minute, worker_id="w2", task_name="shop.mail")
    merging.tidy(alias)

    mail, pay, *others = minutes_of(alias)
    assert (pay.minute, pay.worker_id, pay.succeeded, pay.failed) == (settled, "", 2, 2)
    assert (pay.waits, pay.runs) == ({"0": 2}, {"-3": 1, "4": 3})
    assert (mail.task_name, mail.succeeded) == ("shop.mail", 1)
    assert [row.minute for row in others] == [fresh] * 3
    merging.tidy(alias)
    assert len(minutes_of(alias)) == 5


def test_a_quarter_of_an_hour_becomes_one_row_a_task(alias: str) -> None:
    now = read_clock(alias)
    begin = merging.beginning(now - timedelta(hours=2, minutes=30), QUARTER)
    for minute in range(15):
        store(alias, begin + timedelta(minutes=minute))
    store(alias, begin + timedelta(minutes=15))
    merging.tidy(alias)
    assert [(row.minute, row.succeeded) for row in minutes_of(alias)] == [
        (begin, 15),
        (begin + timedelta(minutes=15), 1),
    ]


def test_two_workers_that_merge_at_once_count_nothing_twice(alias: str) -> None:
    begin = merging.beginning(read_clock(alias), QUARTER)
    for _ in range(2):
        store(alias, begin)
    rows = minutes_of(alias)
    merging._merge_slot(alias, begin, rows)
    merging._merge_slot(alias, begin, rows)
    assert [row.succeeded for row in minutes_of(alias)] == [2]


def test_minutes_older_than_a_week_are_deleted(alias: str) -> None:
    now = read_clock(alias)
    store(alias, now - timedelta(days=7, minutes=1))
    store(alias, now - timedelta(days=6, hours=23))
    merging.tidy(alias)
    assert len(minutes_of(alias)) == 1
