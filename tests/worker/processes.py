"""``runworker`` as a process of its own: started, listened to, killed, and always cleaned up."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnlqueue.models import WorkerProcess
from gnlqueue.queue.transactions import alias_of

PATIENCE = 20.0  # seconds after which what a test waits for is taken not to come
LOOK_EVERY = 0.01  # seconds between two looks at a file or a row


def until(condition: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
    """Return the first true value of `condition`, which is asked again and again."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {within:g} s"
        time.sleep(LOOK_EVERY)
    return value


def children_of(parent: int) -> list[int]:
    """Return the pids of a process's children that live."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = (line.split() for line in listed)
    return [int(pid) for pid, its_parent, stat in rows if int(its_parent) == parent and stat[0] != "Z"]


class Zygote:
    """Starts ``manage.py`` commands quickly; see ``tests/worker/zygote.py``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )
        self._started: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ended: dict[int, int] = {}
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, pid, status = json.loads(line)
            if what == "started":
                self._started.put(pid)
            else:
                with self._more:
                    self._ended[pid] = status
                    self._more.notify_all()

    def start(self, words: list[str], environment: dict[str, str], log: Path) -> int:
        """Start ``manage.py`` with these words, its output to the FIFO ``log``; the pid of a new process group."""
        assert self._process.stdin is not None
        order = {"words": words, "environment": environment, "log": str(log)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._started.get(timeout=PATIENCE)

    def ended(self, pid: int, within: float) -> int | None:
        """Wait for the end of a process that it started; the exit status, ``None`` when it runs on."""
        with self._more:
            self._more.wait_for(lambda: pid in self._ended, within)
            return self._ended.get(pid)

    def end(self) -> None:
        """End it, but nothing that it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._process.stdout.close()


class RunWorker:
    """A running ``manage.py runworker`` with its supervisor, workers and heartbeat."""

    def __init__(self, zygote: Zygote, log: Path, *words: str, **environment: str) -> None:
        self.lines: list[str] = []
        self._zygote = zygote
        self._more = threading.Condition()
        os.mkfifo(log)
        self._reader = threading.Thread(target=self._read, args=[log], daemon=True)
        self._reader.start()
        self.pid = zygote.start(list(words), {**os.environ, **environment}, log)

    def _read(self, log: Path) -> None:
        with log.open() as lines:
            for line in lines:
                with self._more:
                    self.lines.append(line)
                    self._more.notify_all()

    @property
    def log(self) -> str:
        """What it has said so far."""
        return "".join(self.lines)

    def says(self, pattern: str, times: int = 1, within: float = PATIENCE) -> str:
        """Wait for a line in which the pattern is found, as often as `times` says, and return the last one."""
        with self._more:
            found = lambda: [line for line in self.lines if re.search(pattern, line)]  # noqa: E731
            self._more.wait_for(lambda: len(found()) >= times, within)
            assert len(found()) >= times, f"no {pattern!r} in:\n{self.log}"
            return found()[times - 1]

    def children(self) -> list[int]:
        """The pids of the supervisor's children: workers and heartbeat."""
        return children_of(self.pid)

    def workers(self, count: int = 1, *, other_than: tuple[int, ...] = ()) -> list[int]:
        """Wait until so many workers have reached the database; their pids."""
        rows = WorkerProcess.objects.using(alias_of(None))

        def find() -> list[int]:
            pids = [pid for pid in rows.order_by("started_at").values_list("pid", flat=True) if pid not in other_than]
            return pids if len(pids) >= count else []

        found: list[int] = until(find, f"{count} workers; the log is:\n{self.log}")
        return found

    def heartbeat(self) -> int:
        """The pid of the heartbeat process."""
        workers = self.workers()
        (heartbeat,) = (pid for pid in self.children() if pid not in workers)
        return heartbeat

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the supervisor, or to all of its processes."""
        (os.killpg if group else os.kill)(self.pid, number)

    def ends(self, within: float = PATIENCE) -> int:
        """Wait for the end of the supervisor and of all that it started, which hold the log open; the exit status."""
        status = self._zygote.ended(self.pid, within)
        assert status is not None, f"it does not end; the log is:\n{self.log}"
        self._reader.join(within)
        assert not self._reader.is_alive(), f"a process that it started lives on; the log is:\n{self.log}"
        return status

    def clean_up(self) -> None:
        """Kill what is left of its processes."""
        with contextlib.suppress(ProcessLookupError):  # also when the supervisor is gone, for what it left behind
            os.killpg(self.pid, signal.SIGKILL)
        self.ends()
