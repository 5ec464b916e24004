"""One heartbeat at a time: what it renews, and what it gives back of workers that are gone."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections, transaction
from django.db.models.sql.compiler import SQLCompiler

from gnlqueue import queue
from gnlqueue.dialects import read_clock
from gnlqueue.models import Job, JobStatus, WorkerProcess
from gnlqueue.queue import ClaimedJob
from gnlqueue.worker import heartbeat, identity
from gnlqueue.worker.heartbeat import Heartbeat
from gnlqueue.worker.maintenance import Maintenance
from gnlqueue.worker.table import Farewell, LeaseTable, Owner, Stage
from tests.app import tasks
from tests.worker.conftest import on_sqlite, row
from tests.worker.processes import PATIENCE

#: Where somebody may lock a row and not the whole database.
on_servers = pytest.mark.parametrize("alias", ["postgresql", "mysql"], indirect=True)


def claimed(count: int = 1, *, max_attempts: int = 5) -> list[ClaimedJob]:
    """Jobs that the worker w1 has just claimed."""
    for _ in range(count):
        tasks.nothing.using(max_attempts=max_attempts).enqueue()
    return queue.claim_many(worker_id="w1", limit=count)


def table_of(jobs: list[ClaimedJob], stage: Stage, owner: Owner) -> LeaseTable:
    """What the worker w1 has published."""
    table = LeaseTable(10)
    table.assign("w1")
    for job in jobs:
        table.hold(job)
        table.advance(job, stage)
    table.owner = owner
    return table


@contextmanager
def locked(job: ClaimedJob) -> Iterator[None]:
    """Meanwhile somebody has a transaction open in which the job's row is locked."""
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic(job.database):
                list(Job.objects.using(job.database).select_for_update().filter(pk=job.id))
                ready.set()
                done.wait(PATIENCE)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(hold)
        assert ready.wait(PATIENCE)
        try:
            yield
        finally:
            done.set()
            holder.result()


@on_servers
@pytest.mark.parametrize(
    ("stage", "owner", "attempts"),
    [
        pytest.param(Stage.HELD, Owner.CRASHED, 0, id="held"),
        # Nobody knows which of the two did it, also when only one of them is left.
        pytest.param(Stage.BEGUN, Owner.CRASHED, 0, id="begun"),
        pytest.param(Stage.ENDED, Owner.CRASHED, 0, id="ended"),
        pytest.param(Stage.OVERDUE, Owner.ENDED, 1, id="overdue"),
        pytest.param(Stage.BEGUN, Owner.ENDED, 0, id="shutdown"),
    ],
)
def test_a_locked_row_is_given_back_later_and_not_waited_for(
    alias: str, stage: Stage, owner: Owner, attempts: int
) -> None:
    busy, free = jobs = claimed(2)
    table = table_of(jobs, stage, owner)
    heartbeat = Heartbeat(alias, 60, [table])

    with locked(busy):
        assert heartbeat.give_back()
        assert row(busy.id).status == JobStatus.IN_PROGRESS
        assert row(free.id).status != JobStatus.IN_PROGRESS
        assert table.owner is owner
    assert not heartbeat.give_back()

    assert [row(job.id).lease_expires_at for job in jobs] == [None, None]
    assert [row(job.id).attempts for job in jobs] == [attempts, attempts]
    assert table.owner is Owner.NONE


def test_a_beat_needs_nothing_of_djangos_to_write_its_sql(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would cost its process a megabyte. What is renewed is what is held under just that token."""
    held, gone, finished = jobs = claimed(3)
    queue.complete(finished)
    table = table_of([held, gone._replace(lease_token=gone.lease_token + 1), finished], Stage.BEGUN, Owner.ALIVE)
    identity.register("w1", ["default"], 4, alias, lease=60)
    WorkerProcess.objects.using(alias).update(heartbeat_at=datetime(2020, 1, 1, tzinfo=UTC))

    with monkeypatch.context() as patch:
        patch.setattr(SQLCompiler, "__init__", lambda *_: pytest.fail("a statement is compiled"))
        Heartbeat(alias, 3600, [table]).beat()

    half_an_hour = timedelta(minutes=30)
    ends = [row(job.id).lease_expires_at for job in jobs]
    assert ends[0] is not None
    assert ends[0] - held.lease_expires_at > half_an_hour
    assert ends[1:] == [gone.lease_expires_at, None]
    assert WorkerProcess.objects.using(alias).get().is_live(read_clock(alias))


@on_sqlite
@pytest.mark.parametrize(("stage", "owner"), [(Stage.BEGUN, Owner.CRASHED), (Stage.OVERDUE, Owner.ENDED)])
def test_a_job_that_is_dead_by_it_is_said_to_be(
    alias: str, stage: Stage, owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    (job,) = jobs = claimed(max_attempts=1)

    Heartbeat(alias, 60, [table_of(jobs, stage, owner)]).give_back()

    (line,) = [each for each in caplog.messages if each.startswith("dead ")]
    assert re.match(rf"dead       tests.app.tasks.nothing  job {job.id}  attempt 1 of 1: \w", line)


@on_sqlite
def test_who_rescues_says_which_jobs_and_which_are_dead(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    for attempts in (1, 2):
        queue.enqueue("tests.app.tasks.nothing", max_attempts=attempts, now=long_ago)
        queue.claim(worker_id=f"w{attempts}", now=long_ago)

    Maintenance(["default"], database=alias, beat=1, drain=True).do_what_is_due(idle=True)

    dead, back = Job.objects.using(alias).order_by("id").values_list("id", flat=True)
    assert caplog.messages == [
        f"rescued    jobs {dead}, {back}: the lease ran out, as the worker died or lost contact",
        f"dead       tests.app.tasks.nothing  job {dead}  attempt 1 of 1: "
        "The worker w1 died or lost contact while it held the job.",
    ]


def test_what_a_dead_worker_claims_afterwards_goes_back_uncounted(alias: str) -> None:
    """The server may have been about to commit its last claim when it died."""
    table = table_of([], Stage.HELD, Owner.CRASHED)
    heartbeat = Heartbeat(alias, 60, [table])
    heartbeat.give_back()
    assert table.owner is Owner.NONE

    (late,) = claimed(max_attempts=1)
    heartbeat.give_back()

    assert (row(late.id).status, row(late.id).attempts, row(late.id).crashes) == (JobStatus.READY, 0, 0)


@on_sqlite
def test_dead_worker_whose_supervisor_has_not_noticed_gets_no_renewals(alias: str) -> None:
    (job,) = jobs = claimed()
    table = table_of(jobs, Stage.BEGUN, Owner.ALIVE)
    heartbeat = Heartbeat(alias, 6000, [table])
    process = subprocess.Popen(["sleep", str(PATIENCE)])
    table.pid = process.pid

    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # now it is a zombie: the supervisor hangs
    heartbeat.beat()
    assert row(job.id).lease_expires_at == job.lease_expires_at
    process.wait()
    heartbeat.beat()
    assert row(job.id).lease_expires_at == job.lease_expires_at

    table.pid = os.getpid()
    heartbeat.beat()
    assert row(job.id).lease_expires_at > job.lease_expires_at


@on_sqlite
@pytest.mark.parametrize("farewell", [Farewell.NONE, Farewell.DONE])
def test_who_ended_in_order_after_its_supervisor_is_no_crash(alias: str, farewell: Farewell) -> None:
    """The worker stops when its supervisor is gone, and leaves what it could not finish to its heartbeat process."""
    (job,) = claimed(1)
    table = table_of([job], Stage.BEGUN, Owner.ALIVE)
    table.farewell = farewell
    ended = subprocess.Popen(["true"])
    ended.wait()
    table.pid = ended.pid

    heartbeat._notice_deaths([table])
    Heartbeat(alias, 60, [table]).give_back()

    assert (row(job.id).status, row(job.id).crashes) == (JobStatus.READY, 1 if farewell is Farewell.NONE else 0)
