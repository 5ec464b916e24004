"""What a worker process does not need is not in its memory."""

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest

from gnlqueue import JobContext
from gnlqueue.worker import executor
from tests.app import tasks
from tests.worker.conftest import drain, on_sqlite

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
