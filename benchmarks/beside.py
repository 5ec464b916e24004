"""Other queues to measure beside ours, where they are installed: how to fill them, and how to start their worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import helper


@dataclass(frozen=True)
class Queue:
    """One queue. `worker` gives the command for so many processes, and how often it is to be started for them."""

    name: str
    empty: Callable[[], object]
    enqueue: Callable[[int], object]
    fill: Callable[[int], None]
    worker: Callable[[int], tuple[list[str], int]]


def ours() -> Queue:
    """Return gnlqueue, as shipped."""
    from noops.tasks import noop

    return Queue(
        "gnlqueue", helper.empty, noop.enqueue, helper.fill, lambda n: (helper.runworker("--processes", str(n)), 1)
    )


def _one_by_one(enqueue: Callable[[int], object]) -> Callable[[int], None]:
    def fill(count: int) -> None:
        for number in range(count):
            enqueue(number)

    return fill


def dj_queue() -> Queue:
    """Return dj-queue, as shipped; it starts two processes for one worker."""
    from dj_queue.models import Job
    from dj_queue_tasks import noop

    def empty() -> None:
        Job.objects.all().delete()
        helper.refresh()

    words = ["-m", "django", "dj_queue"]
    return Queue("dj-queue", empty, noop.enqueue, _one_by_one(noop.enqueue), lambda n: (words, n))


def huey() -> Queue:
    """Return huey with its SQLite storage made durable; it loses the job that it runs when it crashes."""
    from huey_tasks import huey, noop

    words = ["-m", "huey.bin.huey_consumer", "huey_tasks.huey", "-w", "2", "-d", "0.01", "-m", "0.05"]
    return Queue("huey, fsync", huey.storage.flush_all, noop, _one_by_one(noop), lambda n: (words, n))


QUEUES = {"dj-queue": dj_queue, "huey": huey}


def use(name: str | None) -> None:
    """Let the settings know which other queue there is."""
    os.environ["BENCHMARK_BESIDE"] = name or ""
