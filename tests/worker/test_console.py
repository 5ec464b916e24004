"""What people read: one line a record where no terminal is, colours and tracebacks on one."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from gnlqueue import payloads
from gnlqueue.exceptions import PayloadError
from gnlqueue.models import JobStatus
from gnlqueue.worker import console
from tests.app import tasks
from tests.worker.conftest import on_sqlite, row
from tests.worker.processes import RunWorker


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (0, "0 ms"),
        (-1, "0 ms"),
        (0.00031, "0.31 ms"),
        (0.034, "34 ms"),
        (0.123, "123 ms"),
        (1.52, "1.5 s"),
        (59.97, "60.0 s"),
        (130, "2 min"),
        (timedelta(hours=3), "3 h"),
    ],
    ids=str,
)
def test_length(of: float, text: str) -> None:
    assert console.length(of) == text


@pytest.fixture
def logger() -> logging.Logger:
    """The logger of the package, as it was before."""
    logger = logging.getLogger("gnlqueue")
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], logger.level = handlers, level


def test_record_is_one_line_where_no_terminal_is(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)  # pytest's own do not count
    stream = io.StringIO()
    console.show_log(stream)

    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        logger.error("failed     %s", error, exc_info=error, extra={"job_id": 1})
        logger.error("ends", exc_info=error)

    job, ours = stream.getvalue().splitlines()
    assert re.fullmatch(rf"[\d-]+ [\d:,]+[+-]\d{{4}} ERROR \[{os.getpid()}\] failed     two\\nlines", job)
    # What is no job's is kept nowhere else.
    assert re.search(r"\] ends\\nTraceback .*test_console.py.*\\nValueError: two\\nlines$", ours)


def test_a_standard_error_that_a_task_has_closed_ends_no_worker(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in `logging` itself, which then tells of the error on standard error."""
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    console.show_log()
    stream.close()

    logger.error("alone")
    with console.together():
        logger.error("in a group")


def test_of_a_group_only_its_lines_are_kept(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
    stream = io.StringIO()
    console.show_log(stream)
    monkeypatch.setattr(logger, "propagate", False)  # pytest keeps the records
    text = Exception("as its author says")
    references = sys.getrefcount(text)

    with console.together():
        logger.info("first %s", text)
        assert sys.getrefcount(text) == references
        logger.info("has no %d", "number")  # told on standard error, as logging does
        logger.info("last")
        assert stream.getvalue() == ""

    assert [line.partition("] ")[2] for line in stream.getvalue().splitlines()] == ["first as its author says", "last"]
    assert "has no %d" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "shown"), [("blocked", False), ("cancelled", False), ("failed", True)])
def test_a_job_that_was_stopped_shows_no_frames_of_ours_on_a_terminal(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, outcome: str, shown: bool
) -> None:
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    console.show_log(stream)

    def task() -> None:
        payloads.encode(object(), "the result", limit=1)  # whatever raises in our code

    try:
        task()
    except PayloadError as error:
        logger.error("what it is", exc_info=error, extra={"job_id": 1, "outcome": outcome})

    text = stream.getvalue()
    assert "what it is" in text
    assert "in task" in text
    assert ("payloads.py" in text) == shown


def test_the_hour_that_comes_twice_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (
        logging.makeLogRecord({"created": at, "msecs": 5.0, "msg": "x"}) for at in (1792888200, 1792891800)
    )
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        lines = [console._Line().format(record).split(" Level")[0] for record in (before, after)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert lines == ["2026-10-25 02:30:00,005+0200", "2026-10-25 02:30:00,005+0100"]


def test_projects_own_logging_goes_first(logger: logging.Logger) -> None:
    before = logger.handlers[:]
    console.show_log(io.StringIO())  # pytest listens on the root logger, like a project's LOGGING

    assert logger.handlers == before


@on_sqlite
def test_lines_of_a_worker(alias: str, manage: Callable[..., RunWorker]) -> None:
    good, bad = tasks.nothing.enqueue(), tasks.fail.enqueue("two\nlines")

    run = manage("gnlqueue", "worker", "--drain")  # the same as runworker

    assert run.ends() == 0
    assert all(re.match(r"[\d-]+ [\d:,]+[+-]\d{4} (INFO|WARNING|ERROR) \[\d+\] ", line) for line in run.lines), run.log
    log = [line.split("] ", 1)[1] for line in run.lines]
    assert any(
        re.fullmatch(rf"done       tests.app.tasks.nothing  job {good.pk}  [\d.]+ ms, waited [\d.]+ m?s\n", line)
        for line in log
    )
    failed = rf"failed     tests.app.tasks.fail  job {bad.pk}  .*  attempt 1 of 2, next in .*: RuntimeError: two"
    assert any(re.match(failed, line) for line in log)
    assert any(re.match(rf"dead       tests.app.tasks.fail  job {bad.pk}  .*  attempt 2 of 2: ", line) for line in log)


@on_sqlite
def test_terminal_shows_colours_and_tracebacks(alias: str) -> None:
    job = tasks.fail.using(max_attempts=1).enqueue()
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "runworker", "--drain"],
        stdin=subprocess.DEVNULL,
        stdout=inner,
        stderr=inner,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "TERM": "xterm", "DJANGO_COLORS": ""},
    )
    os.close(inner)
    shown = b""
    try:
        while more := os.read(terminal, 65536):
            shown += more
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        process.kill()
        process.wait()
        os.close(terminal)

    assert row(job).status == JobStatus.DEAD
    text = shown.decode().replace("\r\n", "\n")
    assert re.search(rf"\x1b\[[\d;]+m\d\d:\d\d:\d\d  dead       tests.app.tasks.fail  job {job.pk}", text)
    assert "raise RuntimeError(message)\nRuntimeError: no paper" in text
