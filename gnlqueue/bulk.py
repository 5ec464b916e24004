"""Doing what an operator asked for: to one job, or to all that match a frozen filter, in chunks that survive a crash.

What is left to do stands in the row of the operator log itself: each chunk changes its jobs and moves the row's
position in one transaction. So a runner that dies, or two that run at once, do nothing twice and leave nothing out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from gnlqueue import queue
from gnlqueue.dialects import now as clock
from gnlqueue.exceptions import JobNotFound, WrongStatus
from gnlqueue.finding import Criteria, Place, Plan, look, plans_for
from gnlqueue.models import Job, JobStatus, OperatorAction
from gnlqueue.queue import wakeups
from gnlqueue.queue.transactions import retried

CHUNK = 100  # jobs changed in one transaction
AT_ONCE = 500  # jobs that a request changes itself; more are left to a background job


def act(verb: str, job: Job | int, *, using: str, run_after: datetime | timedelta | None = None) -> Job:
    """Do a verb of the operator log (retry, run_now, reschedule, cancel) to a job, and return the job.

    `run_after` is for reschedule; given to retry or run_now, the job does not start before it.

    Raises `WrongStatus` where the verb does not apply, `JobNotFound` where the job is gone.
    """
    if verb == "cancel":
        return queue.cancel(job, using=using)
    if verb == "retry":
        again = queue.retry(job, using=using)
        return again if run_after is None else queue.reschedule(again, run_after, using=using)
    if verb == "run_now":
        id = job.pk if isinstance(job, Job) else job
        if not Job.objects.using(using).with_status(JobStatus.SCHEDULED).filter(pk=id).exists():
            raise WrongStatus(f"{queue.get(id, using=using)} is not scheduled, so it does not wait for a time.")
        soon = queue.reschedule(id, run_after or timedelta(0), using=using)
        wakeups.wake(using, [soon.queue_name])
        return soon
    if verb == "reschedule":
        assert run_after is not None
        return queue.reschedule(job, run_after, using=using)
    raise ValueError(f"There is no verb {verb!r} for jobs.")


def freeze(criteria: Criteria, *, spread: timedelta = timedelta(), run_after: datetime | None = None) -> dict[str, Any]:
    """Return what the operator log keeps of an action on many jobs: the filter, and how far the work has come."""
    kept: dict[str, Any] = {"filter": criteria.as_json(), "plan": 0, "after": None}
    if spread:
        kept["spread"] = spread.total_seconds()
    if run_after is not None:
        kept["run_after"] = run_after.isoformat()
    return kept


def run(action_id: int, *, using: str, go_on: Callable[[], None] = lambda: None) -> OperatorAction:
    """Do the rest of an operator's action, chunk by chunk, and return its row; `go_on` may raise to stop in between."""
    while retried(using, lambda: _do_chunk(action_id, using)):
        go_on()
    return OperatorAction.objects.using(using).get(pk=action_id)


def _do_chunk(action_id: int, using: str) -> bool:
    """Change the next jobs and move the position, in one transaction; tell whether something is left."""
    row = OperatorAction.objects.using(using).filter(pk=action_id, finished_at__isnull=True)
    with transaction.atomic(using=using):
        # A write first: it makes a second runner wait here, and SQLite refuses to read first and write then.
        if not row.update(done=F("done")):
            return False
        action = row.get()
        kept = action.where or {}
        criteria = Criteria.from_json(kept["filter"])
        plans = plans_for(criteria, using)
        if kept["plan"] >= len(plans):
            chosen = {} if criteria.ids is None else {"skipped": len(criteria.ids) - action.done}
            row.update(finished_at=clock(), **chosen)
            return False
        plan: Plan = plans[kept["plan"]]
        place = Place.parse(kept["after"], plan) if kept["after"] else None
        if kept["after"] and place is None:  # of another version; from the beginning it might never end
            raise ValueError(f"The position {kept['after']!r} of operator action {action_id} cannot be read.")
        page = look(plan, CHUNK, place)
        done = sum(_changed(action.verb, id, kept, using) for id in page.ids)
        skipped = len(page.ids) - done
        left = page.next is not None
        kept |= {"after": str(page.next), "plan": kept["plan"]} if left else {"after": None, "plan": kept["plan"] + 1}
        row.update(done=F("done") + done, skipped=F("skipped") + skipped, where=kept)
    return True


def _changed(verb: str, id: int, kept: dict[str, Any], using: str) -> bool:
    """Do the verb to one job; tell whether it still applied."""
    # Each at a random moment of the span: no two chunks need to know of each other.
    offset = timedelta(seconds=random.uniform(0, kept["spread"])) if "spread" in kept else None
    since = datetime.fromisoformat(kept["run_after"]) if "run_after" in kept else None
    run_after = offset if since is None else since + (offset or timedelta())
    try:
        act(verb, id, using=using, run_after=run_after)
    except (WrongStatus, JobNotFound):
        return False
    return True
