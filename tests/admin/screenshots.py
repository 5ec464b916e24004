"""Makes the pictures of the overview in docs/, of a queue that was made up: `python -m tests.admin.screenshots`.

It needs the test dependencies and a Chromium, and uses an SQLite database of its own.
"""

import os
import random
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import django

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 150_000
MINUTES = 60
WIDTH = 1280

#: Queue, task, how many a minute, how many of a hundred fail, typical seconds of run time.
TASKS = (
    ("default", "shop.tasks.checkout", 34, 2, 0.9),
    ("default", "shop.tasks.tell_warehouse", 31, 1, 0.25),
    ("emails", "shop.tasks.send_receipt", 58, 1, 0.12),
    ("emails", "shop.tasks.send_newsletter", 20, 4, 0.3),
    ("billing", "billing.tasks.charge", 12, 9, 1.6),
    ("reports", "reports.tasks.daily_figures", 1, 0, 14.0),
)


def make_up(chance: random.Random) -> None:
    """Fill the database with an hour in the life of a shop."""
    from gnlqueue import dialects, queue
    from gnlqueue.models import Job, JobStatus, RunJournalEntry, TaskMinute, WorkerProcess

    now = dialects.read_clock("default")
    minutes = [_minute(now, ago, task, chance) for ago in range(MINUTES) for task in TASKS]
    TaskMinute.objects.bulk_create(TaskMinute(**values) for values in minutes)
    for name, queues, silent in (
        ("web-1-211-5e9c04", ["default", "emails"], False),
        ("web-2-198-77a1fd", ["default", "emails"], False),
        ("jobs-1-34-c0ffee", ["billing", "emails"], False),
        ("jobs-2-35-0badca", ["billing", "emails"], True),
    ):
        WorkerProcess.objects.create(
            worker_id=name, hostname=name.rpartition("-")[0].rpartition("-")[0], pid=int(name.split("-")[2]),
            queues=queues, concurrency=8, started_at=now - timedelta(hours=7, minutes=12),
            heartbeat_at=now - (timedelta(minutes=9) if silent else timedelta(seconds=chance.randint(1, 9))),
        )  # fmt: skip
    jobs = []
    for status, number in (("ready", 43), ("scheduled", 312), ("done", 7204), ("dead", 17), ("cancelled", 5)):
        jobs += [_job(JobStatus(status), now, chance) for _ in range(number)]
    jobs += [_job(JobStatus.IN_PROGRESS, now, chance, worker) for worker in ("web-1-211-5e9c04", "web-2-198-77a1fd")]
    blocked = _job(JobStatus.BLOCKED, now, chance)
    Job.objects.bulk_create([*jobs, blocked], batch_size=500)
    blocked = Job.objects.get(status=JobStatus.BLOCKED)
    RunJournalEntry.objects.create(
        run_id=blocked.run_id, position=1, key="charge card", key_hash="x", kind="step", status="in_doubt",
        lease_token=1, started_at=now - timedelta(minutes=4), finished_at=now - timedelta(minutes=3),
    )  # fmt: skip
    queue.pause("emails")


def _minute(
    now: datetime, ago: int, task: tuple[str, str, int, int, float], chance: random.Random
) -> dict[str, object]:
    from gnlqueue.metrics.histograms import bucket

    queue_name, name, per_minute, failing, seconds = task
    number = max(0, round(chance.gauss(per_minute, per_minute / 5) * (1.6 if 20 <= ago < 27 else 1)))
    failed = sum(chance.random() * 100 < failing * (4 if 20 <= ago < 24 else 1) for _ in range(number))
    waits: dict[int, int] = {}
    runs: dict[int, int] = {}
    for _ in range(number):
        wait = bucket(chance.lognormvariate(-3 + (1.5 if 20 <= ago < 27 else 0), 1))
        run = bucket(seconds * chance.lognormvariate(0, 0.5))
        waits[wait] = waits.get(wait, 0) + 1
        runs[run] = runs.get(run, 0) + 1
    return {
        "minute": now.replace(second=0, microsecond=0) - timedelta(minutes=ago),
        "queue_name": queue_name, "task_name": name, "worker_id": "merged",
        "succeeded": number - failed, "failed": failed, "waits": waits, "runs": runs,
    }  # fmt: skip


def _job(status: str, now: datetime, chance: random.Random, worker_id: str | None = None) -> object:
    from gnlqueue.models import Job

    queue_name, name, *_rest = chance.choice(TASKS[:5])
    began = now - timedelta(seconds=chance.randint(2, 40))
    finished = status in {"done", "dead", "cancelled"}
    return Job(
        task_name=name, queue_name=queue_name, status=status, enqueued_at=began, lease_token=1, worker_id=worker_id,
        run_at=began + (timedelta(hours=5) if status == "scheduled" else timedelta()), attempts=1,
        last_attempted_at=None if status in {"ready", "scheduled"} else began,
        lease_expires_at=None if worker_id is None else now + timedelta(minutes=1),
        finished_at=now - timedelta(minutes=chance.randint(1, 600)) if finished else None,
        blocked_reason="in_doubt" if status == "blocked" else None,
    )  # fmt: skip


def take() -> None:
    """Make the pictures."""
    from django.contrib.auth.models import User

    from tests.admin import browser as browsers

    user = User.objects.create_superuser("ann")
    with browsers.chromium() as browser, browsers.server() as server:
        window = browsers.Window(browser, server)
        for scheme in ("light", "dark"):
            page = window.take(user, scheme=scheme, size={"width": WIDTH, "height": 900})
            page.goto("/admin/gnlqueue/overview/")
            workers = page.get_by_role("heading", name="Workers", exact=True).bounding_box()
            assert workers is not None
            picture = DOCS / f"admin-{scheme}.png"
            page.screenshot(
                path=picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": workers["y"] - 12}, full_page=True
            )
            size = picture.stat().st_size
            print(f"{picture}: {size:,} bytes")  # noqa: T201
            assert size <= MOST_BYTES, "too large for a README"


if __name__ == "__main__":
    from tests import servers

    with tempfile.TemporaryDirectory() as directory:
        os.environ[servers.SQLITE] = f"{directory}/db.sqlite3"
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        from django.conf import settings

        settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "tests.app"]
        django.setup()
        from django.core.management import call_command
        from django.db import connections

        settings.ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
        call_command("migrate", run_syncdb=True, verbosity=0)
        make_up(random.Random(7))
        take()
        connections.close_all()
