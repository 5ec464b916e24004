"""Several who decide about one step: people at once, or a person and a worker that comes back."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from gnlqueue import AlreadyResolved, FailJob, GoOn, Happened, JobContext, NotHappened, UseRecorded, queue, resolve
from gnlqueue.durable.resolving import in_doubt
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry
from tests.durable.conftest import (
    attempt,
    crashing,
    end_lease,
    entry,
    give,
    leave_started,
    notes,
    now_do,
)

Play = Callable[..., Job]
BY = {"by": "ada", "reason": "asked the bank"}


@pytest.fixture
def doubtful(play: Play) -> Job:
    """A job that charged, and got no answer."""

    def charge() -> None:
        raise TimeoutError("no answer")

    job = attempt(play(lambda context: context.step("charge", charge)))
    assert job.status == JobStatus.BLOCKED
    return job


def decide_at_once(run_threads: Callable[..., list[Any]], entry: RunJournalEntry, answers: list[Any]) -> list[str]:
    """Let several people decide; the answers that counted."""

    def decide(number: int) -> str:
        try:
            resolve(entry.pk, answers[number], by=f"person {number}", reason="sure")
        except AlreadyResolved:
            return "told"
        return type(answers[number]).__name__

    counted = [each for each in run_threads(len(answers), decide) if each != "told"]
    assert sorted(note.value.split("(")[0] for note in notes("resolution")) == sorted(counted)
    return counted


def test_of_several_people_who_settle_a_doubt_at_once_one_wins(
    doubtful: Job, run_threads: Callable[..., list[Any]]
) -> None:
    (counted,) = decide_at_once(run_threads, entry(doubtful), [Happened("paid"), NotHappened()] * 3)
    assert entry(doubtful).status == (EntryStatus.DONE if counted == "Happened" else EntryStatus.RELEASED)
    assert queue.get(doubtful).status == JobStatus.READY


def test_of_several_people_who_fail_the_job_at_once_one_wins(
    doubtful: Job, run_threads: Callable[..., list[Any]]
) -> None:
    assert decide_at_once(run_threads, entry(doubtful), [FailJob()] * 4) == ["FailJob"]
    assert (queue.get(doubtful).status, entry(doubtful).status) == (JobStatus.DEAD, EntryStatus.IN_DOUBT)


def test_who_fails_the_job_while_others_settle_the_doubt_is_told_unless_first(
    doubtful: Job, run_threads: Callable[..., list[Any]]
) -> None:
    """To fail the job leaves the doubt, which can be settled afterwards; the job stays dead."""
    counted = decide_at_once(run_threads, entry(doubtful), [FailJob(), Happened("paid"), FailJob(), NotHappened()])
    settled = [each for each in counted if each != "FailJob"]
    assert len(settled) == 1
    assert entry(doubtful).status == (EntryStatus.DONE if settled == ["Happened"] else EntryStatus.RELEASED)
    assert counted.count("FailJob") == (queue.get(doubtful).status == JobStatus.DEAD)
    assert queue.get(doubtful).status in {JobStatus.DEAD, JobStatus.READY}


def test_of_several_people_who_decide_about_a_mismatch_at_once_one_wins(
    play: Play, run_threads: Callable[..., list[Any]]
) -> None:
    job = play(crashing(lambda context: context.step("charge", give("paid"))))
    attempt(job)
    now_do(lambda context: context.step("charge card", give("paid twice")))
    assert attempt(job).blocked_reason == "mismatch"

    (counted,) = decide_at_once(run_threads, entry(job), [GoOn(), UseRecorded(), FailJob()] * 2)
    assert queue.get(job).status == (JobStatus.DEAD if counted == "FailJob" else JobStatus.READY)
    assert entry(job).key == ("charge card" if counted == "UseRecorded" else "charge")


def test_a_decision_and_a_late_worker_at_once_leave_the_decision_and_the_evidence(
    play: Play, in_thread: Callable[..., Future[Any]]
) -> None:
    both = threading.Barrier(2, timeout=30)
    charging = threading.Event()

    def charge() -> str:
        charging.set()
        both.wait()
        return "the late answer"

    job = play(lambda context: context.step("charge", charge))
    late = in_thread(attempt, job)
    assert charging.wait(30)
    end_lease(job)
    assert attempt(job).status == JobStatus.BLOCKED
    both.wait()
    resolve(entry(job), Happened("what ada says"), **BY)
    late.result(30)
    assert attempt(job).result == "what ada says"
    assert [note.value for note in notes("evidence")] == ['"the late answer"']


def test_who_decides_after_the_late_worker_came_back_sees_what_it_brought_and_the_decision_counts(
    play: Play, in_thread: Callable[..., Future[Any]]
) -> None:
    def charge() -> str:
        end_lease(job)
        in_thread(attempt, job).result(30)
        return "the late answer"

    job = play(lambda context: context.step("charge", charge))
    assert attempt(job).status == JobStatus.BLOCKED
    (doubtful,) = in_doubt()
    assert [note.value for note in doubtful.notes.all()] == ['"the late answer"']
    resolve(doubtful, Happened("the late answer"), **BY)
    assert attempt(job).result == "the late answer"


@pytest.mark.parametrize("caught", ["in the middle", "by a crash"])
def test_who_decides_before_the_step_is_in_doubt_or_after_it_was_recorded_is_told_so(
    play: Play, in_thread: Callable[..., Future[Any]], caught: str
) -> None:
    def too_early() -> Happened:
        with pytest.raises(AlreadyResolved, match="waits for no decision: it is started"):
            resolve(entry(job), NotHappened(), **BY)
        return Happened("paid")

    def handler(context: JobContext) -> Any:
        def ask() -> Happened:
            return in_thread(too_early).result(30)  # type: ignore[no-any-return]

        return context.using(recover=ask).step("charge", lambda: ask().result)

    job = play(handler)
    if caught == "by a crash":
        leave_started(job, "charge")
    assert attempt(job).result == "paid"
    with pytest.raises(AlreadyResolved, match="waits for no decision: it is done"):
        resolve(entry(job), NotHappened(), **BY)
    assert (entry(job).status, notes("resolution")) == (EntryStatus.DONE, [])
