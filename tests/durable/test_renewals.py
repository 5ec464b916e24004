"""What a run writes renews the right to go on: the job's lease, and outside a job the run lock."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from gnlqueue import JobContext, durable_run, queue
from gnlqueue.dialects import read_clock
from gnlqueue.durable.run import Run
from gnlqueue.models import EntryStatus, Job, JobStatus, RunLock
from gnlqueue.queue import leases
from gnlqueue.worker.loop import Worker
from tests.app.models import Note
from tests.durable.conftest import KINDS, Gate, attempt, crashing, entry, jobs

Play = Callable[..., Job]
LEASE = timedelta(seconds=1000)
SOON = timedelta(seconds=10)  # how much of the lease, or of the lock, is left


def left(alias: str, ends: Any) -> timedelta:
    """How long it is until then, by the database's clock."""
    return ends - read_clock(alias)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [*KINDS, "now"])
def test_a_step_renews_the_lease(alias: str, play: Play, kind: str) -> None:
    """The last statement of what it writes does; an atomic_step, however long it takes, ends with a whole lease."""
    lefts: list[timedelta] = []

    def handler(context: JobContext) -> None:
        jobs().update(lease_expires_at=read_clock(alias) + SOON)
        if kind == "now":
            context.now()
        else:
            getattr(context, kind)("charge", Note.objects.using(alias).count)
        lefts.append(left(alias, queue.get(job).lease_expires_at))

    job = play(handler)
    assert attempt(job, lease=LEASE).status == JobStatus.DONE
    assert LEASE - SOON < lefts[0] <= LEASE


def test_a_step_renews_the_lease_before_its_function_is_called(alias: str, play: Play) -> None:
    """So that it begins with a whole one, though the steps before it have used up the last."""
    lefts: list[timedelta] = []

    def handler(context: JobContext) -> None:
        jobs().update(lease_expires_at=read_clock(alias) + SOON)
        context.step("charge", lambda: lefts.append(left(alias, queue.get(job).lease_expires_at)))

    job = play(handler)
    assert attempt(job, lease=LEASE).status == JobStatus.DONE
    assert LEASE - SOON < lefts[0] <= LEASE


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_writes_nothing_and_renews_nothing(alias: str, play: Play, kind: str) -> None:
    lefts: list[timedelta] = []

    def handler(context: JobContext) -> None:
        jobs().update(lease_expires_at=read_clock(alias) + SOON)
        getattr(context, kind)("charge", lambda: None)
        lefts.append(left(alias, queue.get(job).lease_expires_at))

    job = play(crashing(handler))
    attempt(job, lease=LEASE)
    attempt(job, lease=LEASE)
    assert lefts[1] <= SOON < lefts[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_a_run_outside_a_job_renews_its_run_lock(alias: str, kind: str) -> None:
    lock = RunLock.objects.using(alias)
    with durable_run("import 7", ttl=LEASE) as run:
        lock.update(expires_at=read_clock(alias) + SOON)
        getattr(run, kind)("charge", lambda: None)
        assert LEASE - SOON < left(alias, lock.get().expires_at) <= LEASE


def test_the_lease_is_renewed_while_the_outcome_waits_for_an_open_step(
    alias: str, play: Play, gate: Gate, in_thread: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is through, a thread of it not."""
    waiting, renewed_since = threading.Event(), threading.Semaphore(0)
    end, renew = Run.end, leases.renew

    def end_and_tell(run: Run) -> None:
        waiting.set()
        end(run)

    def renew_and_tell(*args: Any, **kwargs: Any) -> Any:
        renewed = renew(*args, **kwargs)
        if waiting.is_set() and renewed:
            renewed_since.release()
        return renewed

    monkeypatch.setattr(Run, "end", end_and_tell)
    monkeypatch.setattr(leases, "renew", renew_and_tell)

    def handler(context: JobContext) -> None:
        in_thread(context.using(key="EU").step, "charge", gate.wait)
        gate.until_reached()

    job = play(handler)
    ran = in_thread(Worker(["default"], lease=0.6).run_once)
    for _ in range(4):  # of which there are three to a lease
        assert renewed_since.acquire(timeout=30)
    assert (queue.get(job).status, queue.get(job).lease_token) == (JobStatus.IN_PROGRESS, 1)
    gate.open()
    assert ran.result(30).status == JobStatus.DONE
    assert entry(job).status == EntryStatus.DONE
