"""What a worker process does not need is not in its memory."""

import subprocess
import sys

import pytest

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
