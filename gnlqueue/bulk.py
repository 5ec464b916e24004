"""Doing what an operator asked for: to one job, or to all that match a frozen filter, in chunks that survive a crash.

What is left to do stands in the row of the operator log itself: each chunk changes its jobs and moves the row's
position in one transaction. So a runner that dies, or two that run at once, do nothing twice and leave nothing out.

Jobs are read by the index on their status: by id, ten million others may stand between two that match. But a verb
changes the status, or the time that the index is sorted by, and workers go on meanwhile, so a job may be met twice or
missed. Hence `_left_to_do` tells from the job's row alone whether the verb was already applied; statuses are walked in
the order in which jobs go through them; and a cancellation walks them again until nothing is left.

Up to ten thousand jobs are frozen as a list of ids, so that each one that changed meanwhile is known. The list is not
rewritten with each chunk (the counts of changed and skipped jobs are the position), and only its beginning is kept at
the end. More are frozen as a filter and counted before the first is changed: whatever is missing from that count at
the end had changed meanwhile. A job that left the filter after the cut-off, but before it was counted, left no trace
that an index would find: `uncounted` says between which times that was.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from gnlqueue import queue
from gnlqueue.dialects import now as clock
from gnlqueue.dialects import read_clock
from gnlqueue.exceptions import JobNotFound, WrongStatus
from gnlqueue.finding import Criteria, Place, Plan, look, plans_for
from gnlqueue.models import Job, JobStatus, OperatorAction
from gnlqueue.queue import wakeups
from gnlqueue.queue.transactions import retried

CHUNK = 100  # jobs changed in one transaction
IDS_IN_STATEMENT = 1_000  # ids that one statement names
FIRST_IDS = 10  # that the log keeps of an action that is finished
COUNT_CHUNK = 10_000  # jobs counted in one transaction
AT_ONCE = 500  # jobs that a request changes itself; more are left to a background job


def act(verb: str, job_id: int, *, using: str, run_after: datetime | timedelta | None = None) -> Job:
    """Apply a verb of the operator log (retry, run_now, reschedule, cancel) to a job, and return the job.

    `run_after` is for reschedule; with retry or run_now, the job does not start before it.

    Raises `WrongStatus` where the verb does not apply, `JobNotFound` where the job is gone.
    """
    if verb == "cancel":
        return queue.cancel(job_id, using=using)
    if verb == "retry":
        again = queue.retry(job_id, using=using)
        return again if run_after is None else queue.reschedule(again, run_after, using=using)
    if verb == "run_now":
        if not Job.objects.using(using).with_status(JobStatus.SCHEDULED).filter(pk=job_id).exists():
            raise WrongStatus(f"{queue.get(job_id, using=using)} is not scheduled, so it does not wait for a time.")
        soon = queue.reschedule(job_id, run_after or timedelta(0), using=using)
        wakeups.wake(using, [soon.queue_name])
        return soon
    if verb == "reschedule":
        assert run_after is not None
        return queue.reschedule(job_id, run_after, using=using)
    raise ValueError(f"There is no verb {verb!r} for jobs.")


def freeze(criteria: Criteria, *, spread: timedelta = timedelta(), run_after: datetime | None = None) -> dict[str, Any]:
    """Return what the operator log keeps of an action on many jobs: the filter, and how far the work has come."""
    kept: dict[str, Any] = {"filter": criteria.as_json(), "plan": 0, "after": None, "matched": 0}
    if criteria.ids is not None:
        kept["matched"] = len(criteria.ids)
    else:
        kept["counting"] = True
    if spread:
        kept["spread"] = spread.total_seconds()
    if run_after is not None:
        kept["run_after"] = run_after.isoformat()
    return kept


def uncounted(where: Any) -> tuple[datetime, datetime] | None:
    """Return the times between which jobs may have left the filter of an action without being counted.

    `None` where each was counted, or counting has not ended.
    """
    try:
        return datetime.fromisoformat(where["filter"]["as_of"]), datetime.fromisoformat(where["counted"])
    except (KeyError, TypeError, ValueError):  # it is about ids, or of another version
        return None


def run(action_id: int, *, using: str, go_on: Callable[[], None] = lambda: None) -> OperatorAction:
    """Do the rest of an operator's action, chunk by chunk, and return its row.

    `go_on` is called between two chunks, and may raise to stop.
    """
    while retried(using, lambda: _do_chunk(action_id, using)):
        go_on()
    return OperatorAction.objects.using(using).get(pk=action_id)


def _do_chunk(action_id: int, using: str) -> bool:
    """Count or change the next jobs and move the position, in one transaction; tell whether something is left."""
    row = OperatorAction.objects.using(using).filter(pk=action_id, finished_at__isnull=True)
    with transaction.atomic(using=using):
        # A write first: it makes a second runner wait here, and SQLite may refuse a write that comes after a read.
        if not row.update(done=F("done")):
            return False
        action = row.get()
        _Chunk(action, using).do()
        return action.finished_at is None


class _Chunk:
    """The next jobs of an action, in the caller's transaction."""

    def __init__(self, action: OperatorAction, using: str) -> None:
        self._action = action
        self._using = using
        self._kept: dict[str, Any] = action.where or {}  # how far the work has come; see `freeze`
        action.where = self._kept

    def do(self) -> None:
        """Count or change them, and move the position."""
        if "began" not in self._kept:
            self._kept["began"] = read_clock(self._using).isoformat()
            self._save("where")
        criteria = Criteria.from_json(self._kept["filter"])
        if criteria.ids is not None:
            self._change_ids(criteria)
        elif self._kept.get("counting"):
            self._count(plans_for(criteria, self._using))
        else:
            self._change(plans_for(criteria, self._using))

    def _save(self, *fields: str) -> None:
        self._action.save(using=self._using, update_fields=fields)

    def _change_ids(self, criteria: Criteria) -> None:
        """Change the jobs of the next ids; each counts as changed or as left alone, which is the position.

        An id is met once; one whose job is as the verb makes it is still one that was meant.
        """
        action = self._action
        ids = sorted(criteria.ids or (), reverse=True)
        first = action.done + action.skipped
        chunk = tuple(ids[first : first + CHUNK])
        if not chunk:
            self._kept["filter"]["ids"] = self._kept["filter"]["ids"][:FIRST_IDS]
            action.finished_at = clock()
            self._save("finished_at", "where")
            return
        (plan,) = plans_for(replace(criteria, ids=chunk), self._using)
        done = sum(map(self._apply, look(plan, len(chunk)).ids))
        action.done += done
        action.skipped += len(chunk) - done
        self._save("done", "skipped")

    def _count(self, plans: list[Plan]) -> None:
        """Count the next jobs that match; after the last one, begin to change them."""
        left = len(plans) - self._kept["plan"]
        if left > 0:
            # Against the order of the statuses: a job that moves on meanwhile is missed rather than counted twice.
            found = self._next(plans[left - 1], COUNT_CHUNK)
            self._kept["matched"] += len(self._left_to_do(found))
        else:
            self._kept |= {"plan": 0, "counting": False, "counted": read_clock(self._using).isoformat()}
        self._save("where")

    def _change(self, plans: list[Plan]) -> None:
        """Change the next jobs that match; after the last one, finish the action."""
        action, kept = self._action, self._kept
        if kept["plan"] >= len(plans) and kept.pop("again", False):
            kept["plan"] = 0
        if kept["plan"] >= len(plans):
            action.skipped += max(kept.get("matched", 0) - action.done - action.skipped, 0)  # they no longer match
            action.finished_at = clock()
        else:
            ids = self._left_to_do(self._next(plans[kept["plan"]], CHUNK))
            done = sum(map(self._apply, ids))
            action.done += done
            action.skipped += len(ids) - done
            if done and action.verb == "cancel":
                kept["again"] = True  # a job that failed meanwhile waits in a status that has been walked
        self._save("done", "skipped", "finished_at", "where")

    def _next(self, plan: Plan, size: int) -> list[int]:
        """Return the next jobs of a plan, and move the position behind them."""
        after = self._kept["after"]
        place = Place.parse(after, plan) if after else None
        if after and place is None:  # of another version; from the beginning it might never end
            raise ValueError(f"The position {after!r} of an operator's action cannot be read.")
        page = look(plan, size, place)
        if page.next is None:
            self._kept |= {"after": None, "plan": self._kept["plan"] + 1}
        else:
            self._kept["after"] = str(page.next)
        return page.ids

    def _left_to_do(self, ids: list[int]) -> list[int]:
        """Return those of the jobs that are not yet as the verb makes them."""
        if len(ids) > IDS_IN_STATEMENT:
            parts = (ids[first : first + IDS_IN_STATEMENT] for first in range(0, len(ids), IDS_IN_STATEMENT))
            return [id for part in parts for id in self._left_to_do(part)]
        rows = Job.objects.using(self._using).filter(pk__in=ids)
        if self._action.verb == "cancel":
            asked = rows.with_status(JobStatus.IN_PROGRESS).filter(cancel_requested_at__isnull=False)
            as_made = set(asked.values_list("id", flat=True))
        elif self._action.verb in ("run_now", "reschedule"):
            # One that ran meanwhile, and waits for its next attempt, may have been met before it ran.
            ran = rows.filter(last_attempted_at__gte=datetime.fromisoformat(self._kept["began"]))
            as_made = {id for id, run_at in rows.values_list("id", "run_at") if run_at == self._moment(id)}
            as_made.update(ran.values_list("id", flat=True))
        else:
            return ids  # a job that was retried has left the statuses that are walked
        return [id for id in ids if id not in as_made]

    def _apply(self, id: int) -> bool:
        """Apply the verb to one job; tell whether it was still applicable."""
        try:
            act(self._action.verb, id, using=self._using, run_after=self._moment(id))
        except (WrongStatus, JobNotFound):
            return False
        return True

    def _moment(self, id: int) -> datetime | None:
        """Return when the action lets a job start; `None`: at once.

        Each job has its own moment in the span over which they are spread. It is the same whenever it is asked for, so
        that a job's row shows whether it was already given its moment.
        """
        action, kept = self._action, self._kept
        if action.verb == "cancel" or (action.verb == "retry" and "spread" not in kept):
            return None
        since = datetime.fromisoformat(kept.get("run_after", kept["began"]))
        return since + timedelta(seconds=random.Random(f"{action.pk}:{id}").uniform(0, kept.get("spread", 0)))
