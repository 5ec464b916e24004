"""Locks on run ids, and runs outside a job."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from gnlqueue import (
    GoOn,
    Happened,
    JobContext,
    JournalMismatch,
    LeaseLost,
    NotHappened,
    RunBlocked,
    RunLocked,
    StepFailed,
    durable_run,
    queue,
    resolve,
    run_lock,
)
from gnlqueue.durable import locks
from gnlqueue.durable.fences import LockFence
from gnlqueue.models import EntryStatus, Job, JobStatus, RunLock
from gnlqueue.queue.transactions import alias_of
from tests.durable import tasks
from tests.durable.conftest import PAST, Gate, Ledger, attempt, entries, jobs, notes, on_sqlite

Play = Callable[..., Job]
InThread = Callable[..., Future[Any]]


def rows() -> Any:
    """The rows of locks."""
    return RunLock.objects.using(alias_of(None))


def test_nobody_else_holds_a_lock_meanwhile(alias: str, gate: Gate, in_thread: InThread) -> None:
    def hold() -> None:
        with run_lock("import"):
            gate.wait()

    holder = in_thread(hold)
    gate.until_reached()
    with pytest.raises(RunLocked, match=r"is locked by .* thread"), run_lock("import"):
        pass
    with run_lock("another import"):
        gate.open()
    holder.result(30)
    with run_lock("import"):
        pass


def test_one_can_wait_for_it(alias: str, gate: Gate, in_thread: InThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def hold() -> None:
        with run_lock("import"):
            gate.wait()

    monkeypatch.setattr(locks, "POLL", 0.01)
    acquire = locks._try_to_acquire

    def open_at_the_second_try(*args: Any) -> int | None:
        token = acquire(*args)
        if token is None:
            gate.open()
        return token

    holder = in_thread(hold)
    gate.until_reached()
    monkeypatch.setattr(locks, "_try_to_acquire", open_at_the_second_try)
    with run_lock("import", wait=timedelta(seconds=30)):
        pass
    holder.result(30)


def test_of_many_who_want_it_at_once_one_has_it(alias: str, run_threads: Callable[..., list[Any]]) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> str:
        with run_lock("import", wait=60):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
        return "done"

    assert run_threads(5, work) == ["done"] * 5
    assert max(most) == 1


def test_it_nests_and_is_free_afterwards(alias: str) -> None:
    with run_lock("import"), run_lock("import"):
        assert rows().get().owner is not None
    assert rows().get().owner is None


@pytest.mark.parametrize("lock", [run_lock, durable_run])
def test_it_is_renewed_while_it_is_held(alias: str, lock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()
    hold = LockFence.hold
    held: list[bool] = []

    def hold_and_tell(fence: LockFence, *, starting: bool) -> bool:
        held.append(hold(fence, starting=starting))
        if len(held) == 3:
            renewed.set()
        return held[-1]

    monkeypatch.setattr(LockFence, "hold", hold_and_tell)
    with lock("import", ttl=0.3):
        first = rows().get().expires_at
        assert renewed.wait(30)
        assert rows().get().expires_at > first
    assert held[:3] == [True] * 3


def test_it_nests_in_a_run_outside_a_job_too(alias: str, ledger: Ledger) -> None:
    with durable_run("import 7") as run, run_lock(run.run_id), run_lock("import 7"):
        run.step("charge", ledger.add)
        assert rows().get().owner is not None
    assert (rows().get().owner, rows().get().lease_token, len(ledger)) == (None, 1, 1)


def test_a_lock_whose_time_is_up_is_taken_over(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    with run_lock("import"):
        rows().update(expires_at=PAST)
        locks._held.set(frozenset())  # as another process would see it
        with run_lock("import"):
            assert rows().get().lease_token == 2
    assert "was lost before its block ended" in caplog.text


@pytest.mark.parametrize("lock", [run_lock, durable_run])
def test_it_is_refused_inside_atomic(alias: str, lock: Any) -> None:
    with pytest.raises(RuntimeError, match="inside atomic"), transaction.atomic(alias), lock("import"):
        pass


@on_sqlite
@pytest.mark.parametrize("lock", [run_lock, durable_run])
@pytest.mark.parametrize("run_id", ["", "x" * 201, 5, "a\0", "\ud800"])
def test_a_run_id_that_makes_no_sense_is_refused(alias: str, lock: Any, run_id: Any) -> None:
    with pytest.raises(ValueError, match="A run id must be a string"), lock(run_id):
        pass


def test_run_ids_compare_byte_for_byte(alias: str) -> None:
    with run_lock("import"), run_lock("IMPORT"), run_lock("import "):
        assert rows().count() == 3


# --- in a job --------------------------------------------------------------------------------------------------------


def test_a_handler_may_lock_its_own_run_id(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> str:
        with run_lock(context.run_id), durable_run(context.run_id) as run:
            assert run is context
            return run.step("charge", ledger.add, "paid")

    job = attempt(play(handler))
    assert (job.status, job.result) == (JobStatus.DONE, "paid")
    assert [each.run_id for each in rows()] == [job.run_id]


def test_prune_takes_the_lock_with_the_job(play: Play) -> None:
    def handler(context: JobContext) -> None:
        with run_lock(context.run_id), run_lock("something else"):
            pass

    job = attempt(play(handler))
    queue.prune(timedelta(0), now=job.enqueued_at + timedelta(days=1))
    assert [each.run_id for each in rows()] == ["something else"]


def test_the_run_of_a_job_belongs_to_it_alone(play: Play) -> None:
    job = play(lambda context: None)
    with pytest.raises(ValueError, match="belongs to it alone"), durable_run(job.run_id):
        pass

    def handler(context: JobContext) -> None:
        with durable_run("job:0"):
            pass

    tasks.handlers["play"] = handler
    assert "belongs to it alone" in (attempt(job).last_error or "")


@on_sqlite
@pytest.mark.parametrize("prefix", ["JOB:", "jöb:", "\uff4aob:"])
def test_so_does_what_a_collation_holds_for_it(alias: str, prefix: str) -> None:
    """MariaDB and MySQL would find its journal with that of the job, and prune it with the job."""
    with pytest.raises(ValueError, match="belongs to it alone"), durable_run(f"{prefix}1"):
        pass


# --- outside a job ---------------------------------------------------------------------------------------------------


def import_orders(ledger: Ledger, *, crash: bool) -> list[Any]:
    """A run of three steps."""
    with durable_run("import 7") as run:
        results = [getattr(run, kind)(kind, ledger.add, kind) for kind in ("step", "idempotent_step", "atomic_step")]
        if crash:
            raise OSError("crash")
        return [*results, str(run.now())]


def test_the_same_id_goes_on_with_the_same_journal(alias: str, ledger: Ledger) -> None:
    with pytest.raises(OSError, match="crash"):
        import_orders(ledger, crash=True)
    first = import_orders(ledger, crash=False)
    assert import_orders(ledger, crash=False) == first
    assert len(ledger) == 3


def test_a_run_that_somebody_has_open_is_locked(alias: str) -> None:
    with durable_run("import 7"):
        locks._held.set(frozenset())
        with pytest.raises(RunLocked), durable_run("import 7"):
            pass


@pytest.mark.parametrize("clause", [ZeroDivisionError, Exception])
def test_a_doubt_blocks_the_run_however_it_is_caught(alias: str, ledger: Ledger, clause: type[Exception]) -> None:
    def charge() -> str:
        ledger.add()
        if len(ledger) == 1:
            raise TimeoutError("no answer")
        return "paid"

    def run() -> str:
        with durable_run("import 7") as run:
            try:
                return run.step("charge", charge)
            except clause:
                return "all is well"

    for _ in range(2):
        with pytest.raises(RunBlocked, match=r"manage\.py gnlqueue resolve"):
            run()
    assert len(ledger) == 1
    resolve(entries().get(), NotHappened(), by="ada", reason="asked")
    assert run() == "paid"
    assert entries().get().status == EntryStatus.DONE


def test_happened_is_an_answer_for_a_run_outside_a_job_too(alias: str) -> None:
    def charge() -> None:
        raise TimeoutError

    with pytest.raises(RunBlocked), durable_run("import 7") as run:
        run.step("charge", charge)
    resolve(entries().get(), Happened("paid"), by="ada", reason="asked")
    with durable_run("import 7") as run:
        assert run.step("charge", charge) == "paid"


def test_on_doubt_fail_is_no_lost_lease(alias: str) -> None:
    def charge() -> None:
        raise TimeoutError

    with pytest.raises(RunBlocked), durable_run("import 7") as run:
        run.using(on_doubt="fail").step("charge", charge)


@on_sqlite
def test_an_answer_that_does_not_fit_is_told_what_does_and_there_is_no_job_to_fail(alias: str) -> None:
    def charge() -> None:
        raise TimeoutError

    with pytest.raises(RunBlocked), durable_run("import 7") as run:
        run.step("charge", charge)
    with pytest.raises(ValueError, match=r"'import 7' is in doubt, .* or NotHappened\(\) \(--not-happened\)\.$"):
        resolve(entries().get(), GoOn(), by="ada", reason="sure")


def test_code_that_does_not_fit_is_a_mismatch(alias: str) -> None:
    with durable_run("import 7") as run:
        run.step("charge", lambda: None)
    with pytest.raises(JournalMismatch, match="or give the run another id"), durable_run("import 7") as run:
        run.step("ship", lambda: None)


@on_sqlite
def test_a_failure_surfaces_as_such(alias: str) -> None:
    def charge() -> None:
        raise OSError("no route")

    with pytest.raises(StepFailed), durable_run("import 7") as run:
        run.idempotent_step("charge", charge)


def test_there_is_no_sleep(alias: str) -> None:
    with pytest.raises(RuntimeError, match="Only a job's run can sleep"), durable_run("import 7") as run:
        run.sleep("cool down", 1)


@pytest.mark.parametrize("kind", ["step", "idempotent_step", "atomic_step"])
def test_the_lock_s_token_fences_the_run_that_was_taken_over(alias: str, ledger: Ledger, kind: str) -> None:
    def take_over() -> None:
        rows().update(expires_at=PAST)
        token = locks._try_to_acquire("import 7", RunLock.key("import 7"), alias, timedelta(60))
        assert token == 2

    def run_on() -> None:
        with durable_run("import 7") as run:
            run.step("begin", lambda: None)
            take_over()
            getattr(run, kind)("charge", ledger.add)

    with pytest.raises(LeaseLost):
        run_on()
    assert len(ledger) == 0
    assert [each.key for each in entries()] == ["begin"]


def test_what_a_late_run_brought_back_is_kept(alias: str) -> None:
    def charge() -> str:
        rows().update(lease_token=2)
        return "paid"

    with pytest.raises(LeaseLost), durable_run("import 7") as run:
        run.step("charge", charge)
    assert [note.value for note in notes()] == ['"paid"']
    assert entries().get().status == EntryStatus.STARTED


@on_sqlite
def test_jobs_are_not_touched(alias: str) -> None:
    with durable_run("import 7") as run:
        run.check()
    assert not jobs().exists()
