"""How long each page of the admin takes beside ten million jobs: `python benchmarks/admin_pages.py --rows 10000000`.

Needs a PostgreSQL server; it makes a database of its own there, fills it (some minutes), and drops it at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import django
import psycopg
from django.conf import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

NAME = "gnlqueue_admin_pages"
DAYS = 30  # over which the jobs were enqueued
ROUNDS = 5

#: Of a thousand jobs, how many are in which status; the rest is done.
SHARES = {"dead": 20, "cancelled": 5, "scheduled": 10, "ready": 5}

GROUP = quote(json.dumps({"statuses": ["dead"], "task_name": "shop.tasks.task_3", "errors": ["builtins.TimeoutError"]}))

urlpatterns: list[Any] = []  # this file is the project's URLs too; they are known once Django is set up

PAGES = [
    "overview/",
    "job/",
    "job/?status=done",
    "job/?status=dead",
    "job/?status=ready",
    "job/?status=ready&queue_name=billing",
    "job/?status=scheduled",
    "job/?status=in_progress",
    "job/?status=blocked",
    "job/?queue_name=billing",
    "job/?task_name=shop.tasks.task_3",
    "job/?task_name=no.such.task",
    "job/?worker_id=nobody",
    "job/?error=builtins.TimeoutError",
    "job/?error=builtins.TimeoutError&task_name=no.such.task",
    "job/?status=dead&error=-",
    "job/?enqueued_at__range__gte_0={day}&enqueued_at__range__lte_0={day}",
    "job/?finished_at__range__gte_0={day}&finished_at__range__lte_0={day}",
    "job/?run_at__range__gte_0={day}&run_at__range__lte_0={day}",
    "job/?q={middle}",
    "job/?q=key:receipt:7",
    "job/?q=task_3",
    "job/?q=error:TimeoutError",
    "job/?q=arg.order_id:5",
    "job/?after={middle}",
    "job/?task_name=no.such.task&after={middle}",
    "job/{middle}/change/",
    "job/{dead}/verb/retry/",
    "job/bulk/?verb=retry",
    "job/bulk/?verb=cancel",
    "job/bulk/?verb=retry&criteria={group}",
    "deadjob/",
    "deadjob/?task_name=shop.tasks.task_3&error=builtins.TimeoutError",
    "stepindoubt/",
    "stepindoubt/{doubt}/change/",
    "queuestate/",
    "workerprocess/",
    "operatoraction/",
    "operatoraction/?q=nobody",
]


@contextmanager
def project(url: str) -> Iterator[None]:
    """Set Django up on a database of our own."""
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {NAME}")
        server.execute(f"CREATE DATABASE {NAME} ENCODING 'UTF8' TEMPLATE template0")
    parts = urlsplit(url)
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": NAME,
                "USER": unquote(parts.username or ""),
                "PASSWORD": unquote(parts.password or ""),
                "HOST": parts.hostname or "",
                "PORT": str(parts.port or ""),
            }
        },
        INSTALLED_APPS=[
            "django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "django.contrib.messages",
            "django.contrib.admin", "rangefilter", "gnlqueue",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ],
                },
            },
        ],
        ROOT_URLCONF=__name__,
        STATIC_URL="static/",
        SECRET_KEY="only for measurements",
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )  # fmt: skip
    django.setup()
    from django.core.management import call_command
    from django.db import connections

    try:
        call_command("migrate", verbosity=0)
        yield
    finally:
        connections.close_all()
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def fill(rows: int) -> None:
    """Insert jobs as months of work leave them: nearly all done, of 20 tasks and 4 queues."""
    from django.db import connection

    status = " ".join(
        f"WHEN n % 1000 < {sum(list(SHARES.values())[: place + 1])} THEN '{name}'" for place, name in enumerate(SHARES)
    )
    finished = "status IN ('done', 'dead', 'cancelled')"
    with connection.cursor() as cursor:
        for first in range(0, rows, 1_000_000):
            cursor.execute(
                f"""
                INSERT INTO gnlqueue_job (task_name, queue_name, args, kwargs, priority, status, run_at, attempts,
                    crashes, lease_token, worker_id, enqueued_at, last_attempted_at, finished_at, last_error)
                SELECT 'shop.tasks.task_' || n %% 20, (ARRAY['default', 'billing', 'media', 'reports'])[1 + n %% 4],
                    jsonb_build_array(n), jsonb_build_object('order_id', n, 'note', repeat('x', 100)), 0, status,
                    CASE WHEN status = 'scheduled' THEN now() + n %% 100000 * interval '1 s' ELSE at END,
                    1, 0, 1, 'web-' || n %% 8, at, at,
                    CASE WHEN {finished} THEN at + n %% 60 * interval '1 s' END,
                    CASE WHEN status = 'dead' THEN 'TimeoutError: the gateway did not answer' END
                FROM (SELECT n, CASE {status.replace("%", "%%")} ELSE 'done' END AS status,
                        now() - interval '{DAYS} days' * (1 - n::float / {rows}) AS at
                    FROM generate_series(%s, %s) AS n) AS numbers
                """,
                [first + 1, min(first + 1_000_000, rows)],
            )
            sys.stderr.write(f"\r{min(first + 1_000_000, rows):>12,} jobs")
        cursor.execute("UPDATE gnlqueue_job SET status = 'blocked', blocked_reason = 'in_doubt' WHERE id IN "
                       "(SELECT id FROM gnlqueue_job WHERE status = 'ready' ORDER BY id LIMIT 20)")  # fmt: skip
        cursor.execute("UPDATE gnlqueue_job SET status = 'in_progress' WHERE id IN "
                       "(SELECT id FROM gnlqueue_job WHERE status = 'ready' ORDER BY id LIMIT 300)")  # fmt: skip
        cursor.execute(
            """
            INSERT INTO gnlqueue_jobattempt
                (job_id, number, lease_token, worker_id, started_at, ended_at, exception_class, error)
            SELECT id, 1, 1, worker_id, enqueued_at, finished_at,
                (ARRAY['builtins.TimeoutError', 'builtins.KeyError', ''])[1 + id % 3], 'Traceback …'
            FROM gnlqueue_job WHERE status = 'dead'
            """
        )
        cursor.execute(
            """
            INSERT INTO gnlqueue_runjournalentry
                (run_id, position, key, key_hash, kind, status, lease_token, started_at, finished_at)
            SELECT 'job:' || id, 1, 'charge card', md5(id::text), 'step', 'in_doubt', 1, enqueued_at, now()
            FROM gnlqueue_job WHERE status = 'blocked'
            """
        )
        cursor.execute(
            """
            INSERT INTO gnlqueue_operatoraction (at, by, verb, target, why, done, skipped)
            SELECT now(), 'ann', 'retry', 'job ' || n, '', 1, 0 FROM generate_series(1, 100000) AS n
            """
        )
        sys.stderr.write("\nvacuum\n")
        cursor.execute("VACUUM ANALYZE")


def measure() -> None:
    """Fetch each page some times, and print how long it took and how many statements it sent."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry

    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    middle = Job.objects.order_by("-id").values_list("id", flat=True)[0] // 2
    dead = Job.objects.with_status(JobStatus.DEAD).order_by("-finished_at", "-id").values_list("id", flat=True)[0]
    doubt = RunJournalEntry.objects.filter(status=EntryStatus.IN_DOUBT).values_list("id", flat=True)[0]
    day = Job.objects.get(pk=middle).enqueued_at.date()
    sys.stdout.write(f"{'median':>9} {'slowest':>9} {'statements':>11}  page\n")
    for page in PAGES:
        url = "/admin/gnlqueue/" + page.format(day=day, middle=middle, dead=dead, doubt=doubt, group=GROUP)
        times: list[float] = []
        with CaptureQueriesContext(connection) as captured:
            response: Any = client.get(url)
        statements = len(captured)  # now: the next request forgets them
        for _ in range(ROUNDS):
            began = time.perf_counter()
            response = client.get(url)
            times.append(time.perf_counter() - began)
        said = f"{statistics.median(times) * 1000:>6.0f} ms {max(times) * 1000:>6.0f} ms {statements:>11}"
        wrong = "" if response.status_code == 200 else f"  ({response.status_code})"
        sys.stdout.write(f"{said}  {url.removeprefix('/admin/gnlqueue/'):.80}{wrong}\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="how many jobs (default: 10,000,000)")
    parser.add_argument("--database", default="postgresql://postgres@127.0.0.1:5432/postgres", metavar="URL")
    options = parser.parse_args()
    with project(options.database):
        from django.contrib import admin
        from django.urls import path

        urlpatterns.append(path("admin/", admin.site.urls))
        fill(options.rows)
        measure()


if __name__ == "__main__":
    main()
