"""What tests of durable runs share: jobs that do what a test says, workers that run them once, and ones that die."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.dispatch import Signal

from gnlqueue import payloads, queue
from gnlqueue.durable.entries import Journal, Wanted
from gnlqueue.durable.fences import JobFence
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry, StepKind, StepNote
from gnlqueue.queue import ClaimedJob, claiming
from gnlqueue.queue.candidates import compiled
from gnlqueue.queue.transactions import alias_of
from gnlqueue.worker.loop import Worker
from tests.durable import faults, tasks

PAST = datetime(2020, 1, 1, tzinfo=UTC)
KINDS = ("step", "idempotent_step", "atomic_step")

#: For tests to which the database makes no difference.
on_sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


class Ledger:
    """An effect counter outside the database, which no rollback takes back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0

    def add(self, result: Any = None) -> Any:
        """Have an effect, and return the result."""
        tasks.append(self.path)
        return result


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Counts effects."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def play(alias: str) -> Iterator[Callable[..., Job]]:
    """``play(handler, max_attempts=2)`` enqueues a job that calls handler(context)."""

    def enqueue(handler: Callable[..., Any], *args: Any, **options: Any) -> Job:
        tasks.handlers["play"] = handler
        return tasks.play.using(**options).enqueue(*args)

    yield enqueue
    tasks.handlers.clear()


@pytest.fixture
def aplay(alias: str) -> Iterator[Callable[..., Job]]:
    """The same for an ``async def`` handler."""

    def enqueue(handler: Callable[..., Any], *args: Any, **options: Any) -> Job:
        tasks.handlers["aplay"] = handler
        return tasks.aplay.using(**options).enqueue(*args)

    yield enqueue
    tasks.handlers.clear()


def attempt(job: Any, **options: Any) -> Job:
    """Let a worker run the job once, due or not; the job as it is then."""
    jobs().filter(pk=job.pk, status=JobStatus.SCHEDULED).update(run_at=PAST)
    ran = Worker(["default"], heartbeat=False, **options).run_once()
    assert ran is not None, f"job {job.pk} is {queue.get(job.pk).status}"
    assert ran.pk == job.pk
    return ran


def now_do(handler: Callable[[Any], Any]) -> None:
    """Change the code of the task, as a deploy does."""
    tasks.handlers["play"] = handler


def give(result: Any) -> Callable[..., Any]:
    """A function that returns this, whatever it is called with."""
    return lambda *args: result


def crashing(handler: Callable[..., Any]) -> Callable[..., None]:
    """The same handler, which ends with a crash."""

    def crash(context: Any) -> None:
        handler(context)
        raise OSError("crash")

    return crash


def pay(ledger: Ledger, *, kind: str = "step") -> Callable[..., Callable[[Any], Any]]:
    """Return what makes a handler: it does the same for each number, in a step of the name and with that key."""

    def charge(number: int) -> int:
        ledger.add()
        return number

    def handler_of(name: str, *numbers: int) -> Callable[[Any], Any]:
        return lambda context: [
            getattr(context.using(key=str(number)), kind)(name, charge, number) for number in numbers
        ]

    return handler_of


def doing(ledger: Ledger, name: str, *keys: int) -> Callable[[Any], Any]:
    """A handler of steps whose function has their name: so nothing tells before the end that they were renamed."""

    def handler(context: Any) -> list[Any]:
        return [context.using(key=str(key)).step(name, function, key) for key in keys]

    def function(key: int) -> int:
        ledger.add()
        return key

    function.__qualname__ = name
    return handler


@pytest.fixture
def paying(ledger: Ledger) -> Callable[..., Callable[[Any], Any]]:
    """What makes a handler that pays in a `step` for each number."""
    return pay(ledger)


def renamed(
    play: Callable[..., Job], paying: Callable[..., Callable[[Any], Any]], *numbers: int, to: str = "bill"
) -> Job:
    """A job that did the step 'charge' for these numbers, and is blocked: the code has another name for it now."""
    job = play(crashing(paying("charge", *numbers)))
    attempt(job)
    now_do(paying(to, *numbers))
    assert attempt(job).blocked_reason == "mismatch"
    return job


def claim(job: Any, worker_id: str = "w1") -> ClaimedJob:
    """Claim the job, due or not."""
    jobs().filter(pk=job.pk, status=JobStatus.SCHEDULED).update(run_at=PAST)
    claimed = queue.claim(worker_id=worker_id)
    assert claimed is not None
    assert claimed.id == job.pk
    return claimed


def end_lease(job: Any) -> None:
    """Let the time of the lease be over, and somebody notice."""
    jobs().filter(pk=job.pk).update(lease_expires_at=PAST)
    assert len(claiming.rescue(["default"], alias=alias_of(None))) == 1


def leave_started(job: Any, key: str, args: Any = None) -> None:
    """Let the journal look as if a worker had died in the middle of a `step` with these arguments."""
    args_hash = None if args is None else payloads.digest(args, "args", limit=1000)
    journal = Journal(f"job:{job.pk}", JobFence(claim(job), timedelta(60)))
    journal.insert(Wanted(key, StepKind.STEP, args_hash), EntryStatus.STARTED, starting=True)
    end_lease(job)


def jobs() -> Any:
    """The jobs of the database under test."""
    return Job.objects.using(alias_of(None))


def entries(job: Any = None) -> Any:
    """The journal of a job, or all there is."""
    rows = RunJournalEntry.objects.using(alias_of(None)).order_by("position", "id")
    return rows if job is None else rows.filter(run_id=f"job:{job.pk}")


def entry(job: Any, key: str | None = None) -> RunJournalEntry:
    """One entry of a job's journal, the only one or the one of that key."""
    return entries(job).get(**({} if key is None else {"key": key}))  # type: ignore[no-any-return]


def notes(kind: str = "evidence") -> list[StepNote]:
    """What has been noted of steps."""
    return list(StepNote.objects.using(alias_of(None)).filter(kind=kind).order_by("id"))


@contextmanager
def received(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """The arguments with which the signal is sent in the block."""
    told: list[dict[str, Any]] = []

    def receive(**arguments: Any) -> None:
        told.append(arguments)

    signal.connect(receive)
    try:
        yield told
    finally:
        signal.disconnect(receive)


@pytest.fixture
def in_thread(alias: str) -> Iterator[Callable[..., Future[Any]]]:
    """``in_thread(fn, *args)`` starts fn in a thread with connections of its own; the future of its result."""
    with ThreadPoolExecutor(8) as pool:

        def body(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                return fn(*args, **kwargs)
            finally:
                connections.close_all()

        yield lambda fn, *args, **kwargs: pool.submit(body, fn, *args, **kwargs)


def in_pool(branches: list[Callable[[], Any]], workers: int = 4) -> list[Any]:
    """Call all the functions in threads; their results, or the first exception."""

    def closing(branch: Callable[[], Any]) -> Any:
        try:
            return branch()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(workers) as pool:
        # Not `map`: after an exception it cancels those that had not begun.
        futures = [pool.submit(closing, branch) for branch in branches]
    return [future.result() for future in futures]


#: How `gathered` runs coroutines.
HOW = ["gather", "gather, return_exceptions", "TaskGroup"]


def gathered(branches: Any, how: str) -> Any:
    """Run coroutines side by side."""

    async def in_task_group() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(each) for each in branches]
        return [each.result() for each in started]

    return in_task_group() if how == "TaskGroup" else asyncio.gather(*branches, return_exceptions="exc" in how)


class Gate:
    """A place where one thread waits for another."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Say that one is here, and wait until it is opened."""
        self.reached.set()
        assert self.opened.wait(30)

    def until_reached(self) -> None:
        """Wait until somebody is here."""
        assert self.reached.wait(30)

    def open(self) -> None:
        """Let them go on."""
        self.opened.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open at the latest when the test ends."""
    gate = Gate()
    yield gate
    gate.open()


@contextmanager
def commit_fails(alias: str, *, number: int, stored: bool) -> Iterator[None]:
    """Let the answer to the n-th commit of this thread be lost, after the server has `stored` it, or not."""
    connection = connections[alias]
    compiled(alias, "default", 1)  # once in a process, and that commits too
    commit, left = connection.commit, number

    def failing() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if stored:
                commit()
            raise OperationalError("server closed the connection unexpectedly")
        commit()

    connection.commit = failing  # type: ignore[method-assign]
    try:
        yield
    finally:
        del connection.commit
    assert left <= 0, "there were fewer commits"


class Mortals:
    """Workers in processes of their own that die at a named point; see ``tests/durable/mortals.py``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durable.mortals"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )

    def die(self, job: Any, kind: str, point: str, way: str = "SIGKILL") -> None:
        """Let a worker claim the job and die at that point in that way, and others notice."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"alias": alias_of(None), "point": point, "kind": kind, "way": way}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        assert int(self._process.stdout.readline()) == faults.WAYS[way], f"nobody died {point}"
        end_lease(job)

    def end(self) -> None:
        """End the process that forks them."""
        self._process.communicate(timeout=30)


@pytest.fixture(scope="session")
def mortals(django_db_setup: None) -> Iterator[Mortals]:
    """Workers that die."""
    mortals = Mortals()
    yield mortals
    mortals.end()
