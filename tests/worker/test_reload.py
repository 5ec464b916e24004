"""``runworker --reload``: a worker for development, which restarts when code changes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnlqueue.management.running import without_reload
from gnlqueue.models import JobStatus
from tests.app import tasks
from tests.app.events import open_gate
from tests.worker.conftest import on_sqlite, row, until_status, until_told
from tests.worker.processes import PATIENCE, children_of


class Reloading:
    """``runworker --reload`` as a person starts it, with a settings module that can be changed."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.module = directory / "settings_to_change.py"
        self.write("")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", "runworker", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings_to_change", "PYTHONPATH": str(directory)},
        )
        assert self.process.stderr is not None
        self.log = self.process.stderr

    def write(self, code: str) -> None:
        """Change the settings module."""
        self.module.write_text(f"from tests.settings import *\n{code}\n")

    def until_line(self, pattern: str) -> str:
        """Read up to a line in which the pattern is found, and return it."""
        for line in self.log:
            if re.search(pattern, line):
                return line
        raise AssertionError("it ended")

    def watching(self) -> int:
        """The pid of the process between the one that was started and the worker."""
        (pid,) = children_of(self.process.pid)
        return pid


@pytest.fixture
def reloading(alias: str, directory: Path) -> Iterator[Reloading]:
    started = Reloading(directory, "--reload", "--shutdown-timeout", "5")
    watchdog = threading.Timer(PATIENCE, os.killpg, [started.process.pid, signal.SIGKILL])
    watchdog.start()
    yield started
    watchdog.cancel()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.process.pid, signal.SIGKILL)
    started.process.wait()
    started.log.close()


@on_sqlite
def test_restarts_on_a_change_also_when_the_code_was_broken(alias: str, reloading: Reloading) -> None:
    reloading.until_line("tasks  ")
    reloading.write("this is no Python")
    assert "status 1" in reloading.until_line("could not be loaded")
    reloading.write("")
    reloading.until_line("tasks  ")

    until_status(tasks.nothing.enqueue(), JobStatus.DONE)


@on_sqlite
@pytest.mark.parametrize(
    ("number", "group"),
    [
        pytest.param(signal.SIGINT, True, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, False, id="SIGTERM"),
    ],
)
def test_ends_after_its_worker(alias: str, reloading: Reloading, number: signal.Signals, group: bool) -> None:
    job = tasks.wait.enqueue()
    until_told("began")

    (os.killpg if group else os.kill)(reloading.process.pid, number)
    reloading.until_line("stopping   on SIG(INT|TERM): what runs may finish")
    with pytest.raises(subprocess.TimeoutExpired):  # a prompt would come back while the worker runs on
        reloading.process.wait(0.5)
    open_gate("go")

    assert reloading.process.wait(PATIENCE) == 0
    assert row(job).status == JobStatus.DONE
    assert "stopping   at once" not in reloading.log.read()


@on_sqlite
def test_worker_ends_when_its_reloader_was_killed(alias: str, reloading: Reloading) -> None:
    reloading.until_line("tasks  ")

    os.kill(reloading.watching(), signal.SIGKILL)

    reloading.until_line("reloader is gone: what runs may finish")


def test_abbreviated_flag_does_not_reload_the_reloader() -> None:
    before = sys.orig_argv
    sys.orig_argv = ["python", "manage.py", "runworker", "--reloa", "--queues", "re", "--", "--r"]
    try:
        assert without_reload() == [sys.executable, "manage.py", "runworker", "--queues", "re", "--"]
    finally:
        sys.orig_argv = before
