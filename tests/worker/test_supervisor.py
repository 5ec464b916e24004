"""The supervisor: how many processes it keeps, how they come back, and with what status it ends."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import gnlqueue
from gnlqueue.management.running import tasks_of
from gnlqueue.models import JobStatus, WorkerProcess
from tests import servers
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker.conftest import count, on_sqlite, row, until_all, until_told
from tests.worker.processes import RunWorker, until

Run = Callable[..., RunWorker]


@on_sqlite
def test_crash_loop_slows_down(alias: str, runworker: Run) -> None:
    gnlqueue.enqueue_many(tasks.kill_own_process.bind() for _ in range(4))

    run = runworker("--concurrency", "1")

    assert "next one starts" not in run.says("restart", 1)
    pauses = [float(re.findall(r"next one starts in ([\d.]+) s", run.says("restart", time))[0]) for time in (2, 3)]
    assert 0.7 <= pauses[0] <= 1.0 < pauses[1] <= 2.0


def test_three_processes_share_the_work(alias: str, runworker: Run) -> None:
    gnlqueue.enqueue_many(tasks.wait.bind() for _ in range(6))
    run = runworker("--processes", "3", "--concurrency", "2", "--worker-id", "blue")

    until_told("began", 6)

    assert len({each["pid"] for each in told()}) == 3
    ids = WorkerProcess.objects.using(alias).values_list("worker_id", flat=True)
    assert len(set(ids)) == 3
    assert all(re.fullmatch(r"blue-\d+-[0-9a-f]{8}", each) for each in ids)
    run.signal(signal.SIGTERM)
    open_gate("go")
    assert run.ends() == 0, run.log
    until_all(JobStatus.DONE)


def test_drain_with_processes(alias: str, runworker: Run) -> None:
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(100))
    later = tasks.nothing.using(queue_name="later").enqueue()

    run = runworker("--drain", "--processes", "2", "--queues", "default")

    assert run.ends() == 0, run.log
    assert count(status=JobStatus.DONE) == 100
    assert row(later).status == JobStatus.READY
    assert not WorkerProcess.objects.using(alias).exists()
    assert "restart " not in run.log


@on_sqlite
def test_health_file(alias: str, runworker: Run, directory: Path) -> None:
    healthy = directory / "healthy"
    run = runworker("--lease", "1", "--health-file", str(healthy))

    until(healthy.exists, "the first beat")
    first = healthy.stat().st_mtime_ns
    until(lambda: healthy.stat().st_mtime_ns > first, "the next beat")

    assert "cannot be touched" not in run.log


@on_sqlite
def test_health_file_that_cannot_be_touched_costs_no_lease(alias: str, runworker: Run, directory: Path) -> None:
    job = tasks.wait.enqueue()
    run = runworker("--lease", "1", "--health-file", str(directory / "nowhere" / "healthy"))
    until_told("began")
    expires = row(job).lease_expires_at

    run.says("health file cannot be touched", 2)

    assert row(job).lease_expires_at > expires
    assert "restart " not in run.log


def test_database_without_the_tables(alias: str, runworker: Run, directory: Path) -> None:
    environment = {
        "default": {servers.SQLITE: str(directory / "empty.sqlite3")},
        "postgresql": {servers.DATABASE: "postgres"},
        "mysql": {servers.DATABASE: "mysql"},
    }[alias]

    run = runworker("--processes", "2", **environment)

    assert run.ends() == 3
    assert f"The database '{alias}' has no table gnlqueue_job. Create the queue's tables with" in run.log
    assert f"`manage.py migrate --database {alias}`" in run.log
    assert "Traceback" not in run.log
    assert "could not be given back" not in run.log


@on_sqlite
def test_database_file_that_cannot_be_opened(alias: str, runworker: Run, directory: Path) -> None:
    run = runworker(**{servers.SQLITE: str(directory / "nowhere" / "db.sqlite3")})

    assert run.ends() == 3
    assert "could not be given back" not in run.log
    assert re.search("The database 'default' cannot be used: .*unable to open.* exist, and may this user", run.log)


@on_sqlite
@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--queues", "default,Bill ing"], 2, "'Bill ing' is not a queue name"),
        (["--queues", ","], 2, "'' is not a queue name"),
        (["--concurrency", "0"], 2, "'0' is not a whole number above 0"),
        (["--lease", "soon"], 2, "'soon' is not a number above 0"),
        (["--database", "elsewhere"], 2, "DATABASES has no alias 'elsewhere'; it has default"),
        (["--no-heartbeat", "--processes", "2"], 2, "with --no-heartbeat, there is one process"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_cannot_be(alias: str, runworker: Run, flags: list[str], status: int, message: str) -> None:
    run = runworker(*flags)

    assert run.ends() == status
    assert message in run.log


@on_sqlite
def test_says_what_starts(alias: str, runworker: Run) -> None:
    run = runworker("--processes", "2", "--concurrency", "3", "--lease", "30", "--drain")

    assert run.ends() == 0
    assert re.search(rf"gnlqueue {re.escape(gnlqueue.__version__)} on .*, PID {run.pid}", run.log)
    assert re.search(r"database +default: SQLite /.*sqlite3 \(a file\)", run.log)
    assert re.search(r"queues +default, .*other", run.log)
    assert "2, 3 jobs at once each, lease 30 s, until nothing is due" in run.log
    assert re.search(r"tasks +\d+$", run.log, re.MULTILINE)


def test_names_the_tasks_where_they_are_few_or_that_is_asked_for(django_db_setup: None) -> None:
    assert tasks_of(["other"], all_names=False) == "1: tests.app.tasks.work_elsewhere (other)"
    assert re.fullmatch(r"\d\d", number := tasks_of(["default"], all_names=False))
    named = tasks_of(["default", "gnlqueue"], all_names=True)
    assert named.startswith(f"{number}: ")
    assert "tests.app.tasks.nothing (default)" in named
    assert "gnlqueue.run_operator_action" not in named
    none = tasks_of(["empty"], all_names=False)
    assert re.search(r"none for these queues; there are some for .*default", none)


@on_sqlite
def test_says_which_queue_no_task_names(alias: str, runworker: Run) -> None:
    run = runworker("--queues", "default,mials", "--drain")
    assert run.ends() == 0
    assert re.search(r"queues +default, mials \(no task names it\)$", run.log, re.MULTILINE)


@on_sqlite
def test_without_verbosity_it_says_only_what_is_wrong(alias: str, runworker: Run) -> None:
    tasks.nothing.enqueue()
    tasks.fail.using(max_attempts=1).enqueue("no paper")
    run = runworker("--verbosity", "0", "--drain")

    assert run.ends() == 0
    assert [line.split("] ")[1].split()[0] for line in run.log.splitlines()] == ["dead"]
