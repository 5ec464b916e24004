"""Hostile text in every field of every row: each page shows it, and no browser runs it."""

import html
import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connections
from django.test import Client

from gnlqueue.dialects import read_clock
from gnlqueue.models import (
    EntryStatus,
    Job,
    JobAttempt,
    JobStatus,
    OperatorAction,
    QueueState,
    RunJournalEntry,
    StepNote,
    TaskMinute,
    WorkerProcess,
)
from tests.admin.conftest import Open
from tests.admin.pages import decision_url, job_url
from tests.durable.conftest import on_sqlite

SCRIPT = "<script>window.hacked=1</script>"
TEXT = f"{SCRIPT}\"'><img src=x onerror=window.hacked=1>\u202e{{{{ 7|add:7 }}}}${{7}}"
NAME = TEXT.replace('"', "")  # SQLite finds no key in JSON that has one
LISTS = ("overview", "job", "deadjob", "stepindoubt", "queuestate", "workerprocess", "operatoraction")
SEARCHES = (
    f"job/?q={quote(TEXT)}",
    f"job/?q=error:{quote(SCRIPT)}",
    f"job/?queue_name={quote(SCRIPT)}",
    "deadjob/group/",
)
#: Filters for many jobs: one that finds some, one that asks for all there is, and one that nobody understands.
FINDING: dict[str, Any] = {
    "statuses": ["dead"],
    "queue_name": TEXT[:64],
    "task_contains": TEXT,
    "worker_contains": TEXT,
    "arguments": [[NAME, TEXT]],
}
ASKING = {"task_name": TEXT, "worker_id": TEXT, "errors": [TEXT, TEXT], "key": TEXT, "without_task": TEXT}
FILTERS = ({**FINDING, **ASKING}, {TEXT: TEXT})


@pytest.fixture
def urls(alias: str) -> list[str]:
    """The addresses of all pages, on a database in which every text is hostile."""
    nul = "" if connections[alias].vendor == "postgresql" else "\0"  # PostgreSQL cannot hold it
    return [
        *(f"/admin/gnlqueue/{name}/" for name in LISTS),
        *(f"/admin/gnlqueue/{search}" for search in SEARCHES),
        f"/admin/gnlqueue/job/bulk/?verb=retry&criteria={quote(json.dumps(FINDING))}",
        *_told(alias, TEXT + nul),
    ]


def _told(alias: str, text: str) -> list[str]:
    now = read_clock(alias)
    payload = {text: [text, {text: text}]}
    jobs = [_job(status, text, payload, now, alias) for status in JobStatus]
    entries = [
        _entry(job, number, status, text, now, alias) for job in jobs for number, status in enumerate(EntryStatus)
    ]
    for job in jobs:
        job.attempts = 1
        JobAttempt.objects.using(alias).create(
            job=job, number=1, lease_token=1, worker_id=text[:100], started_at=now, ended_at=now,
            exception_class=text[:200], error=text,
        )  # fmt: skip
    for entry in entries:
        for kind in StepNote.Kind:
            value = json.dumps({"key": text, "kind": text, "args_hash": text}) if kind == "mismatch" else text
            StepNote.objects.using(alias).create(
                entry=entry, lease_token=1, kind=kind, by=text, at=now, why=text, value=value
            )
    WorkerProcess.objects.using(alias).create(
        worker_id=text[:100], hostname=text, pid=1, queues=[text], concurrency=1, started_at=now, heartbeat_at=now
    )
    QueueState.objects.using(alias).create(queue_name=text[:64], paused_at=now)
    for kept in FILTERS:
        OperatorAction.objects.using(alias).create(
            at=now, by=text, verb=text[:40], target=text, where={"filter": kept}, why=text
        )
    minute = now.replace(second=0, microsecond=0)
    TaskMinute.objects.using(alias).create(
        minute=minute, queue_name=text[:64], task_name=text, worker_id=text[:100], succeeded=1, failed=1
    )
    verbs = [f"/admin/gnlqueue/job/{jobs[-2].pk}/verb/{verb}/" for verb in ("retry", "cancel", "enqueue_again")]
    of_blocked = [entry for entry in entries if entry.run_id == jobs[3].run_id]
    return [*map(job_url, jobs), *map(decision_url, of_blocked), *verbs]


def _job(status: JobStatus, text: str, payload: Any, now: Any, alias: str) -> Job:
    return Job.objects.using(alias).create(
        task_name=text[:200], queue_name=text[:64], status=status, args=[payload, text],
        kwargs={text: payload, NAME: TEXT},
        run_at=now + timedelta(hours=1), attempts=1, crashes=2, options=payload, idempotency_key=text[:200],
        key_hash=status.value, lease_token=1, worker_id=text[:100], enqueued_at=now, started_at=now,
        last_attempted_at=now, finished_at=now if status in {"done", "dead", "cancelled"} else None,
        blocked_reason="mismatch" if status == "blocked" else None, progress=payload, result=payload, last_error=text,
    )  # fmt: skip


def _entry(job: Job, number: int, status: EntryStatus, text: str, now: Any, alias: str) -> RunJournalEntry:
    return RunJournalEntry.objects.using(alias).create(
        run_id=job.run_id, position=number, key=text, key_hash=f"{job.pk}-{number}", kind="step", status=status,
        args_hash=text[:64], result=json.dumps(text), lease_token=1, started_at=now, finished_at=now,
        error={"classes": [text], "message": text, "how_to_check": text},
    )  # fmt: skip


def test_it_is_shown_as_text(admin: Client, urls: list[str]) -> None:
    for url in urls:
        response = admin.get(url, follow=True)
        assert response.status_code == 200, url
        content = response.content.decode()
        assert "<script>window" not in content, url
        assert "<img src=x" not in content, url
        assert "14${7}" not in content, url
        main = re.sub(r"<textarea.*?</textarea>", "", content.partition('id="content-main"')[2], flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]*>", "", main))  # what one edits stands as it is
        assert "\0" not in text, url
        assert "\u202e" not in text, url
        assert "window.hacked" in text, url


@on_sqlite
def test_no_browser_runs_it(open_page: Open, urls: list[str]) -> None:
    from tests.admin import browser as browsers

    page = open_page(size=browsers.TELEPHONE)
    ran, too_wide = [], []
    for url in urls:
        browsers.go(page, url)
        ran += [url] if page.evaluate("window.hacked") is not None else []
        too_wide += [url] if browsers.is_too_wide(page) else []
    assert (ran, too_wide) == ([], [])
