"""Steps under gather, in a TaskGroup and in threads."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from gnlqueue import JobContext, queue
from gnlqueue.durable.run import Run
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable.conftest import HOW, KINDS, Gate, Ledger, attempt, entries, gathered, in_pool, on_sqlite

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


@pytest.mark.parametrize("how", HOW)
def test_asyncio_tasks_replay_whatever_order_they_begin_in(aplay: Play, ledger: Ledger, how: str) -> None:
    async def handler(context: JobContext) -> Any:
        first = context.claimed.lease_token == 1
        numbers = range(5) if first else reversed(range(5))

        async def charge(number: int) -> str:
            return str(ledger.add(f"charged {number}"))

        async def branch(number: int) -> Any:
            one = await context.using(key=f"{number}").astep("charge", charge, number)
            return [one, await context.using(key=f"{number}").aidempotent_step("ship", charge, number)]

        results = await gathered([branch(number) for number in numbers], how)
        if first:
            raise OSError("crash")
        return sorted(results)

    job = aplay(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == [[f"charged {number}"] * 2 for number in range(5)]
    assert len(ledger) == 10


def test_threads_replay_whatever_order_they_begin_in(play: Play, ledger: Ledger) -> None:
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


ORDERS = list(itertools.permutations(range(3)))


class Turns:
    """Lets branches go on in a given order, each when the one before it has gone on."""

    def __init__(self, order: tuple[int, ...]) -> None:
        self._order = order
        self._ready = {number: threading.Event() for number in order}
        self._ready[order[0]].set()

    def wait(self, number: int) -> None:
        """Wait until it is this one's turn."""
        assert self._ready[number].wait(30)

    def end(self, number: int) -> None:
        """Let the next one have its turn."""
        place = self._order.index(number)
        if place + 1 < len(self._order):
            self._ready[self._order[place + 1]].set()


#: Every order where it costs least, one on the servers.
EACH_ORDER = [("sqlite", order) for order in ORDERS] + [(alias, ORDERS[-1]) for alias in ("postgresql", "mysql")]


@pytest.mark.parametrize(("alias", "order"), EACH_ORDER, indirect=["alias"], ids=str)
@pytest.mark.parametrize("how", [*HOW, "threads"])
def test_branches_that_finished_in_any_order_are_replayed_in_any_other(
    alias: str, play: Play, aplay: Play, ledger: Ledger, how: str, order: tuple[int, ...]
) -> None:
    """All are inside their steps before the first one ends; a replay asks for them in each of the other orders."""
    orders = [order, *(each for each in ORDERS if each != order)]

    def charge(number: int, turns: Turns, inside: threading.Barrier) -> str:
        inside.wait()
        turns.wait(number)
        return str(ledger.add(f"charged {number}"))

    def crash_or_sort(context: JobContext, results: list[Any]) -> list[Any]:
        if context.attempt < len(orders):
            raise OSError("crash")
        return sorted(results)

    def in_threads(context: JobContext) -> list[Any]:
        turns, inside = Turns(orders[context.attempt - 1]), threading.Barrier(3, timeout=30)

        def branch(number: int) -> str:
            if context.attempt > 1:
                turns.wait(number)
            result = context.using(key=f"{number}").step("charge", lambda: charge(number, turns, inside))
            turns.end(number)
            return result

        return crash_or_sort(context, in_pool([partial(branch, number) for number in range(3)]))

    async def in_tasks(context: JobContext) -> list[Any]:
        turns, inside = Turns(orders[context.attempt - 1]), threading.Barrier(3, timeout=30)

        async def branch(number: int) -> str:
            if context.attempt > 1:
                await asyncio.to_thread(turns.wait, number)
            result = await context.using(key=f"{number}").astep(
                "charge", lambda: asyncio.to_thread(charge, number, turns, inside)
            )
            turns.end(number)
            return result

        return crash_or_sort(context, await gathered([branch(number) for number in range(3)], how))

    enqueue = play(in_threads, max_attempts=9) if how == "threads" else aplay(in_tasks, max_attempts=9)
    for _ in orders:
        ended = attempt(enqueue)
    assert (ended.status, ended.result) == (JobStatus.DONE, [f"charged {number}" for number in range(3)])
    assert len(ledger) == 3


@on_sqlite
def test_a_thread_needs_an_explicit_key(play: Play, ledger: Ledger) -> None:
    job = play(lambda context: in_pool([lambda: context.step("charge", ledger.add)]), max_attempts=1)
    assert "give it a key that names it" in (attempt(job).last_error or "")
    assert len(ledger) == 0


@on_sqlite
@pytest.mark.parametrize("how", [*HOW, "to_thread", "to_thread, atomic_step"])
def test_an_asyncio_task_needs_an_explicit_key(aplay: Play, ledger: Ledger, how: str) -> None:
    async def charge() -> None:
        ledger.add()

    async def handler(context: JobContext) -> None:
        if "to_thread" in how:
            await asyncio.to_thread(context.atomic_step if "atomic" in how else context.step, "charge", ledger.add)
        elif results := await gathered([context.astep("charge", charge)], how):
            raise results[0]

    ended = attempt(aplay(handler, max_attempts=1))
    assert ended.status == JobStatus.DEAD
    assert "give it a key that names it" in queue.get(ended).failed_attempts.get().error
    assert (len(ledger), entries(ended).count()) == (0, 0)


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
