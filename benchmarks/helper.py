"""What the measurements share: a database of their own, workers, the tasks' marks, and the yardstick beside them."""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
NAME = "gnlqueue_benchmark"  # of the database, which is dropped at the beginning and at the end
ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}
PATIENCE = 60.0  # seconds without any progress


def parser(description: str, *databases: str) -> argparse.ArgumentParser:
    """Return a parser that knows `--database`; `databases` are the URLs that it may be, the first by default."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--database", default=databases[0], metavar="URL", help=f"like {' or '.join(databases)}")
    return made


POSTGRESQL = "postgresql://postgres@127.0.0.1:5432/postgres"
MYSQL = "mysql://root@127.0.0.1:3306/mysql"
SQLITE = "sqlite:"


@contextmanager
def project(url: str) -> Iterator[Path]:
    """Set Django up on an empty database of our own, which is dropped afterwards; gives a directory for files."""
    with tempfile.TemporaryDirectory(prefix="gnlqueue-benchmark-") as name:
        directory = Path(name)
        server = _database(url, directory)
        own = server if url.startswith("sqlite") else {**server, "NAME": NAME}
        os.environ["BENCHMARK_DATABASES"] = json.dumps({"default": own, "server": server})
        os.environ["BENCHMARK_MARKS"] = str(directory / "marks")
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        # As pip does when it installs: to compile at each start takes memory that no process gives back.
        for place in (HERE, HERE.parent / "gnlqueue"):
            compileall.compile_dir(place, quiet=1)
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        if own is not server:
            _on_server(f"DROP DATABASE IF EXISTS {NAME}")
            _on_server(f"CREATE DATABASE {NAME}")
        try:
            call_command("migrate", verbosity=0)
            yield directory
        finally:
            connections.close_all()
            if own is not server:
                _on_server(f"DROP DATABASE IF EXISTS {NAME}")
                connections.close_all()


def _database(url: str, directory: Path) -> dict[str, Any]:
    parts = urlsplit(url)
    database: dict[str, Any] = {"ENGINE": f"django.db.backends.{ENGINES[parts.scheme]}"}
    if parts.scheme == "sqlite":
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL"
        options = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": pragmas}
        return {**database, "NAME": str(directory / "db.sqlite3"), "OPTIONS": options}
    if parts.scheme == "mysql":
        database["OPTIONS"] = {"charset": "utf8mb4"}
        if importlib.util.find_spec("MySQLdb") is None:  # PyMySQL
            database["OPTIONS"]["ssl_disabled"] = True  # else it reads all certificates of the machine, 50 ms each time
    return {
        **database,
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def _on_server(statement: str) -> None:
    from django.db import connections

    with connections["server"].cursor() as cursor:
        cursor.execute(statement)


def sql(statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement on the queue's database; its rows, if it has any."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def empty() -> None:
    """Remove all jobs, and what they left in files and statistics."""
    from django.db import connection

    sql("TRUNCATE TABLE gnlqueue_job CASCADE" if connection.vendor == "postgresql" else "DELETE FROM gnlqueue_job")
    refresh()


def refresh() -> None:
    """Let the database learn how many rows there are."""
    from django.db import connection

    sql({"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE gnlqueue_job", "sqlite": "ANALYZE"}[connection.vendor])


def fill(count: int, task: str = "noop", **options: Any) -> None:
    """Enqueue so many jobs."""
    from noops import tasks

    import gnlqueue

    chosen = getattr(tasks, task).using(**options)
    for start in range(0, count, 20_000):
        gnlqueue.enqueue_many(chosen.bind(number) for number in range(start, min(start + 20_000, count)))


def copies(count: int, **columns: str) -> None:
    """Add so many copies of the newest job (PostgreSQL), with these columns as SQL, in which `g` counts from 1."""
    from gnlqueue.models import Job

    names = [field.column for field in Job._meta.concrete_fields if field.column not in {"id", *columns}]
    sql(
        f"INSERT INTO gnlqueue_job ({', '.join([*names, *columns])})"
        f" SELECT {', '.join([*(f'job.{name}' for name in names), *columns.values()])}"
        " FROM (SELECT * FROM gnlqueue_job ORDER BY id DESC LIMIT 1) job, generate_series(1, %s) g",
        [count],
    )


def waiting() -> int:
    """Return how many jobs are not finished."""
    return int(sql("SELECT COUNT(*) FROM gnlqueue_job WHERE finished_at IS NULL")[0][0])


def marks() -> list[tuple[int, int, int]]:
    """Return what the tasks said: (number, nanoseconds, pid), in the order of time."""
    path = Path(os.environ["BENCHMARK_MARKS"])
    lines = path.read_text().splitlines() if path.exists() else []
    seen = [tuple(map(int, line.split())) for line in lines]
    return sorted(((number, at, pid) for number, at, pid in seen), key=lambda mark: mark[1])


def marked() -> int:
    """Return how many tasks have begun."""
    path = Path(os.environ["BENCHMARK_MARKS"])
    return path.read_bytes().count(b"\n") if path.exists() else 0


def forget_marks() -> None:
    """Begin again with no marks, in the same file: a running worker has it open."""
    Path(os.environ["BENCHMARK_MARKS"]).write_bytes(b"")


def runworker(*flags: str) -> list[str]:
    """Return the command of our worker."""
    return ["-m", "django", "runworker", *flags]


@contextmanager
def workers(command: Sequence[str], count: int = 1) -> Iterator[list[int]]:
    """Run a command of Python so many times; gives the pids. All of them are ended afterwards."""
    words = [sys.executable, *command]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(words, **quiet) for _ in range(count)]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.send_signal(signal.SIGTERM)
        for each in started:
            each.wait(PATIENCE)


def until(condition: Callable[[], bool], progress: Callable[[], Any] = lambda: None, every: float = 0.05) -> None:
    """Wait for the condition; raises `TimeoutError` when `progress` stays the same for too long."""
    seen, since = progress(), time.monotonic()
    while not condition():
        time.sleep(every)
        if progress() != seen:
            seen, since = progress(), time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            raise TimeoutError(f"nothing moves any more; the last thing seen is {seen!r}")


def tree(pids: Sequence[int]) -> list[int]:
    """Return these processes and their children."""
    children = [
        int(child)
        for pid in pids
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]
    return [*pids, *tree(children)] if children else list(pids)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time that these processes and their children have used."""
    ticks = 0
    for pid in tree(pids):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pids: Sequence[int]) -> float:
    """Return the memory of these processes and their children in MiB, a shared page counted once (PSS)."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in tree(pids)]
    return sum(int(rollup.split("\nPss:")[1].split()[0]) for rollup in rollups) / 1024


def yardstick(seconds: float = 0.6) -> float:
    """Return Y: how many jobs a second a bare loop claims and finishes one by one, each its own commit.

    With the driver's cursor on Django's connection: what this database can do, without any queue.
    """
    from django.db import connection

    vendor = connection.vendor
    key = {"mysql": "BIGINT AUTO_INCREMENT", "sqlite": "INTEGER", "postgresql": "BIGSERIAL"}[vendor]
    sql("DROP TABLE IF EXISTS yard")
    sql(f"CREATE TABLE yard (id {key} PRIMARY KEY, state VARCHAR(10) NOT NULL, payload VARCHAR(50) NOT NULL)")
    sql("CREATE INDEX yard_state ON yard (state, id)")
    rows = ", ".join(["('ready', '{}')"] * 1000)
    for _ in range(int(seconds * 5)):
        sql(f"INSERT INTO yard (state, payload) VALUES {rows}")
    one = _one_by_update if vendor != "mysql" else _one_in_a_transaction
    done, began = 0, time.perf_counter()
    cursor = connection.connection.cursor()
    while (took := time.perf_counter() - began) < seconds and one(cursor, vendor):
        done += 1
    cursor.close()
    sql("DROP TABLE yard")
    return done / took


def _one_by_update(cursor: Any, vendor: str) -> bool:
    lock, place = ("", "?") if vendor == "sqlite" else (" FOR UPDATE SKIP LOCKED", "%s")
    cursor.execute(
        "UPDATE yard SET state = 'running' WHERE id ="
        f" (SELECT id FROM yard WHERE state = 'ready' ORDER BY id LIMIT 1{lock}) RETURNING id, payload"
    )
    row = cursor.fetchone()
    if vendor == "sqlite":
        cursor.fetchall()  # ends the statement, and with it the transaction
    if row is not None:
        cursor.execute(f"UPDATE yard SET state = 'done' WHERE id = {place}", [row[0]])
    return row is not None


def _one_in_a_transaction(cursor: Any, vendor: str) -> bool:
    cursor.execute("BEGIN")
    cursor.execute("SELECT id, payload FROM yard WHERE state = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED")
    row = cursor.fetchone()
    if row is not None:
        cursor.execute("UPDATE yard SET state = 'running' WHERE id = %s", [row[0]])
    cursor.execute("COMMIT")
    if row is not None:
        cursor.execute("UPDATE yard SET state = 'done' WHERE id = %s", [row[0]])
    return row is not None


def drain(
    count: int,
    command: Sequence[str] = (),
    processes: int = 1,
    ready: Callable[[], None] = lambda: None,
    *,
    to_the_end: bool = False,
) -> dict[str, float]:
    """Let workers work off what waits (the first `count` of it); the rate from when all processes have begun.

    `command` is that of a worker, by default ours as shipped; `ready` is called once they are started. Gives jobs a
    second, their ratio to Y, and the milliseconds of CPU that the workers took for each; with `to_the_end`
    of a queue of ours also how many milliseconds after the last start the last outcome was written.
    """
    forget_marks()
    yard = yardstick()
    with workers(command or runworker(), processes) as pids:
        ready()
        until(lambda: bool(marked()), every=0.01)
        cpu, seen = cpu_seconds(pids), marked()
        until(lambda: marked() >= count, marked)
        cpu = (cpu_seconds(pids) - cpu) / max(marked() - seen, 1)
        if to_the_end:
            until(lambda: not waiting(), waiting)
    times = _since_all_began(marks())
    rate = (len(times) - 1) / max(times[-1] - times[0], 1) * 1e9
    measured = {"a_second": rate, "Y": rate / ((yard + yardstick()) / 2), "worker_CPU_ms": cpu * 1000}
    if to_the_end:
        measured["last_outcome_ms"] = _last_finished() - times[-1] / 1e6
    return measured


def _since_all_began(seen: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the times of the starts since each process had its first; of all, and say so, if one came late."""
    first = {pid: at for _, at, pid in reversed(seen)}
    times = [at for _, at, _ in seen]
    since = [at for at in times if at >= max(first.values())]
    if len(since) > len(times) / 2:
        return since
    say("counted from the first start: one of the processes had its first job in the second half")
    return times


def _last_finished() -> float:
    """Return when the last outcome was written, in milliseconds of the monotonic clock."""
    from gnlqueue.models import Job

    finished = Job.objects.exclude(finished_at=None).order_by("-finished_at").values_list("finished_at", flat=True)[0]
    return (finished.timestamp() - time.time() + time.monotonic()) * 1000


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def say(what: str, **numbers: Any) -> None:
    """Print one line of results."""
    shown = ", ".join(f"{name.replace('_', ' ')} {_short(number)}" for name, number in numbers.items())
    sys.stdout.write(f"{what:<44} {shown}\n")
    sys.stdout.flush()


def _short(number: Any) -> str:
    if not isinstance(number, float):
        return f"{number:,}" if isinstance(number, int) else str(number)
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.2f}"
