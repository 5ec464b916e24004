"""What of an error those see who may not see arguments and results."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from gnlqueue import FailJob, queue, resolve
from gnlqueue.admin import errors
from gnlqueue.models import Job, JobStatus
from gnlqueue.queue import crashes, transitions
from gnlqueue.queue.claimed import ClaimedJob
from gnlqueue.queue.transactions import alias_of
from tests.app import tasks
from tests.durable.conftest import attempt, claim, end_lease, entry, jobs, leave_started, on_sqlite


def held() -> ClaimedJob:
    """A job that worker w1 has just claimed."""
    return claim(tasks.nothing.enqueue())


def lost() -> Job:
    """Its lease ran out."""
    job = tasks.nothing.enqueue()
    claim(job)
    end_lease(job)
    return queue.get(job.pk)


def crashed_alone() -> Job:
    """Its worker is known to be dead, and held nothing else."""
    job = held()
    crashes.end_crashed("w1", [job.pair], alias=alias_of(None))
    return queue.get(job.id)


def crashed_with_others() -> Job:
    """Nobody knows which of two jobs killed the worker."""
    job, other = held(), held()
    crashes.end_crashed("w1", [job.pair, other.pair], alias=alias_of(None))
    return queue.get(job.id)


def crashed_after_its_end() -> Job:
    """It had run to its end when another one killed the worker."""
    job, other = held(), held()
    crashes.end_crashed("w1", [other.pair], [job.pair], alias=alias_of(None))
    return queue.get(job.id)


def overdue() -> Job:
    """Its process was ended, as nothing else could interrupt it."""
    job = held()
    crashes.end_overdue([job.pair], alias=alias_of(None))
    return queue.get(job.id)


def used_up() -> Job:
    """Whoever rescued it last did not know how many attempts its task has."""
    job = tasks.nothing.using(max_attempts=1).enqueue()
    jobs().filter(pk=job.pk).update(attempts=1)
    return attempt(job)


def unknown() -> Job:
    """No worker knows its task."""
    job = queue.enqueue("shop.tasks.gone")
    transitions.postpone_unknown(claim(job), delay=timedelta(), grace=timedelta(days=1))
    return queue.get(job.pk)


def unknown_for_long() -> Job:
    """No worker has known its task for so long that it is given up."""
    job = unknown()
    transitions.postpone_unknown(claim(job), delay=timedelta(), grace=timedelta(days=-1))
    return queue.get(job.pk)


def given_up() -> Job:
    """A human who was asked about a step has failed it."""
    job = tasks.nothing.enqueue()
    leave_started(job, "charge")
    jobs().filter(pk=job.pk).update(attempts=99)
    leave_started(job, "ship")
    assert queue.get(job.pk).status == JobStatus.BLOCKED
    resolve(entry(job, "charge"), FailJob(), by="ada", reason="asked the bank")
    return queue.get(job.pk)


#: Who writes a text that begins like this.
WRITERS = {
    "All attempts were used up ": [used_up],
    "Given up by a human: ": [given_up],
    "It ran longer than its timeout ": [overdue],
    "No worker has known the task ": [unknown, unknown_for_long],
    "The worker ": [lost, crashed_alone, crashed_with_others, crashed_after_its_end],
}


@on_sqlite
@pytest.mark.parametrize(("start", "write"), [(start, write) for start in WRITERS for write in WRITERS[start]])
def test_what_the_queue_says_itself_is_shown_to_all(alias: str, start: str, write: Callable[[], Job]) -> None:
    text = write().last_error
    assert text is not None
    assert text.startswith(start)
    assert errors.in_short(text, whole=False) == text


def test_only_what_the_queue_writes_counts_as_its_own() -> None:
    """Any other text that began so would be the project's, and may quote an argument."""
    assert sorted(errors._OURS) == sorted(WRITERS)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("shop.Declined: card 42x42", "shop.Declined"),
        ("ValueError", "ValueError"),
        ("shop.pay.<locals>.Declined: card 42x42\nin two lines", "shop.pay.<locals>.Declined"),
        ("card 42x42 declined", ""),
        (None, ""),
    ],
)
def test_the_class_of_an_error_is_what_its_text_begins_with(text: str | None, seen: str) -> None:
    assert errors.in_short(text, whole=False) == seen
    assert errors.in_short(text, whole=True) == (text or "")
