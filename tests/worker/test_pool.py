"""Threads and the event loop share the places, take their jobs themselves, and leave none behind."""

import asyncio
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from gnlqueue.queue import ClaimedJob
from gnlqueue.registry import Task
from gnlqueue.worker import eventloop
from gnlqueue.worker.executor import Ending, Outcome, Terms
from gnlqueue.worker.pool import Pool
from gnlqueue.worker.table import LeaseTable, Stage
from gnlqueue.worker.timeouts import Timeouts
from tests.worker.processes import until

NOW = datetime.now(UTC)
PATIENCE = 20.0


def claimed(id: int) -> ClaimedJob:
    return ClaimedJob(id, "demo", "default", [id], {}, 0, 1, 5, 0, None, 1, NOW, "w1", NOW, NOW, NOW, None, "default")


class Place:
    """A pool, and what its jobs do."""

    def __init__(self, concurrency: int) -> None:
        self.table = LeaseTable(3000)
        self.outcomes: list[Outcome] = []
        self.ran: list[tuple[int, int]] = []  # job id, thread
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.reported = threading.Condition()
        terms = Terms(Timeouts(), timedelta(seconds=60), lambda: False)
        self.pool = Pool(concurrency, self.table, terms, self.report)

    def put(self, ids: range, function: Callable[..., Any]) -> list[ClaimedJob]:
        jobs = [claimed(id) for id in ids]
        for job in jobs:
            self.table.hold(job)
        self.pool.put([(job, Task("demo", function)) for job in jobs])
        return jobs

    def report(self, outcome: Outcome) -> None:
        with self.reported:
            self.outcomes.append(outcome)
            self.reported.notify_all()

    def begin(self) -> None:
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)

    def end(self, id: int) -> None:
        with self.lock:
            self.at_once -= 1
            self.ran.append((id, threading.get_ident()))

    def short(self, id: int) -> None:
        self.begin()
        self.end(id)

    def slow(self, id: int) -> None:
        self.begin()
        time.sleep(0.001)
        self.end(id)

    async def ashort(self, id: int) -> None:
        self.short(id)

    async def aslow(self, id: int) -> None:
        self.begin()
        await asyncio.sleep(0.001)
        self.end(id)

    def until(self, number: int) -> None:
        with self.reported:
            enough = self.reported.wait_for(lambda: len(self.outcomes) >= number, PATIENCE)
        assert enough, f"{len(self.outcomes)} of {number} jobs have ended"


@pytest.fixture
def place() -> Iterator[Callable[[int], Place]]:
    made: list[Place] = []

    def make(concurrency: int) -> Place:
        made.append(Place(concurrency))
        return made[-1]

    yield make
    for each in made:
        each.pool.end()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_jobs_of_all_kinds_run_once_and_never_too_many(place: Callable[[int], Place], concurrency: int) -> None:
    here = place(concurrency)
    kinds = [here.short, here.ashort, here.slow, here.aslow, here.aslow, here.slow, here.ashort]
    for number in range(210):
        here.put(range(number, number + 1), kinds[number % len(kinds)])
    here.until(210)

    assert sorted(id for id, _ in here.ran) == list(range(210))
    assert {outcome.ending for outcome in here.outcomes} == {Ending.DONE}
    assert here.most_at_once <= concurrency


def test_a_batch_uses_all_places(place: Callable[[int], Place]) -> None:
    here = place(4)
    together = threading.Barrier(4)
    here.put(range(4), lambda _: together.wait(PATIENCE))
    here.until(4)

    assert [outcome.error for outcome in here.outcomes] == [None] * 4


def test_a_thread_takes_one_job_after_the_other(place: Callable[[int], Place]) -> None:
    here = place(1)
    here.put(range(100), here.short)
    here.until(100)

    assert [id for id, _ in here.ran] == list(range(100))
    assert len({thread for _, thread in here.ran}) == 1


@pytest.mark.parametrize("kind", ["short", "ashort"])
def test_who_has_ended_is_known_before_it_is_reported(kind: str) -> None:
    class Watchful(Place):
        def report(self, outcome: Outcome) -> None:
            assert [held.stage for held in self.table] == [Stage.ENDED]
            super().report(outcome)

    here = Watchful(1)
    here.put(range(1), getattr(here, kind))
    here.until(1)
    here.pool.end()


def test_what_waits_has_not_begun_and_can_be_taken_back(place: Callable[[int], Place]) -> None:
    here, began, go = place(1), threading.Event(), threading.Event()

    def wait(_: int) -> None:
        began.set()
        go.wait(PATIENCE)

    jobs = here.put(range(10), wait)
    assert began.wait(PATIENCE)

    assert here.pool.take_back(older_than=60) == []
    assert here.pool.take_back() == jobs[1:]
    assert [held.pair for held in here.table if held.stage is Stage.BEGUN] == [jobs[0].pair]
    go.set()
    here.until(1)
    assert here.pool.take_back() == []


def test_what_the_event_loop_has_not_begun_can_be_taken_back(place: Callable[[int], Place]) -> None:
    here, began, go = place(3), threading.Event(), threading.Event()

    async def block(_: int) -> None:
        began.set()
        go.wait(PATIENCE)

    jobs = here.put(range(6), block)
    assert began.wait(PATIENCE)

    taken = here.pool.take_back()
    eagerly = sys.version_info >= (3, 12)  # before, as many as there are places have begun once the first one has
    assert taken == (jobs[1:] if eagerly else jobs[3:])
    go.set()
    here.until(6 - len(taken))


def test_many_that_never_wait_leave_others_a_turn(
    place: Callable[[int], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventloop, "BEGIN_AT_ONCE", 5)
    here = place(2)

    async def wait_a_turn(id: int) -> None:
        here.begin()
        await asyncio.sleep(0)
        here.end(id)

    here.put(range(1), wait_a_turn)
    here.put(range(1, 101), here.ashort)
    here.until(101)

    assert [id for id, _ in here.ran].index(0) <= 10


def test_jobs_put_while_the_loop_is_busy_are_not_forgotten(place: Callable[[int], Place]) -> None:
    here = place(2)
    for number in range(0, 3000, 3):
        here.put(range(number, number + 3), here.ashort)
        if number % 30 == 0:
            here.until(number)  # now and then the loop has little or nothing left to do
    here.until(3000)

    assert sorted(id for id, _ in here.ran) == list(range(3000))


def test_a_blocked_event_loop_does_not_keep_the_threads_from_their_jobs(place: Callable[[int], Place]) -> None:
    here = place(4)
    blocked, go_on = threading.Event(), threading.Event()

    async def block(id: int) -> None:
        blocked.set()
        go_on.wait(PATIENCE)

    here.put(range(1), block)
    assert blocked.wait(PATIENCE)
    here.put(range(1, 3), here.ashort)  # which stand before the others, and wait for the loop
    here.put(range(3, 20), here.short)
    here.until(17)
    go_on.set()
    here.until(20)


@pytest.mark.parametrize("what", ["thread", "event loop", "thread of the event loop"])
def test_a_thread_that_cannot_be_started_costs_no_job(
    place: Callable[[int], Place], what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process may have as many threads or files as it is allowed: what runs takes the jobs, or they wait."""
    here = place(3)
    scarce = [True]
    start, new_event_loop = threading.Thread.start, asyncio.new_event_loop

    def start_if_allowed(thread: threading.Thread) -> None:
        name = {"thread": "gnlqueue-2", "thread of the event loop": "gnlqueue-asyncio"}.get(what)
        if scarce[0] and thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    def new_event_loop_if_allowed() -> asyncio.AbstractEventLoop:
        if scarce[0] and what == "event loop":
            raise OSError(24, "Too many open files")
        return new_event_loop()

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    monkeypatch.setattr(asyncio, "new_event_loop", new_event_loop_if_allowed)
    together = threading.Event()

    def hold(id: int) -> None:
        together.wait(PATIENCE)
        here.short(id)

    here.put(range(1), hold)
    here.put(range(1, 6), here.ashort if "loop" in what else here.short)
    here.put(range(6, 9), here.short)
    together.set()
    here.until(4 if "loop" in what else 9)
    if "loop" in what:
        assert [job.id for job in here.pool.take_back()] == [1, 2, 3, 4, 5]
    scarce[0] = False
    here.pool._start_after = 0.0
    here.put(range(9, 12), here.ashort)
    here.put(range(12, 15), here.short)
    here.until(10 if "loop" in what else 15)
    assert {outcome.ending for outcome in here.outcomes} == {Ending.DONE}
    assert caplog.text.count("cannot be started") == 1


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_each_job_has_a_context_of_its_own(place: Callable[[int], Place], kind: str) -> None:
    here, found = place(1), list[int | None]()
    variable: ContextVar[int | None] = ContextVar("variable", default=None)

    def leave_behind(id: int) -> None:
        found.append(variable.get())
        variable.set(id)

    async def aleave_behind(id: int) -> None:
        leave_behind(id)
        await asyncio.sleep(0)
        assert variable.get() == id

    here.put(range(5), leave_behind if kind == "def" else aleave_behind)
    here.until(5)

    assert found == [None] * 5
    assert {outcome.ending for outcome in here.outcomes} == {Ending.DONE}


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_idle_pool_keeps_no_outcome_alive(place: Callable[[int], Place], kind: str) -> None:
    here, results = place(1), list[weakref.ref[Any]]()

    class Large(dict[str, int]):
        pass

    def give(_: int) -> Any:
        large = Large()
        results.append(weakref.ref(large))
        return large

    async def agive(_: int) -> Any:
        return give(_)

    here.put(range(1), give if kind == "def" else agive)
    here.until(1)
    here.outcomes.clear()

    until(lambda: results[0]() is None, "the end of its result")


def test_async_job_does_not_wait_for_what_another_does_with_the_orm(
    place: Callable[[int], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them share one thread for that, and while it works its connection looks untidy."""
    monkeypatch.setattr("gnlqueue.worker.connections._is_untidy", lambda _: True)
    here, began, go_on = place(2), threading.Event(), threading.Event()

    def query() -> None:
        began.set()
        go_on.wait(PATIENCE)

    async def use_orm(_: int) -> None:
        await sync_to_async(query)()

    here.put(range(1), use_orm)
    assert began.wait(PATIENCE)
    here.pool._async_connections._theirs = [connections["default"]]
    here.put(range(1, 2), here.ashort)
    here.until(1)
    go_on.set()
    here.until(2)

    assert [outcome.claimed.id for outcome in here.outcomes] == [1, 0]


def test_after_the_end_nothing_begins(place: Callable[[int], Place]) -> None:
    here = place(1)
    running, go_on = threading.Event(), threading.Event()

    def wait(id: int) -> None:
        running.set()
        go_on.wait(PATIENCE)

    here.put(range(1), wait)
    assert running.wait(PATIENCE)
    here.put(range(1, 5), here.short)
    here.pool.end()
    go_on.set()
    here.until(1)
    assert here.pool.take_back() == []
    assert here.ran == []
