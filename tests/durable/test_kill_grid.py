"""Workers that are killed at each point of a step, with attempts left or none, and what the next make of it."""

from typing import Any, NamedTuple

import pytest

from gnlqueue import queue
from gnlqueue.models import EntryStatus, JobStatus
from tests.app.models import Note
from tests.durable import tasks
from tests.durable.conftest import KINDS, Ledger, Mortals, attempt, entries
from tests.durable.faults import POINTS, WAYS


class Attempts(NamedTuple):
    """How many attempts the job has, and in which one the worker is killed."""

    at_most: int
    killed_in: int


ATTEMPTS = {
    "attempts left": Attempts(5, 1),
    "last attempt": Attempts(2, 2),
    "only attempt": Attempts(1, 1),
}


#: Where a `step` is caught between its two commits.
CAUGHT = {"after started commits", "during the effect", "after the effect", "before done commits"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("attempts", ATTEMPTS.values(), ids=ATTEMPTS.keys())
@pytest.mark.parametrize("way", WAYS)
def test_no_effect_is_lost_or_repeated(
    attempts: Attempts, point: str, kind: str, alias: str, way: str, ledger: Ledger, mortals: Mortals
) -> None:
    """The ledger, a file, counts how often the function was called; the rows are its effect in the database.

    A `step` has it once, or not at all where its worker died right before and a human must say so; an `idempotent_step`
    at least once. An `atomic_step` may call its function again, and its effect, the row, is there exactly once.
    """
    job = tasks.one_step.using(max_attempts=attempts.at_most).enqueue(kind, str(ledger.path), attempts.killed_in)
    for _ in range(1, attempts.killed_in):
        assert attempt(job).status == JobStatus.SCHEDULED
    mortals.die(job, kind, point, way)

    settle(job)
    assert not is_dead_with_an_open_question(job)
    if queue.get(job).status == JobStatus.DEAD:
        queue.retry(job)
        settle(job)

    caught = kind == "step" and point in CAUGHT
    assert queue.get(job).status == (JobStatus.BLOCKED if caught else JobStatus.DONE)
    rows = Note.objects.using(alias).count()
    if kind == "step":
        assert len(ledger) == rows == (0 if point == "after started commits" else 1)
    elif kind == "atomic_step":
        assert rows == 1
    else:
        assert len(ledger) == rows >= 1


def settle(job: Any) -> None:
    """Let workers run the job until it waits for nobody but a human."""
    while queue.get(job).status in {JobStatus.READY, JobStatus.SCHEDULED}:
        attempt(job)


def is_dead_with_an_open_question(job: Any) -> bool:
    """Whether the job ended though nobody knows what became of one of its steps."""
    return queue.get(job).status == JobStatus.DEAD and entries(job).filter(status=EntryStatus.STARTED).exists()
