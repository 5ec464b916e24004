"""Starting workers, and killing them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from django.conf import settings
from django.db.models import QuerySet

from gnlqueue.models import Job, WorkerProcess
from shop.tasks import send_receipt

LEASE = 5  # seconds; short, so that one need not wait long for a rescue
SHUTDOWN = 5  # seconds that running jobs get at the end


@dataclass(frozen=True)
class Casualties:
    """What was killed, what it was working on, and what will become of that."""

    who: str
    outlook: str
    worker_ids: list[str]
    jobs: list[Job]
    at: float = field(default_factory=time.monotonic)

    def still_hold(self) -> bool:
        """Tell whether a job is still in the name of the dead."""
        return _held_by(self.worker_ids).exists()


class Machine:
    """One `manage.py runworker` with its processes; two of them stand for two machines on one database."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log = Path(settings.VAR_DIR) / f"worker-{name}.log"
        command = [
            sys.executable, str(settings.BASE_DIR / "manage.py"), "runworker", "--processes=2", "--concurrency=2",
            f"--lease={LEASE}", f"--shutdown-timeout={SHUTDOWN}",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches only the demo, which then stops its machines in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = self._process.pid

    def workers(self) -> list[WorkerProcess]:
        """Return the worker processes of this machine that are alive."""
        return [worker for worker in WorkerProcess.objects.order_by("pk") if _session_of(worker.pid) == self.pid]

    def is_running(self) -> bool:
        """Tell whether the supervisor lives."""
        return self._process.poll() is None

    def kill_a_worker(self) -> Casualties | None:
        """Kill one worker process that is in the middle of a receipt; `None` where there is none just now."""
        for worker in self.workers():
            killed = _kill_if_busy([worker.worker_id], partial(os.kill, worker.pid))
            if killed is not None:
                who = f"worker process {worker.pid} of machine {self.name}"
                outlook = f"machine {self.name} sees it die, gives back what it held, and starts another"
                return Casualties(who, outlook, *killed)
        return None

    def kill_all(self) -> Casualties | None:
        """Kill the supervisor, the heartbeat and all workers at once, while some are in the middle of a receipt."""
        killed = _kill_if_busy([worker.worker_id for worker in self.workers()], partial(os.killpg, self.pid))
        if killed is None:
            return None
        self._process.wait()
        who = f"all of machine {self.name}, workers and supervisor"
        outlook = f"nobody there can give anything back: the leases of {LEASE} s must run out"
        return Casualties(who, outlook, *killed)

    def stop(self) -> None:
        """Stop as an operator would, and by force what does not end then."""
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2 * SHUTDOWN)
        finally:  # also when somebody presses Ctrl-C once more
            if self.is_running():
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()


def _kill_if_busy(worker_ids: list[str], send: Callable[[int], None]) -> tuple[list[str], list[Job]] | None:
    send(signal.SIGSTOP)  # so that what they hold does not change while we look
    jobs = list(_held_by(worker_ids).order_by("id"))
    if not any(job.task_name == send_receipt.name for job in jobs):
        send(signal.SIGCONT)
        return None
    send(signal.SIGKILL)
    return worker_ids, jobs


def _held_by(worker_ids: list[str]) -> QuerySet[Job]:
    return Job.objects.with_status(Job.Status.IN_PROGRESS).filter(worker_id__in=worker_ids)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
