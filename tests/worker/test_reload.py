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

from gnlqueue.management.commands.runworker import without_reload
from gnlqueue.models import JobStatus
from tests.app import tasks
from tests.worker.conftest import on_sqlite, until_status
from tests.worker.processes import PATIENCE


class Reloading:
    """``runworker --reload`` as a person starts it, with a settings module that can be changed."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.module = directory / "settings_to_change.py"
        self.module.write_text("from tests.settings import *\n")
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

    def until_started(self) -> None:
        """Read up to the line that says which tasks there are."""
        for line in self.log:
            if "tasks  " in line:
                return
        raise AssertionError("it ended")

    def until_all_ended(self) -> str:
        """Read to the end, which comes when no process that it started is left."""
        return self.log.read()


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
def test_restarts_on_a_change_and_ends_on_sigterm(alias: str, reloading: Reloading) -> None:
    reloading.until_started()
    os.utime(reloading.module, (2_000_000_000, 2_000_000_000))
    reloading.until_started()

    until_status(tasks.nothing.enqueue(), JobStatus.DONE)
    reloading.process.send_signal(signal.SIGTERM)

    assert "reloader is gone: what runs may finish" in reloading.until_all_ended()


@on_sqlite
def test_ends_on_ctrl_c(alias: str, reloading: Reloading) -> None:
    reloading.until_started()
    until_status(tasks.nothing.enqueue(), JobStatus.DONE)

    os.killpg(reloading.process.pid, signal.SIGINT)

    # The reloader may hear of it before its worker does, and pass it on as SIGTERM: it is one word to stop either way.
    assert re.search("stopping   on SIG(INT|TERM): what runs may finish", log := reloading.until_all_ended())
    assert "stopping   at once" not in log


def test_abbreviated_flag_does_not_reload_the_reloader() -> None:
    before = sys.orig_argv
    sys.orig_argv = ["python", "manage.py", "runworker", "--reloa", "--queues", "re", "--", "--r"]
    try:
        assert without_reload() == [sys.executable, "manage.py", "runworker", "--queues", "re", "--"]
    finally:
        sys.orig_argv = before
