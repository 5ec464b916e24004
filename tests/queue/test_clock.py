"""The database's clock decides, in UTC, whatever zone its session or this process is in."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from gnlqueue import queue
from gnlqueue.dialects import read_clock
from gnlqueue.models import Job, JobAttempt
from gnlqueue.queue.claiming import seconds_until_due
from gnlqueue.queue.leases import renew

SESSION_ZONES = {
    "postgresql": {"TIME_ZONE": "Asia/Karachi"},
    "mysql": {"OPTIONS": {"init_command": "SET time_zone = '+05:00'"}},
    "sqlite": {},  # has no session zone, but might take the process's
}


@pytest.fixture
def karachi(alias: str, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[str]:
    """The alias of a connection to the database under test whose session is five hours ahead of UTC."""
    vendor, usual = connections[alias].vendor, connections.settings[alias]
    zone = SESSION_ZONES[vendor]
    name = f"{alias}-karachi"
    connections.settings[name] = {**usual, **zone, "OPTIONS": {**usual["OPTIONS"], **zone.get("OPTIONS", {})}}
    monkeypatch.setitem(settings.DATABASES, name, connections.settings[name])
    settings.GNLQUEUE = {**settings.GNLQUEUE, "DATABASE": name}
    monkeypatch.setenv("TZ", "Asia/Karachi")
    time.tzset()
    with connections[name].cursor() as cursor:
        assert_five_hours_ahead(cursor)
    yield name
    connections[name].close()
    del connections[name], connections.settings[name]
    monkeypatch.undo()
    time.tzset()


def assert_five_hours_ahead(cursor: CursorWrapper) -> None:
    match cursor.db.vendor:
        case "postgresql":
            cursor.execute("SHOW timezone")
            assert cursor.fetchone()[0] == "Asia/Karachi"
        case "mysql":
            cursor.execute("SELECT TIMESTAMPDIFF(HOUR, UTC_TIMESTAMP(), NOW())")
            assert cursor.fetchone()[0] == 5
        case _:
            assert time.localtime().tm_gmtoff == 5 * 3600


def test_a_job_was_enqueued_now(karachi: str) -> None:
    job = queue.enqueue("demo")
    for at in (job.enqueued_at, queue.get(job).enqueued_at):
        assert abs(at - datetime.now(UTC)) < timedelta(seconds=1)


def test_a_job_due_in_four_hours_is_not_due(karachi: str) -> None:
    job = queue.enqueue("demo", run_after=timedelta(hours=4))
    assert abs(queue.get(job).run_at - datetime.now(UTC) - timedelta(hours=4)) < timedelta(seconds=1)
    assert queue.claim(worker_id="w1") is None
    assert queue.stats()["scheduled"] == 1
    until_due = seconds_until_due(["default"], alias=karachi)
    assert until_due is not None
    assert 14_399 < until_due <= 14_400


def test_a_time_given_in_four_hours_is_not_due(karachi: str) -> None:
    at = datetime.now(UTC) + timedelta(hours=4)
    job = queue.enqueue("demo", run_after=at)
    assert queue.get(job).run_at == at
    assert queue.claim(worker_id="w1") is None


def test_a_job_that_was_due_four_hours_ago_is_due(karachi: str) -> None:
    queue.enqueue("demo", run_after=timedelta(hours=-4))
    assert queue.claim(worker_id="w1") is not None


def test_a_lease_of_an_hour_ends_in_an_hour(karachi: str) -> None:
    queue.enqueue("demo")
    job = queue.claim(worker_id="w1", lease=3600)
    assert job is not None
    assert abs(job.lease_expires_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(seconds=1)
    assert queue.get(job).lease_expires_at == job.lease_expires_at
    assert queue.claim(worker_id="w2") is None


def test_a_renewed_lease_ends_when_it_should(karachi: str) -> None:
    queue.enqueue("demo")
    job = queue.claim(worker_id="w1", lease=3600)
    assert job is not None
    for length, renewed in (
        (2, queue.extend(job, 7200).lease_expires_at),
        (3, renew([job.pair], timedelta(hours=3), alias=karachi) and queue.get(job).lease_expires_at),
    ):
        assert renewed is not None
        assert abs(renewed - datetime.now(UTC) - timedelta(hours=length)) < timedelta(seconds=1)


def test_a_lease_that_has_run_out_is_rescued(karachi: str) -> None:
    queue.enqueue("demo")
    lost = queue.claim(worker_id="w1", lease=0)
    assert lost is not None
    while read_clock(karachi) <= lost.lease_expires_at:
        pass  # SQLite's clock has milliseconds
    job = queue.claim(worker_id="w2")
    assert job is not None
    assert job.crashes == 1


def test_a_failure_has_the_right_times(karachi: str) -> None:
    queue.enqueue("demo")
    job = queue.claim(worker_id="w1")
    assert job is not None
    failed = queue.fail(job, "x", after=3600)
    attempt = JobAttempt.objects.using(karachi).get()
    assert abs(failed.run_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(seconds=1)
    assert attempt.started_at == job.last_attempted_at
    assert abs(attempt.ended_at - datetime.now(UTC)) < timedelta(seconds=1)


def test_what_people_do_has_the_right_times(karachi: str) -> None:
    job = queue.cancel(queue.enqueue("demo"))
    assert job.finished_at is not None
    assert abs(job.finished_at - datetime.now(UTC)) < timedelta(seconds=1)
    assert queue.prune(timedelta(hours=4)) == 0
    assert abs(queue.retry(job).run_at - datetime.now(UTC)) < timedelta(seconds=1)
    later = queue.reschedule(job, timedelta(hours=1)).run_at
    assert abs(later - datetime.now(UTC) - timedelta(hours=1)) < timedelta(seconds=1)


def test_the_clock_is_the_statement_s_and_not_the_transaction_s(alias: str) -> None:
    with transaction.atomic(alias):
        Job.objects.using(alias).exists()  # begins it
        before = datetime.now(UTC)
        time.sleep(0.05)  # slow on purpose: a long transaction
        job = queue.enqueue("demo")
    assert job.enqueued_at - before > timedelta(seconds=0.04)
