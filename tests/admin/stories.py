"""A queue in which something of everything has happened, for tests that look at all the pages."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gnlqueue import queue
from gnlqueue.models import Job, OperatorAction, RunJournalEntry, TaskMinute
from gnlqueue.queue.transactions import alias_of
from gnlqueue.worker import identity
from tests.admin.pages import IN_DOUBT, decision_url, job_url
from tests.app import tasks as app_tasks
from tests.durable import tasks
from tests.durable.conftest import attempt, claim, crashing, entry, leave_started

LATER = timedelta(days=3)
HOW = "Look for order 4711 in the gateway’s dashboard."  # noqa: RUF001  a developer's own text


@dataclass
class Story:
    """The jobs and steps that the pages are about."""

    dead: Job
    doubtful: RunJournalEntry
    misfit: RunJournalEntry
    done: Job
    running: Job
    ready: Job
    scheduled: Job


#: Each page of ours, by its address; the story says which jobs there are.
PAGES: dict[str, Callable[[Story], str]] = {
    "overview": lambda story: "/admin/gnlqueue/overview/",
    "jobs": lambda story: "/admin/gnlqueue/job/",
    "jobs, filtered": lambda story: "/admin/gnlqueue/job/?status=dead&q=error:RuntimeError",
    "a job that waits": lambda story: job_url(story.ready),
    "a blocked job": lambda story: f"/admin/gnlqueue/job/{story.doubtful.job_id}/change/",
    "a dead job": lambda story: job_url(story.dead),
    "a done job": lambda story: job_url(story.done),
    "to retry": lambda story: f"/admin/gnlqueue/job/{story.dead.pk}/verb/retry/",
    "to reschedule": lambda story: f"/admin/gnlqueue/job/{story.scheduled.pk}/verb/reschedule/",
    "to enqueue again": lambda story: f"/admin/gnlqueue/job/{story.doubtful.job_id}/verb/enqueue_again/",
    "to retry many": lambda story: "/admin/gnlqueue/job/bulk/?verb=retry",
    "dead letters": lambda story: "/admin/gnlqueue/deadjob/",
    "in doubt": lambda story: IN_DOUBT,
    "a decision": lambda story: decision_url(story.doubtful),
    "a mismatch": lambda story: decision_url(story.misfit),
    "queues": lambda story: "/admin/gnlqueue/queuestate/",
    "workers": lambda story: "/admin/gnlqueue/workerprocess/",
    "operator log": lambda story: "/admin/gnlqueue/operatoraction/",
}


def play(handler: Callable[..., Any], *args: Any, **options: Any) -> Job:
    """Enqueue a job that calls the handler when it is run next."""
    tasks.handlers["play"] = handler
    return tasks.play.using(**options).enqueue(*args)


def tell() -> Story:
    """Let it all happen, on the queue's database."""
    alias = alias_of(None)
    story = Story(_dead(), _doubtful(), _misfit(), _done(), _running(), *_waiting())
    identity.register("vm-1", ["default"], 4, alias, lease=60)
    OperatorAction.objects.using(alias).create(
        at=story.dead.enqueued_at,
        by="ada",
        verb="retry",
        target="312 jobs",
        why="The printer has paper again.",
        done=312,
    )
    minute = story.dead.enqueued_at.replace(second=0, microsecond=0) - timedelta(minutes=2)
    TaskMinute.objects.using(alias).create(
        minute=minute, queue_name="default", task_name="shop.tasks.checkout", worker_id="vm-1", succeeded=7, failed=2
    )
    tasks.handlers.clear()
    return story


def _dead() -> Job:
    job = app_tasks.fail.using(max_attempts=1).enqueue("no paper")
    return attempt(job)


def _doubtful() -> RunJournalEntry:
    job = play(_steps, 4711, {"card": "42x42"}, priority=5, idempotency_key="checkout:4711")
    attempt(job)
    leave_started(job, "charge card")
    play(_steps, run_after=LATER)
    attempt(job)
    return entry(job, "charge card")


def _steps(context: Any, *args: Any) -> None:
    context.step("reserve stock", lambda: {"shelf": 7})
    if context.attempt == 1:
        raise OSError("the warehouse is on fire")
    context.using(how_to_check=HOW).step("charge card", lambda: {"id": "ch_1"})


def _misfit() -> RunJournalEntry:
    job = play(crashing(lambda context: context.step("reserve stock", lambda: 5)))
    attempt(job)
    play(lambda context: context.step("reserve goods", lambda: 5), run_after=LATER)
    attempt(job)
    return entry(job)


def _done() -> Job:
    job = play(lambda context: [context.step("page", int) for _ in range(3)])
    return attempt(job)


def _running() -> Job:
    job = app_tasks.nothing.enqueue()
    claim(job, "vm-1")
    return job


def _waiting() -> tuple[Job, Job]:
    queue.pause("other")
    return app_tasks.work_elsewhere.enqueue(), app_tasks.nothing.using(run_after=LATER).enqueue()
