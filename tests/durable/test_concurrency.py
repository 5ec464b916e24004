"""Steps under gather, in a TaskGroup and in threads."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from gnlqueue import JobContext, queue
from gnlqueue.durable.run import Run
from gnlqueue.exceptions import JobBlocked
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable.conftest import KINDS, Gate, Ledger, attempt, entries, in_pool, on_sqlite

Play = Callable[..., Job]


@pytest.mark.parametrize("kind", ["astep", "aidempotent_step", "aatomic_step", "asleep", "anow"])
def test_asynchronous_steps_are_replayed(aplay: Play, ledger: Ledger, kind: str) -> None:
    async def charge(cents: int) -> str:
        await asyncio.sleep(0)
        return str(ledger.add(f"charged {cents}"))

    async def handler(context: JobContext) -> list[Any]:
        calls: dict[str, Callable[[], Any]] = {
            "astep": lambda: context.astep("do", charge, 5),
            "aidempotent_step": lambda: context.aidempotent_step("do", charge, 5),
            "aatomic_step": lambda: context.aatomic_step("do", lambda cents: ledger.add(f"charged {cents}"), 5),
            "asleep": lambda: context.asleep("do", 0),
            "anow": lambda: context.anow(),
        }
        result = await calls[kind]()
        if context.attempt == 1:
            raise OSError("crash")
        return [str(result)]

    job = aplay(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    done = attempt(job)
    assert done.status == JobStatus.DONE
    if "step" in kind:
        assert (done.result, len(ledger)) == (["charged 5"], 1)


@on_sqlite
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_step_refuses_a_coroutine_before_anything_begins(play: Play, kind: str) -> None:
    async def charge() -> None:
        raise AssertionError

    job = play(lambda context: getattr(context, kind)("charge", charge), max_attempts=1)
    assert "is async def" in (attempt(job).last_error or "")
    assert not entries(job).exists()


@on_sqlite
def test_an_atomic_step_refuses_a_coroutine_in_asynchronous_code_too(aplay: Play) -> None:
    async def reserve() -> None:
        raise AssertionError

    async def handler(context: JobContext) -> None:
        await context.aatomic_step("reserve", reserve)

    assert "a plain def" in (attempt(aplay(handler, max_attempts=1)).last_error or "")


def test_an_asynchronous_sleep_suspends(aplay: Play) -> None:
    async def handler(context: JobContext) -> None:
        await context.asleep("cool down", 60)

    assert attempt(aplay(handler)).status == JobStatus.SCHEDULED


def gathered(context: JobContext, branches: Any, how: str) -> Any:
    """Run coroutines side by side."""

    async def in_task_group() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(each) for each in branches]
        return [each.result() for each in started]

    return in_task_group() if how == "TaskGroup" else asyncio.gather(*branches, return_exceptions="exc" in how)


HOW = ["gather", "gather, return_exceptions", "TaskGroup"]


@pytest.mark.parametrize("how", HOW)
def test_asyncio_tasks_replay_whatever_order_they_finish_in(aplay: Play, ledger: Ledger, how: str) -> None:
    async def handler(context: JobContext) -> Any:
        first = context.claimed.lease_token == 1
        numbers = range(5) if first else reversed(range(5))

        async def charge(number: int) -> str:
            return str(ledger.add(f"charged {number}"))

        async def branch(number: int) -> Any:
            one = await context.using(key=f"{number}").astep("charge", charge, number)
            return [one, await context.using(key=f"{number}").aidempotent_step("ship", charge, number)]

        results = await gathered(context, [branch(number) for number in numbers], how)
        if first:
            raise OSError("crash")
        return sorted(results)

    job = aplay(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == [[f"charged {number}"] * 2 for number in range(5)]
    assert len(ledger) == 10


def test_threads_replay_whatever_order_they_finish_in(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> Any:
        first = context.claimed.lease_token == 1
        numbers = list(range(6)) if first else list(reversed(range(6)))

        def branch(number: int) -> Any:
            steps = context.using(key=f"{number}")
            return [getattr(steps, kind)(kind, ledger.add, number) for kind in ("step", "atomic_step")]

        results = in_pool([lambda number=number: branch(number) for number in numbers])
        if first:
            raise OSError("crash")
        return sorted(results)

    job = play(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == [[number] * 2 for number in range(6)]
    assert len(ledger) == 12


@on_sqlite
def test_a_thread_needs_an_explicit_key(play: Play, ledger: Ledger) -> None:
    job = play(lambda context: in_pool([lambda: context.step("charge", ledger.add)]), max_attempts=1)
    assert "give it a key that names it" in (attempt(job).last_error or "")
    assert len(ledger) == 0


@on_sqlite
def test_an_asyncio_task_needs_an_explicit_key(aplay: Play, ledger: Ledger) -> None:
    async def charge() -> None:
        ledger.add()

    async def handler(context: JobContext) -> None:
        await asyncio.gather(context.astep("charge", charge))

    assert "give it a key that names it" in (attempt(aplay(handler, max_attempts=1)).last_error or "")
    assert len(ledger) == 0


@on_sqlite
def test_a_key_used_twice_is_refused(play: Play) -> None:
    def handler(context: JobContext) -> None:
        for _ in range(2):
            context.using(key="EU").step("charge", lambda: None)

    assert "is used twice" in (attempt(play(handler, max_attempts=1)).last_error or "")


@on_sqlite
@pytest.mark.parametrize("call", ["sleep", "now"])
def test_times_belong_in_the_main_flow(play: Play, call: str) -> None:
    def branch(context: JobContext) -> None:
        context.now() if call == "now" else context.sleep("cool down", 1)

    job = play(lambda context: in_pool([lambda: branch(context)]), max_attempts=1)
    assert "belongs in the main flow" in (attempt(job).last_error or "")


@on_sqlite
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("swallowed", [False, True])
def test_an_interrupt_in_one_branch_stops_the_run(aplay: Play, ledger: Ledger, how: str, swallowed: bool) -> None:
    async def no_answer() -> None:
        raise TimeoutError("no answer")

    async def charge() -> None:
        ledger.add()

    async def handler(context: JobContext) -> str:
        try:
            await gathered(context, [context.using(key="EU").astep("charge", no_answer)], how)
        except BaseException:
            if not swallowed:
                raise
        try:
            await context.astep("ship", charge)
        except BaseException:
            if not swallowed:
                raise
        return "all is well"

    job = aplay(handler)
    assert attempt(job).status == JobStatus.BLOCKED
    assert len(ledger) == 0


@on_sqlite
def test_an_interrupt_in_one_thread_stops_the_run(play: Play, ledger: Ledger) -> None:
    def no_answer() -> None:
        raise TimeoutError("no answer")

    def handler(context: JobContext) -> str:
        def branch() -> None:
            with pytest.raises(JobBlocked):
                context.using(key="EU").step("charge", no_answer)

        in_pool([branch])
        with pytest.raises(JobBlocked):
            context.step("ship", ledger.add)
        return "all is well"

    assert attempt(play(handler)).status == JobStatus.BLOCKED
    assert len(ledger) == 0


def test_no_outcome_is_written_while_a_thread_is_inside_a_step(
    play: Play, gate: Gate, in_thread: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = threading.Event()
    end = Run.end

    def end_and_tell(run: Run) -> None:
        ending.set()
        end(run)

    monkeypatch.setattr(Run, "end", end_and_tell)
    branches: list[Future[Any]] = []

    def handler(context: JobContext) -> str:
        branches.append(in_thread(context.using(key="EU").step, "charge", lambda: gate.wait() or "paid"))
        gate.until_reached()
        return "the handler is through"

    job = play(handler)
    ended = in_thread(attempt, job)
    assert ending.wait(30)
    assert queue.get(job).status == JobStatus.IN_PROGRESS
    gate.open()
    assert ended.result(30).status == JobStatus.DONE
    assert branches[0].result(30) == "paid"
    assert entries(job).get().status == EntryStatus.DONE


def test_no_outcome_is_written_while_an_asyncio_task_is_inside_a_step(aplay: Play, ledger: Ledger) -> None:
    """Whether or not the handler waits for it: here the other branch fails first."""

    async def handler(context: JobContext) -> None:
        began = asyncio.Event()

        async def slow() -> str:
            began.set()
            await asyncio.sleep(0.05)
            return str(ledger.add("paid"))

        async def fail() -> None:
            await began.wait()
            raise OSError("no")

        await asyncio.gather(context.using(key="EU").astep("charge", slow), fail())

    job = aplay(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert (entries(job).get().status, len(ledger)) == (EntryStatus.DONE, 1)
