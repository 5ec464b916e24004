"""A run that is lost, cancelled or told to stop in the middle of a step."""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from gnlqueue import JobContext, queue
from gnlqueue.models import EntryStatus, Job, JobStatus
from gnlqueue.worker.loop import Worker
from tests.durable.conftest import (
    KINDS,
    PAST,
    Gate,
    Ledger,
    attempt,
    claim,
    end_lease,
    entries,
    entry,
    jobs,
    notes,
    on_sqlite,
)

Play = Callable[..., Job]
InThread = Callable[..., Future[Any]]


def test_the_new_worker_finds_the_step_in_doubt_at_once_and_does_not_run_it(
    play: Play, ledger: Ledger, gate: Gate, in_thread: InThread
) -> None:
    def charge() -> dict[str, int]:
        ledger.add()
        gate.wait()
        return {"id": 7}

    job = play(lambda context: context.step("charge", charge))
    late = in_thread(attempt, job)
    gate.until_reached()
    end_lease(job)
    assert attempt(job).status == JobStatus.BLOCKED

    gate.open()
    late.result(30)
    assert (queue.get(job).status, entry(job).status) == (JobStatus.BLOCKED, EntryStatus.IN_DOUBT)
    assert entry(job).result is None
    (evidence,) = notes()
    assert (evidence.lease_token, evidence.value) == (1, '{"id":7}')
    assert "no longer held the run" in evidence.why
    assert len(ledger) == 1


def test_what_a_late_worker_s_step_raised_is_kept_too(play: Play) -> None:
    job = play(lambda context: context.step("charge", lambda: lose(job, OSError("no answer"))))
    run_and_lose()
    (evidence,) = notes()
    assert "no answer" in (evidence.value or "")


def lose(job: Job, outcome: Any = None) -> Any:
    """Let somebody else claim the job, in the middle of a step."""
    end_lease(job)
    claim(job, "another")
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_and_lose() -> None:
    """Run the job, which another claims meanwhile."""
    ran = Worker(["default"], heartbeat=False).run_once()
    assert ran is not None
    assert (ran.status, ran.worker_id, ran.lease_token) == (JobStatus.IN_PROGRESS, "another", 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clause", [ZeroDivisionError, Exception, BaseException])
def test_nothing_begins_and_nothing_succeeds_after_the_lease_was_lost(
    alias: str, play: Play, ledger: Ledger, in_thread: InThread, kind: str, clause: type[BaseException]
) -> None:
    def handler(context: JobContext) -> str:
        steps = [("lose", lambda: in_thread(lose, job).result(30)), ("go on", ledger.add)]
        if alias == "default" and kind == "atomic_step":
            steps[0] = ("lose", ledger.add)  # while one runs, nobody else writes to SQLite
            lose(job)
        for name, function in steps:
            with contextlib.suppress(clause):
                getattr(context, kind)(name, function)
        return "all is well"

    job = play(handler)
    run_and_lose()
    assert len(ledger) == 0
    assert [each.key for each in entries(job)] == (["lose"] if kind == "step" else [])


@on_sqlite
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clause", [Exception, BaseException])
def test_nothing_begins_and_nothing_succeeds_after_the_lease_was_lost_in_asynchronous_code(
    aplay: Play, ledger: Ledger, kind: str, clause: type[BaseException]
) -> None:
    async def lose_it() -> None:
        await sync_to_async(lose)(job)

    async def go_on() -> None:
        ledger.add()

    async def handler(context: JobContext) -> str:
        with contextlib.suppress(clause):
            await context.astep("lose", lose_it)
        with contextlib.suppress(clause):
            await getattr(context, f"a{kind}")("go on", ledger.add if kind == "atomic_step" else go_on)
        return "all is well"

    job = aplay(handler)
    run_and_lose()
    assert len(ledger) == 0
    assert [each.key for each in entries(job)] == ["lose"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_begins_after_the_lease_was_lost(play: Play, ledger: Ledger, kind: str) -> None:
    def handler(context: JobContext) -> None:
        lose(job)
        getattr(context, kind)("charge", ledger.add)

    job = play(handler)
    run_and_lose()
    assert (len(ledger), entries(job).count()) == (0, 0)


@pytest.mark.parametrize("clause", [ZeroDivisionError, BaseException])
@pytest.mark.parametrize("kind", [*KINDS, "sleep", "now", "check"])
def test_nothing_begins_after_somebody_asked_to_cancel(
    play: Play, ledger: Ledger, kind: str, clause: type[BaseException]
) -> None:
    calls: dict[str, Callable[[JobContext], Any]] = {
        **{each: lambda context, each=each: getattr(context, each)("charge", ledger.add) for each in KINDS},
        "sleep": lambda context: context.sleep("cool down", 60),
        "now": lambda context: context.now(),
        "check": lambda context: context.check(),
    }

    def handler(context: JobContext) -> None:
        queue.cancel(job)
        with contextlib.suppress(clause):
            calls[kind](context)

    job = play(handler)
    assert attempt(job).status == JobStatus.CANCELLED
    assert (len(ledger), entries(job).count()) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_open_when_somebody_asks_to_cancel_records_its_outcome(
    play: Play, ledger: Ledger, in_thread: InThread, kind: str
) -> None:
    def cancel_first() -> str:
        in_thread(queue.cancel, job).result(30)
        return ledger.add("paid")

    def handler(context: JobContext) -> None:
        getattr(context, kind)("charge", cancel_first)
        context.step("ship", ledger.add)

    job = play(handler)
    if kind == "atomic_step" and job._state.db == "default":
        pytest.skip("while an atomic step runs, nobody else writes to SQLite")
    assert attempt(job).status == JobStatus.CANCELLED
    assert (entry(job).key, entry(job).status, len(ledger)) == ("charge", EntryStatus.DONE, 1)


def test_a_handler_that_finishes_first_is_done(play: Play) -> None:
    def handler(context: JobContext) -> str:
        context.step("charge", lambda: None)
        queue.cancel(job)
        return "ready"

    job = play(handler)
    assert attempt(job).status == JobStatus.DONE


def test_a_doubt_outlives_cancel(play: Play) -> None:
    def charge() -> None:
        queue.cancel(job)
        raise TimeoutError

    job = play(lambda context: context.step("charge", charge))
    attempt(job)
    assert entry(job).status == EntryStatus.IN_DOUBT


@pytest.mark.parametrize("kind", [*KINDS, "now"])
def test_no_step_begins_once_the_worker_shuts_down_and_the_run_goes_on_elsewhere(
    play: Play, ledger: Ledger, kind: str
) -> None:
    def begin(context: JobContext) -> Any:
        return context.now() and ledger.add() if kind == "now" else getattr(context, kind)("charge", ledger.add)

    def handler(context: JobContext) -> str:
        context.step("prepare", lambda: None)
        if context.claimed.lease_token == 1:
            worker.stop()
        begin(context)
        return "there"

    job = play(handler, max_attempts=1)
    worker = Worker(["default"], heartbeat=False)
    stopped = worker.run_once()
    assert stopped is not None
    assert (stopped.status, stopped.attempts, len(ledger)) == (JobStatus.SCHEDULED, 0, 0)
    done = attempt(job)
    assert (done.status, done.result, len(ledger)) == (JobStatus.DONE, "there", 1)


@on_sqlite
def test_a_step_that_is_recorded_is_replayed_also_at_shutdown(play: Play) -> None:
    def handler(context: JobContext) -> str:
        if context.claimed.lease_token == 2:
            worker.stop()
        result = context.step("charge", lambda: "paid")
        if context.claimed.lease_token == 1:
            raise OSError("crash")
        return result

    job = play(handler)
    attempt(job)
    worker = Worker(["default"], heartbeat=False)
    jobs().update(run_at=PAST)
    done = worker.run_once()
    assert done is not None
    assert done.result == "paid"


@on_sqlite
def test_a_step_after_the_end_of_the_attempt_does_not_begin(play: Play, ledger: Ledger) -> None:
    left: list[JobContext] = []
    job = play(left.append)
    assert attempt(job).status == JobStatus.DONE
    with pytest.raises(BaseException, match="has ended"):
        left[0].step("charge", ledger.add)
    assert len(ledger) == 0
