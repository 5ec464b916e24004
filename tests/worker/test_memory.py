"""What a worker process does not need is not in its memory."""

import gc
import subprocess
import sys
import weakref
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models.sql import Query

from gnlqueue import JobContext, queue
from gnlqueue.metrics import counting
from gnlqueue.models import JobStatus, TaskMinute, WorkerProcess
from gnlqueue.queue import candidates, claiming
from gnlqueue.worker import executor, identity
from gnlqueue.worker.maintenance import Maintenance
from tests.app import tasks
from tests.worker.conftest import drain, on_sqlite, row

CODE = """
import sys
import django
from django.conf import settings

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "never asked"}}
APPS = ["django.contrib.contenttypes", "gnlqueue"]
settings.configure(INSTALLED_APPS=APPS, DATABASES=DATABASES, USE_TZ=True)
django.setup()
import gnlqueue.management.commands.runworker

print(*sorted(sys.modules))
"""

#: For operators only; for a backend that `TASKS` does not name; or large, for a function that is written in a line.
NOT_NEEDED = [
    "django.tasks", "gnlqueue.admin", "gnlqueue.backends", "gnlqueue.bulk", "gnlqueue.finding", "multiprocessing",
    "statistics",
]  # fmt: skip


def test_a_worker_imports_nothing_that_it_does_not_need() -> None:
    pytest.importorskip("psycopg")
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()

    assert "gnlqueue.worker.supervisor" in loaded
    assert [name for name in NOT_NEEDED if name in loaded] == []


def test_what_is_claimed_next_is_compiled_without_connecting(alias: str) -> None:
    connections[alias].close()
    candidates._template.cache_clear()  # as in a new process

    candidates.prepare(alias)

    assert connections[alias].connection is None
    assert candidates._template.cache_info().currsize == 2


def test_a_worker_whose_jobs_are_done_needs_nothing_of_what_django_compiles_queries_with(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would be two megabytes of each worker process."""
    monkeypatch.setattr(counting, "finished", counting.Minutes())
    job, later = tasks.give.enqueue(1), tasks.nothing.using(run_after=timedelta(hours=1)).enqueue()
    queue.pause("closed")
    identity.register("gone", ["default"], 1, alias, lease=60)
    WorkerProcess.objects.using(alias).update(heartbeat_at="2020-01-01T00:00Z")
    upkeep = Maintenance(["default", "closed"], database=alias, beat=20)
    candidates.prepare(alias)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("Django compiles a query.")

    with monkeypatch.context() as patch:
        patch.setattr(Query, "get_compiler", refuse)
        drain()
        upkeep.warn_of_paused()
        upkeep.do_what_is_due(idle=True)
        claiming.rescue(["default"], alias=alias)
        due = claiming.seconds_until_due(["default"], alias=alias)
        upkeep._tidy()

    assert (row(job).status, row(later).status) == (JobStatus.DONE, JobStatus.SCHEDULED)
    assert due is not None
    assert 3500 < due <= 3600
    assert TaskMinute.objects.using(alias).get().succeeded == 1
    assert not WorkerProcess.objects.using(alias).exists()


@on_sqlite
def test_what_an_attempt_had_is_gone_with_its_job(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only once garbage is collected: until then it would be some kilobytes of each of some hundred jobs."""
    contexts: list[weakref.ref[JobContext]] = []

    class Remembered(JobContext):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            contexts.append(weakref.ref(self))

    monkeypatch.setattr(executor, "JobContext", Remembered)
    tasks.nothing.enqueue()
    gc.disable()
    try:
        drain()
        assert [context() for context in contexts] == [None]
    finally:
        gc.enable()
