"""Our backend as the default one, and what its tests share."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.dispatch import Signal

from gnlqueue import queue, registry, signals
from gnlqueue.testing import enqueued, run_jobs

BACKEND = "gnlqueue.backends.GnlqueueBackend"
ROOT = Path(__file__).parents[2]

on_sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


class Heard(list[tuple[str, Any, Any, Any]]):
    """What the signals of `django.tasks` said: name, sender, status, and the result itself."""

    def names(self) -> list[str]:
        return [f"{name} {status}" for name, _, status, _ in self]


@pytest.fixture
def heard() -> Iterator[Heard]:
    from django.tasks.signals import task_enqueued, task_finished, task_started  # late: older Djangos have none

    heard = Heard()
    receivers: list[tuple[Signal, Any]] = []
    for name, signal in {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}.items():

        def receive(sender: Any, task_result: Any, name: str = name, **kwargs: Any) -> None:
            heard.append((name, sender, task_result.status, task_result))

        signal.connect(receive, weak=False)
        receivers.append((signal, receive))
    yield heard
    for signal, receive in receivers:
        signal.disconnect(receive)


def use(settings: Any, **backends: dict[str, Any]) -> None:
    settings.TASKS = {alias: {"BACKEND": BACKEND, **params} for alias, params in backends.items()}


@pytest.fixture(autouse=True)
def configured(settings: Any) -> Iterator[None]:
    """Our backend is the default one; what it registers is gone after the test."""
    before = [known.copy() for known in (registry._tasks, registry._aliases, registry._queues)]
    use(settings, default={"OPTIONS": {"max_attempts": 2}})
    yield
    for known, was in zip((registry._tasks, registry._aliases, registry._queues), before, strict=True):
        known.clear()
        known.update(was)
    signals.job_finished.disconnect(dispatch_uid="gnlqueue.backends")
    signals.job_attempt_failed.disconnect(dispatch_uid="gnlqueue.backends")


def run_until_nothing_waits() -> None:
    """Run jobs, without waiting for the backoff of those that failed."""
    while waiting := enqueued():
        for job in waiting:
            queue.reschedule(job, timedelta())
        run_jobs()
