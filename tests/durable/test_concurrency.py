"""Steps under gather, in a TaskGroup and in threads."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from gnlqueue import JobContext, StepFailed, queue
from gnlqueue.durable.entries import Journal
from gnlqueue.durable.run import Run
from gnlqueue.exceptions import JobBlocked
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.durable import tasks
from tests.durable.conftest import KINDS, Gate, Ledger, attempt, entries, on_sqlite

Play = Callable[..., Job]


def in_pool(branches: list[Callable[[], Any]], workers: int = 4) -> list[Any]:
    """Call the functions in threads; their results, or the first exception."""

    def closing(branch: Callable[[], Any]) -> Any:
        try:
            return branch()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(closing, branches))


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


def test_a_task_that_is_cancelled_in_the_middle_of_a_step_leaves_it_in_doubt(aplay: Play, ledger: Ledger) -> None:
    async def handler(context: JobContext) -> str:
        async def charge() -> None:
            ledger.add()
            await asyncio.sleep(30)

        try:
            async with asyncio.timeout(0.2):
                await context.astep("charge", charge)
        except TimeoutError:
            pass
        return "all is well"

    job = aplay(handler)
    assert attempt(job).status == JobStatus.BLOCKED
    assert entries(job).get().status == EntryStatus.IN_DOUBT
    assert len(ledger) == 1


def test_a_task_that_is_cancelled_before_the_function_was_called_leaves_no_doubt(
    aplay: Play, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, cancelled = threading.Event(), threading.Event()
    insert = Journal.insert

    def insert_slowly(*args: Any, **kwargs: Any) -> Any:
        entry = insert(*args, **kwargs)
        started.set()
        cancelled.wait(30)
        return entry

    async def charge() -> str:
        return str(ledger.add("paid"))

    async def handler(context: JobContext) -> Any:
        if context.claimed.lease_token == 1:
            with monkeypatch.context() as patched:
                patched.setattr(Journal, "insert", insert_slowly)
                task = asyncio.create_task(context.using(key="EU").astep("charge", charge))
                await asyncio.to_thread(started.wait, 30)
                task.cancel()
                await asyncio.sleep(0)
                cancelled.set()
                await asyncio.wait([task])
            assert task.cancelled()
            raise OSError("crash")
        return await context.using(key="EU").astep("charge", charge)

    job = aplay(handler)
    attempt(job)
    assert (entries(job).get().status, len(ledger)) == (EntryStatus.FAILED, 0)
    assert attempt(job).result == "paid"


@on_sqlite
def test_a_task_that_is_cancelled_while_its_step_opens_does_not_hold_up_the_outcome(
    aplay: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, cancelled = threading.Event(), threading.Event()
    load = Run._load

    def load_slowly(run: Run) -> Any:
        opening.set()
        cancelled.wait(30)
        return load(run)

    monkeypatch.setattr(Run, "_load", load_slowly)

    async def nothing() -> None:
        pass

    async def handler(context: JobContext) -> str:
        task = asyncio.create_task(context.using(key="EU").astep("charge", nothing))
        await asyncio.to_thread(opening.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        return "fine"

    assert attempt(aplay(handler)).status == JobStatus.DONE


def refuse_first(ledger: Ledger) -> Callable[[], str]:
    """Fail safely at the first call."""

    def charge() -> str:
        ledger.add()
        if len(ledger) == 1:
            raise tasks.Refused("no route")
        return "paid"

    return charge


@on_sqlite
def test_a_failure_in_one_piece_of_work_of_a_pool_is_not_sealed_by_the_next(play: Play, ledger: Ledger) -> None:
    """One thread does both, one after the other; the handler has not caught anything."""

    def handler(context: JobContext) -> Any:
        def branch(key: str, charge: Callable[[], str]) -> str:
            return context.using(key=key, safe_errors=tasks.Refused).step("charge", charge)

        return in_pool([lambda: branch("EU", refuse_first(ledger)), lambda: branch("US", lambda: "paid")], workers=1)

    job = play(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == ["paid", "paid"]


@on_sqlite
def test_a_failure_that_a_thread_caught_and_went_on_after_is_sealed(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> Any:
        charge = refuse_first(ledger)

        def branch() -> str:
            try:
                return context.using(key="visa", safe_errors=tasks.Refused).step("charge", charge)
            except StepFailed:
                return context.using(key="mastercard").step("charge", lambda: "other card")

        results = in_pool([branch])
        if context.claimed.lease_token == 1:
            raise OSError("crash")
        return results

    job = play(handler)
    attempt(job)
    assert attempt(job).result == ["other card"]
    assert len(ledger) == 1


@on_sqlite
def test_failures_that_gather_returned_are_all_sealed_once_the_handler_goes_on(aplay: Play, ledger: Ledger) -> None:
    async def refuse() -> str:
        ledger.add()
        raise tasks.Refused("no route")

    async def handler(context: JobContext) -> Any:
        steps = [context.using(key=key, safe_errors=tasks.Refused) for key in ("EU", "US")]
        results = await asyncio.gather(*(each.astep("charge", refuse) for each in steps), return_exceptions=True)
        await context.aatomic_step("note", lambda: None)
        if context.claimed.lease_token == 1:
            raise OSError("crash")
        return [type(each).__name__ for each in results]

    job = aplay(handler)
    attempt(job)
    assert attempt(job).result == ["StepFailed", "StepFailed"]
    assert len(ledger) == 2


@on_sqlite
def test_a_failure_of_one_asyncio_task_is_not_sealed_by_the_step_of_another(aplay: Play, ledger: Ledger) -> None:
    charge = refuse_first(ledger)

    async def handler(context: JobContext) -> Any:
        failed = asyncio.Event()

        async def acharge() -> str:
            return charge()

        async def one() -> str:
            try:
                return await context.using(key="EU", safe_errors=tasks.Refused).astep("charge", acharge)
            finally:
                failed.set()

        async def other() -> str:
            await failed.wait()
            return str(await context.using(key="US").aatomic_step("charge", lambda: "paid"))

        return await asyncio.gather(one(), other())

    job = aplay(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert attempt(job).result == ["paid", "paid"]


@on_sqlite
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_the_end_of_the_process_asked_for_in_an_asynchronous_step_ends_only_the_step(
    aplay: Play, error: type[BaseException]
) -> None:
    async def handler(context: JobContext) -> None:
        def leave() -> None:
            raise error

        await context.aatomic_step("charge", leave)

    assert attempt(aplay(handler)).status == JobStatus.SCHEDULED
