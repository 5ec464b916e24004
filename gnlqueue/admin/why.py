"""Why a job isn't running, in words, from facts; and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gnlqueue.admin import job_facts
from gnlqueue.admin.base import may_open, url
from gnlqueue.admin.job_facts import Facts
from gnlqueue.conf import settings
from gnlqueue.dialects.base import SUSPECT_CRASHES
from gnlqueue.models import EntryStatus, JobStatus, RunJournalEntry
from gnlqueue.queue.attempts import max_attempts
from gnlqueue.registry import find_task
from gnlqueue.templatetags.gnlqueue_admin import number


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, and what to do next: words, perhaps a command, perhaps a page. `at` is the time that it names."""

    text: str
    advice: str = ""
    command: str = ""
    url: str = ""
    link: str = ""
    at: datetime | None = None


def reasons(facts: Facts) -> list[Reason]:
    """Say why the job isn't running, the most important first; how it runs, if it does; nothing, if it is done."""
    by_status = {
        JobStatus.SCHEDULED: _scheduled,
        JobStatus.READY: _ready,
        JobStatus.IN_PROGRESS: _in_progress,
        JobStatus.BLOCKED: _blocked,
        JobStatus.DEAD: _dead,
        JobStatus.CANCELLED: _cancelled,
    }
    say = by_status.get(JobStatus(facts.job.status))
    return list(say(facts)) if say is not None else []


def _scheduled(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    if job.run_at <= facts.now:
        yield Reason(_("It is due, and a worker makes it ready at its next poll."), at=job.run_at)
    elif job.unknown_since is not None:
        yield from _unknown(facts)
    elif facts.sleeping is not None:
        text = _("Its run is asleep (%(step)s), and goes on later.") % {"step": facts.sleeping.key}
        yield Reason(
            text, _("It holds no worker meanwhile. “Run now” only makes it check the clock sooner."), at=job.run_at
        )
    elif job.attempts and job.last_error:
        text = _("Its last attempt failed, and it waits before the next one.")
        yield Reason(text, _("“Run now” does not wait."), at=job.run_at)
    else:
        yield Reason(_("It is scheduled for later."), _("“Run now” does not wait."), at=job.run_at)
    yield from _cancelled_soon(facts)
    yield from _queue(facts)


def _ready(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    stuck = [*_queue(facts), *_unknown(facts)]
    yield from stuck
    if job.crashes >= SUSPECT_CRASHES:
        yield Reason(
            _(
                "It crashed its worker %(n)s times in a row, so it is claimed alone and runs with nothing else in its "
                "process."
            )
            % {"n": number(job.crashes)},
            _("It waits until a worker has nothing else to do. The attempts below show how they ended."),
        )
    if facts.before is None:
        yield Reason(
            _("More than %(n)s jobs in its queue come first, %(urgent)s of them with a higher priority.")
            % {"n": number(job_facts.FARTHEST), "urgent": number(facts.more_urgent)},
            _("With more workers or slots its turn comes sooner."),
        )
    elif facts.before:
        text = ngettext("%(n)s job in its queue comes first", "%(n)s jobs in its queue come first", facts.before)
        urgent = _("%(urgent)s of them with a higher priority") % {"urgent": number(facts.more_urgent)}
        text = text % {"n": number(facts.before)} + (f", {urgent}." if facts.more_urgent else ".")
        yield Reason(text, _("With more workers or slots its turn comes sooner."))
    elif not stuck and job.crashes < SUSPECT_CRASHES:
        yield Reason(_("It is next in its queue: a worker with a free slot takes it at its next poll."))


def _in_progress(facts: Facts) -> Iterator[Reason]:
    job, holder = facts.job, facts.holder()
    expires = job.lease_expires_at
    if expires is not None and expires < facts.now:
        yield Reason(
            _("Its lease has run out: %(worker)s died or lost contact.") % {"worker": job.worker_id},
            _("The next worker that polls takes it back, and its run goes on from the journal."),
            at=expires,
        )
        yield from _queue(facts)
    elif holder is not None and not holder.is_live(facts.now):
        yield Reason(
            _("%(worker)s has it, but has not been heard from lately.") % {"worker": job.worker_id},
            _("When its lease runs out, another worker takes it back."),
            at=expires,
        )
    else:
        yield Reason(_("It runs on %(worker)s.") % {"worker": job.worker_id}, at=job.last_attempted_at)
    if job.cancel_requested_at is not None:
        yield Reason(
            _("Its cancellation was requested."),
            _("It stops at its next step or context.check(); a task that calls neither runs to its end, and is done."),
            at=job.cancel_requested_at,
        )


def _blocked(facts: Facts) -> Iterator[Reason]:
    if facts.mismatch is not None:
        yield Reason(
            _("The code does not fit what its journal recorded at “%(step)s”.") % {"step": facts.mismatch.key},
            _("Only a person can say how it goes on."),
            f"python manage.py gnlqueue resolve {facts.mismatch.pk} --go-on --reason …",
            _decision_url(facts, facts.mismatch),
            _("Decide"),
        )
    for entry in facts.entries:
        if entry.status == EntryStatus.IN_DOUBT:
            yield Reason(
                _("Nobody knows whether its step “%(step)s” happened.") % {"step": entry.key},
                _("Find out, and say so: until then it waits, and uses up no attempts."),
                f"python manage.py gnlqueue resolve {entry.pk} --happened JSON --reason …",
                _decision_url(facts, entry),
                _("Decide"),
                entry.finished_at,
            )
    if facts.mismatch is None and not facts.entries:
        yield Reason(
            _("It was blocked (%(why)s), and waits until a person unblocks it.") % {"why": facts.job.blocked_reason},
            command=f"gnlqueue.queue.unblock({facts.job.pk})",
        )


def _dead(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    most = max_attempts(job)
    if job.attempts >= most:
        text = ngettext(
            "It is dead: its only attempt is used up.", "It is dead: all of its %(most)s attempts are used up.", most
        )
    else:
        text = _("It is dead: it was given up after %(n)s of %(most)s attempts.")
    text %= {"n": number(job.attempts), "most": number(most)}
    advice = _("Once the cause is fixed, retry it: steps that are recorded as done do not run again.")
    yield Reason(text, advice, f"python manage.py gnlqueue retry {job.pk}", at=job.finished_at)
    for entry in facts.entries:
        if entry.status == EntryStatus.IN_DOUBT:
            text = _("Nobody knows whether its step “%(step)s” happened: if it is retried, it asks again.") % {
                "step": entry.key
            }
            yield Reason(text, url=_decision_url(facts, entry), link=_("Decide"))


def _cancelled(facts: Facts) -> Iterator[Reason]:
    command = f"python manage.py gnlqueue retry {facts.job.pk}"
    yield Reason(
        _("It was cancelled."), _("If it is retried, it goes on from its journal."), command, at=facts.job.finished_at
    )


def _cancelled_soon(facts: Facts) -> Iterator[Reason]:
    if facts.job.cancel_requested_at is not None:
        yield Reason(_("Its cancellation was requested."), at=facts.job.cancel_requested_at)


def _queue(facts: Facts) -> Iterator[Reason]:
    """Say what keeps workers away from the job's queue."""
    name = facts.job.queue_name
    if facts.paused_at is not None:
        yield Reason(
            _("Its queue %(queue)s is paused.") % {"queue": name},
            _("Resume the queue."),
            url=_page(facts, "queuestate_changelist"),
            link=_("Queues"),
            at=facts.paused_at,
        )
    if not facts.alive:
        yield Reason(_("No worker is running at all."), _("Start one:"), f"python manage.py runworker --queues {name}")
    elif not facts.serving:
        yield Reason(
            _("No running worker serves its queue %(queue)s.") % {"queue": name},
            _("Start one that does, or let a running one serve it too:"),
            f"python manage.py runworker --queues {name}",
            _page(facts, "workerprocess_changelist"),
            _("Workers"),
        )


def _unknown(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    if job.unknown_since is not None:
        dead_at = job.unknown_since + timedelta(seconds=settings().UNKNOWN_TASK_GRACE_SECONDS)
        yield Reason(
            _("No worker that saw it knows its task %(task)s.") % {"task": job.task_name},
            _("Deploy workers that do before %(time)s UTC; after that it is dead.")
            % {"time": f"{dead_at:%Y-%m-%d %H:%M}"},
            at=job.unknown_since,
        )
    elif find_task(job.task_name) is None:
        yield Reason(
            _("This process does not know the task %(task)s.") % {"task": job.task_name},
            _("Workers of another project may; if none does, it comes back again and again, and ends up dead."),
        )


def _decision_url(facts: Facts, entry: RunJournalEntry) -> str:
    return _page(facts, "stepindoubt_change", entry.pk)


def _page(facts: Facts, name: str, *args: Any) -> str:
    """Return the address of a page of ours; "" for whoever may not open it."""
    return url(facts.request, f"gnlqueue_{name}", *args) if may_open(facts.request, name) else ""
