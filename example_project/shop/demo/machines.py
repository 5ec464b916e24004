"""Starting workers, and killing them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from django.db.models import QuerySet

from gnlqueue.models import EntryStatus, Job, RunJournalEntry, WorkerProcess
from shop.demo.processes import Process

LEASE = 5  # seconds; short, so that a rescue does not take long
SHUTDOWN = 5  # seconds that running jobs get at the end

Busy = dict[str, list[str]]  #: what jobs are in the middle of, and for which orders: {"charge card": ["order-17"], …}
Wanted = Callable[[Busy], bool]


@dataclass(frozen=True)
class Casualties:
    """What was killed, what it was working on, and what will become of that."""

    who: str
    outlook: str
    worker_ids: list[str]
    busy: Busy
    at: float = field(default_factory=time.monotonic)

    @property
    def jobs(self) -> int:
        """How many jobs it was working on."""
        return sum(len(orders) for orders in self.busy.values())

    def still_hold(self) -> bool:
        """Tell whether a job is still in the name of the dead."""
        return _held_by(self.worker_ids).exists()


class Machine(Process):
    """One `manage.py runworker` with its processes; two of them stand for two machines on one database."""

    def __init__(self, name: str, gateway_url: str) -> None:
        words = ("runworker", "--processes=2", "--concurrency=4", f"--lease={LEASE}", f"--shutdown-timeout={SHUTDOWN}")
        super().__init__(f"worker-{name}", *words, shutdown=2 * SHUTDOWN, SHOP_GATEWAY_URL=gateway_url)
        self.machine = f"machine {name}"

    def kill_a_worker(self, wanted: Wanted) -> Casualties | None:
        """Kill one worker process that is in the middle of what is wanted, if there is one."""
        for worker in self._workers():
            busy = _kill_if_busy([worker.worker_id], partial(os.kill, worker.pid), wanted)
            if busy is not None:
                who = f"worker process {worker.pid} of {self.machine}"
                outlook = f"{self.machine} sees it die, gives back what it held, and starts another"
                return Casualties(who, outlook, [worker.worker_id], busy)
        return None

    def kill_all(self, wanted: Wanted) -> Casualties | None:
        """Kill the supervisor, the heartbeat and all workers at once, in the middle of what is wanted."""
        worker_ids = [worker.worker_id for worker in self._workers()]
        busy = _kill_if_busy(worker_ids, partial(os.killpg, self.pid), wanted)
        if busy is None:
            return None
        self._process.wait()
        outlook = f"nobody there can give anything back: the leases of {LEASE} s must run out"
        return Casualties(f"all of {self.machine}, workers and supervisor", outlook, worker_ids, busy)

    def _workers(self) -> list[WorkerProcess]:
        """Return the worker processes of this machine that are alive."""
        return [worker for worker in WorkerProcess.objects.order_by("pk") if _session_of(worker.pid) == self.pid]


def _kill_if_busy(worker_ids: list[str], send: Callable[[int], None], wanted: Wanted) -> Busy | None:
    if not wanted(_busy(worker_ids)):
        return None
    send(signal.SIGSTOP)  # so that what they hold does not change while we look again
    busy = _busy(worker_ids)
    if not wanted(busy):
        send(signal.SIGCONT)
        return None
    send(signal.SIGKILL)
    return busy


def _busy(worker_ids: list[str]) -> Busy:
    jobs = {job.run_id: job for job in _held_by(worker_ids).order_by("id")}
    started = RunJournalEntry.objects.filter(run_id__in=jobs, status=EntryStatus.STARTED)
    steps = dict(started.values_list("run_id", "key"))
    busy: Busy = {}
    for run_id, job in jobs.items():
        name = job.task_name.rpartition(".")[2]
        order = f"order-{job.args[0]}" if job.args else f"job {job.pk}"
        busy.setdefault(steps.get(run_id, name), []).append(order)
    return busy


def _held_by(worker_ids: list[str]) -> QuerySet[Job]:
    return Job.objects.with_status(Job.Status.IN_PROGRESS).filter(worker_id__in=worker_ids)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
