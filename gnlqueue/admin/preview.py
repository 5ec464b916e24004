"""What a verb would do to which jobs: how many, of which tasks, how old, and which steps will not run again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Subquery

from gnlqueue.admin.base import CAP, CappedCount
from gnlqueue.admin.verb_page import recorded_steps
from gnlqueue.admin.verbs import Verb
from gnlqueue.dialects import read_clock
from gnlqueue.finding import Criteria, estimate, look, plans_for
from gnlqueue.models import NOT_EFFECTS, RUN_OF_JOB, EntryStatus, Job, RunJournalEntry, run_id_of_outer_job
from gnlqueue.tasks import run_operator_action

LOOKED_AT = 1_000  # jobs whose tasks, ages and steps are shown
SAMPLES = 5

#: Whether a job has recorded a step that will not run again. Not Exists: PostgreSQL may hash its answers, for
#: which it would read the whole journal.
HAS_STEPS = Subquery(
    RunJournalEntry.objects.filter(
        run_id=run_id_of_outer_job(),
        status=EntryStatus.DONE,
    )
    .exclude(kind__in=NOT_EFFECTS)
    .values("pk")[:1]
)


@dataclass(frozen=True, slots=True)
class Preview:
    """What is about to happen to which jobs."""

    ids: list[int]
    count: CappedCount
    tasks: list[tuple[str, int]]
    oldest: datetime | None
    newest: datetime | None
    samples: list[Job]
    jobs_with_steps: int
    steps: list[tuple[str, str]]
    looked_at: int  #: jobs whose tasks, ages and steps were read

    @property
    def is_part(self) -> bool:
        """Whether the details cover only some of the jobs."""
        return self.count.more or self.count.number > self.looked_at


def freeze(verb: Verb, criteria: Criteria, alias: str) -> Criteria:
    """Return the criteria of the jobs that the verb applies to and that exist now."""
    applies = {str(status) for status in verb.applies_to}
    statuses = applies & set(criteria.statuses) if criteria.statuses else applies
    newest = Job.objects.using(alias).order_by("-id").values_list("id", flat=True).first()
    is_asked_for = any(each is not None for each in (criteria.ids, criteria.key, criteria.task_name))
    return replace(
        criteria,
        # No status that the verb applies to: nothing is found.
        **({"statuses": tuple(sorted(statuses))} if statuses else {"statuses": (), "ids": ()}),
        last_id=newest or 0,
        as_of=read_clock(alias),
        # "All that match" leaves out the jobs that carry out such actions: cancelled, one would leave its own undone.
        without_task=None if is_asked_for else run_operator_action.name,
    )


def preview_of(frozen: Criteria, alias: str) -> Preview:
    """Return how many jobs there are, counted up to `CAP`, and what the first of them are."""
    ids: list[int] = []
    met: set[int] = set()
    more = False
    for plan in plans_for(frozen, alias):
        page = look(plan, CAP + 1 - len(ids))
        ids += [id for id in page.ids if id not in met]  # it may have moved on between two looks
        met.update(page.ids)
        more = more or page.next is not None
        if len(ids) > CAP:
            break
    first = ids[:LOOKED_AT]
    rows = Job.objects.using(alias).filter(pk__in=first).annotate(recorded=HAS_STEPS)
    tasks: Counter[str] = Counter()
    times: list[datetime] = []
    with_steps: list[int] = []
    for id, task_name, enqueued_at, recorded in rows.values_list("id", "task_name", "enqueued_at", "recorded"):
        tasks[task_name] += 1
        times.append(enqueued_at)
        if recorded:
            with_steps.append(id)
    samples = Job.objects.using(alias).only("id", "task_name", "status", "queue_name", "enqueued_at")
    steps = recorded_steps(with_steps[:SAMPLES], SAMPLES) if with_steps else []
    return Preview(
        ids=ids[:CAP],
        count=CappedCount.of(len(ids), CAP, lambda: estimate(frozen, alias), more=more),
        tasks=tasks.most_common(10),
        oldest=min(times, default=None),
        newest=max(times, default=None),
        samples=list(samples.filter(pk__in=first[:SAMPLES]).order_by("-pk")) if first else [],
        jobs_with_steps=len(with_steps),
        steps=[(run_id.removeprefix(RUN_OF_JOB), key) for run_id, key in steps[:SAMPLES]],
        looked_at=len(first),
    )
