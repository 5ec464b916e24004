"""What tests of the worker share: a directory for events, and workers in processes or threads of their own."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from gnlqueue.models import Job, JobStatus
from gnlqueue.queue.transactions import alias_of
from gnlqueue.worker.loop import Worker
from tests.app import events
from tests.app.faults import KILL
from tests.worker import processes
from tests.worker.processes import RunWorker, Zygote, until

#: For tests to which the database makes no difference.
on_sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tasks of this test and the test meet."""
    monkeypatch.setenv(events.DIRECTORY, str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What the workers of all tests are forked from."""
    zygote = Zygote()
    yield zygote
    zygote.end()


@pytest.fixture
def manage(alias: str, zygote: Zygote, directory: Path) -> Iterator[Callable[..., RunWorker]]:
    """``manage("runworker", "--lease", "2", GNLQUEUE_TEST_SET=…)`` starts a command; all of them are ended."""
    started: list[RunWorker] = []

    def run(*words: str, **environment: str) -> RunWorker:
        started.append(RunWorker(zygote, directory / f"log-{len(started)}", *words, **environment))
        return started[-1]

    yield run
    for each in started:
        each.clean_up()


@pytest.fixture
def runworker(manage: Callable[..., RunWorker]) -> Callable[..., RunWorker]:
    """``runworker("--lease", "2", GNLQUEUE_TEST_SET=…)`` starts one; all of them are ended."""
    return partial(manage, "runworker")


@pytest.fixture
def in_thread(alias: str) -> Iterator[Callable[..., Future[None]]]:
    """``in_thread(worker)`` lets an embedded worker run in a thread until the end of the test."""
    started: list[tuple[Worker, Future[None]]] = []
    with ThreadPoolExecutor(8) as pool:

        def run(worker: Worker) -> Future[None]:
            started.append((worker, pool.submit(worker.run)))
            return started[-1][1]

        try:
            yield run
        finally:
            for worker, _ in started:
                worker.stop(at_once=True)
            for _, future in started:
                future.result(processes.PATIENCE)


def drain(**options: Any) -> None:
    """Run all that is due, with an embedded worker in this thread."""
    Worker(drain=True, **options).run()


def row(job: Any) -> Job:
    """The job as the database has it."""
    return Job.objects.using(alias_of(None)).get(pk=getattr(job, "pk", job))


def run(task: Any, *args: Any, **options: Any) -> Job:
    """Enqueue, run all that is due, and return the job as it then is."""
    job = task.enqueue(*args)
    drain(**options)
    return row(job)


def dying(function: str, when: str, call: int = 1) -> dict[str, str]:
    """The environment of processes of which one dies before or after its first (or a later) call of a function."""
    return {KILL: json.dumps({"function": function, "when": when, "call": call})}


def fails_once(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *, when: str, at: int = 1) -> None:
    """Let a function lose its connection, once, before it does anything or after it did everything."""
    function = getattr(module, name)
    calls = 0

    def replaced(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = None if when == "before" else function(*args, **kwargs)
        if when == "before" or result:
            calls += 1
            if calls == at:
                raise OperationalError("server closed the connection unexpectedly")
        return function(*args, **kwargs) if when == "before" else result

    monkeypatch.setattr(module, name, replaced)


def count(**conditions: Any) -> int:
    """How many jobs there are like that."""
    return Job.objects.using(alias_of(None)).filter(**conditions).count()


def until_status(job: Any, status: JobStatus, within: float = processes.PATIENCE) -> Job:
    """Wait until the job has this status; the job."""

    def look() -> Job | None:
        found = row(job)
        return found if found.status == status else None

    return until(look, f"job {getattr(job, 'pk', job)} as {status} (it is {row(job).status})", within)  # type: ignore[no-any-return]


def until_all(status: JobStatus, within: float = processes.PATIENCE) -> None:
    """Wait until every job has this status."""
    until(lambda: not Job.objects.using(alias_of(None)).exclude(status=status).exists(), f"all as {status}", within)


def until_told(what: str, times: int = 1, within: float = processes.PATIENCE, **details: Any) -> dict[str, Any]:
    """Wait until a task has said something, as often as `times` says; what it said."""

    def look() -> list[dict[str, Any]] | None:
        found = [each for each in events.told() if each["what"] == what and details.items() <= each.items()]
        return found if len(found) >= times else None

    found: list[dict[str, Any]] = until(look, f"{what!r} ({times} times) in {events.told()}", within)
    return found[times - 1]
