"""Several who decide about one step: people at once, or a person and a worker that comes back."""

import io
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from gnlqueue import (
    AlreadyResolved,
    FailJob,
    GoOn,
    Happened,
    JobContext,
    NotHappened,
    UseRecorded,
    dialects,
    queue,
    resolve,
)
from gnlqueue.durable.resolving import in_doubt
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry
from tests.durable.conftest import (
    attempt,
    crashing,
    end_lease,
    entries,
    entry,
    give,
    leave_started,
    notes,
    now_do,
    on_sqlite,
)

Play = Callable[..., Job]
BY = {"by": "ada", "reason": "asked the bank"}
OF_A_DOUBT = [Happened("paid"), NotHappened(), FailJob()]
OF_A_MISMATCH = [GoOn(), UseRecorded(), FailJob()]


@pytest.fixture
def doubtful(play: Play) -> Job:
    """A job that charged, and got no answer."""
    return in_a_doubt(play)


def in_a_doubt(play: Play) -> Job:
    def charge() -> None:
        raise TimeoutError("no answer")

    job = attempt(play(lambda context: context.step("charge", charge)))
    assert job.status == JobStatus.BLOCKED
    return job


def in_a_mismatch(play: Play) -> Job:
    job = play(crashing(lambda context: context.step("charge", give("paid"))))
    attempt(job)
    now_do(lambda context: context.step("charge card", give("paid twice")))
    assert attempt(job).blocked_reason == "mismatch"
    return job


def decide_at_once(run_threads: Callable[..., list[Any]], entry: RunJournalEntry, answers: list[Any]) -> str:
    """Let several people decide, every other one by the entry's id; the one answer that counted."""

    def decide(number: int) -> str:
        try:
            resolve(entry if number % 2 else entry.pk, answers[number], by=f"person {number}", reason="sure")
        except AlreadyResolved as told:
            return "told" if "has been resolved by person" in str(told) else str(told)
        return type(answers[number]).__name__

    (counted,) = [each for each in run_threads(len(answers), decide) if each != "told"]
    (note,) = notes("resolution")
    assert note.value.split("(")[0] == counted
    return counted


def tell(name: str, seen: RunJournalEntry | int, answer: Any) -> None:
    """Let somebody decide who is told that `name` was first; that changes nothing."""

    def everything() -> Any:
        return queue.get(row.job_id or 0), list(entries().values()), notes("resolution")

    row = entries().get(pk=seen if isinstance(seen, int) else seen.pk)
    before = everything()
    with pytest.raises(AlreadyResolved, match=f"resolved by {name} at .* UTC: .*") as told:
        resolve(seen, answer, by="bob", reason="I think so")
    assert everything() == before
    assert ("decide" in str(told.value)) == (row.status == EntryStatus.IN_DOUBT)


def test_of_several_people_who_settle_a_doubt_at_once_one_wins(
    doubtful: Job, run_threads: Callable[..., list[Any]]
) -> None:
    counted = decide_at_once(run_threads, entry(doubtful), [Happened("paid"), NotHappened()] * 3)
    assert entry(doubtful).status == (EntryStatus.DONE if counted == "Happened" else EntryStatus.RELEASED)
    assert queue.get(doubtful).status == JobStatus.READY


def test_of_several_people_who_fail_the_job_at_once_one_wins(
    doubtful: Job, run_threads: Callable[..., list[Any]]
) -> None:
    assert decide_at_once(run_threads, entry(doubtful), [FailJob()] * 4) == "FailJob"
    assert (queue.get(doubtful).status, entry(doubtful).status) == (JobStatus.DEAD, EntryStatus.IN_DOUBT)


def test_of_several_people_some_of_whom_fail_the_job_at_once_one_wins(
    play: Play, run_threads: Callable[..., list[Any]]
) -> None:
    """To fail the job leaves the doubt; those who settle that have not seen that the job is dead."""
    outcomes = {
        "FailJob": (JobStatus.DEAD, EntryStatus.IN_DOUBT),
        "Happened": (JobStatus.READY, EntryStatus.DONE),
        "NotHappened": (JobStatus.READY, EntryStatus.RELEASED),
    }
    job = in_a_doubt(play)
    answers = [FailJob(), FailJob(), Happened("paid"), NotHappened(), NotHappened(), Happened("paid")]
    counted = decide_at_once(run_threads, entry(job), answers)
    assert (queue.get(job).status, entry(job).status) == outcomes[counted]


def test_of_several_people_who_decide_about_a_mismatch_at_once_one_wins(
    play: Play, run_threads: Callable[..., list[Any]]
) -> None:
    job = in_a_mismatch(play)
    counted = decide_at_once(run_threads, entry(job), [GoOn(), GoOn(), UseRecorded(), UseRecorded(), FailJob()])
    assert queue.get(job).status == (JobStatus.DEAD if counted == "FailJob" else JobStatus.READY)
    assert entry(job).key == ("charge card" if counted == "UseRecorded" else "charge")


@pytest.mark.parametrize("answers", [OF_A_DOUBT, OF_A_MISMATCH], ids=["doubt", "mismatch"])
def test_who_decides_on_what_was_read_before_a_decision_is_told(play: Play, answers: list[Any]) -> None:
    """All ordered pairs; and one who names the entry by its id, where the job has not come to ask again."""
    for first, second in itertools.product(answers, repeat=2):
        job = in_a_doubt(play) if answers is OF_A_DOUBT else in_a_mismatch(play)
        seen = entry(job)
        resolve(entry(job), first, **BY)
        tell("ada", seen, second)
        tell("ada", seen.pk, second)
        queue.cancel(job)  # out of the next one's way


def test_who_waits_for_a_decision_that_is_not_committed_yet_is_told(
    alias: str, doubtful: Job, in_thread: Callable[..., Future[Any]]
) -> None:
    seen = entry(doubtful)
    others: list[RunJournalEntry | int] = [seen, seen.pk]
    with dialects.of(alias).write_transaction(connections[alias]), transaction.atomic(using=alias):
        resolve(seen, FailJob(), **BY)
        decided = [in_thread(resolve, each, NotHappened(), by="bob", reason="I think so") for each in others]
    for each in decided:
        with pytest.raises(AlreadyResolved, match="resolved by ada"):
            each.result(30)
    assert entry(doubtful).status == EntryStatus.IN_DOUBT


def test_who_looks_after_somebody_failed_the_job_may_decide(play: Play) -> None:
    for answer in (Happened("paid"), NotHappened()):
        job = in_a_doubt(play)
        resolve(entry(job), FailJob(), **BY)
        resolve(entry(job), answer, **BY)
        assert queue.get(job).status == JobStatus.DEAD


@pytest.mark.parametrize("by_id", [False, True], ids=["entry", "id"])
def test_who_is_asked_again_by_a_retried_job_may_decide_and_who_looked_before_is_told(play: Play, by_id: bool) -> None:
    for answer in OF_A_DOUBT:
        job = in_a_doubt(play)
        before = entry(job)
        resolve(entry(job), FailJob(), **BY)
        queue.retry(job)
        tell("ada", before.pk, answer)  # it is ready, and asks nobody yet
        assert attempt(job).status == JobStatus.BLOCKED
        tell("ada", before, answer)
        resolve(before.pk if by_id else entry(job), answer, **BY)
        assert queue.get(job).status == (JobStatus.DEAD if answer == FailJob() else JobStatus.READY)
        queue.cancel(job)


@on_sqlite
def test_who_decides_in_a_shell_is_told_that_the_job_was_failed_until_it_asks_again(doubtful: Job) -> None:
    def decide() -> None:
        call_command(
            "gnlqueue", "resolve", str(entry(doubtful).pk), "--not-happened", "--reason", "sure", stdout=io.StringIO()
        )

    resolve(entry(doubtful), FailJob(), **BY)
    with pytest.raises(CommandError, match=r"resolved by ada at .* UTC: FailJob\(\)\. asked the bank\. Retry the job"):
        decide()
    attempt(queue.retry(doubtful))
    decide()
    assert entry(doubtful).status == EntryStatus.RELEASED


@on_sqlite
@pytest.mark.parametrize("first", [FailJob(), GoOn()], ids=repr)
def test_who_looked_at_an_earlier_mismatch_is_told(play: Play, first: Any) -> None:
    """The code may ask for something else by now, which would be given the recorded result."""
    job = in_a_mismatch(play)
    before = entry(job)
    resolve(entry(job), first, **BY)
    now_do(lambda context: context.step("refund", give("paid back")))
    ended = attempt(queue.retry(job) if first == FailJob() else job)
    assert ended.blocked_reason == "mismatch"
    for answer in OF_A_MISMATCH:
        tell("ada", before, answer)
    resolve(entry(job), UseRecorded(), **BY)
    assert entry(job).key == "refund"


@on_sqlite
def test_who_looked_at_an_earlier_doubt_is_told(doubtful: Job) -> None:
    before = entry(doubtful)
    resolve(entry(doubtful), NotHappened(), **BY)
    assert attempt(doubtful).status == JobStatus.BLOCKED
    tell("ada", before, NotHappened())
    resolve(entry(doubtful), NotHappened(), **BY)


@on_sqlite
@pytest.mark.parametrize("failed", [False, True], ids=["", "failed before"])
def test_a_decision_about_a_step_of_a_job_that_somebody_cancelled_counts(doubtful: Job, failed: bool) -> None:
    """That is no decision about the step, and nobody will ask again: not even where somebody had failed it before."""
    if failed:
        resolve(entry(doubtful), FailJob(), **BY)
    queue.cancel(doubtful)
    resolve(entry(doubtful).pk, Happened("paid"), **BY)
    assert entry(doubtful).status == EntryStatus.DONE


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
        with pytest.raises(AlreadyResolved, match="is not waiting for a decision: it is started"):
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
    with pytest.raises(AlreadyResolved, match="is not waiting for a decision: it is done"):
        resolve(entry(job), NotHappened(), **BY)
    assert (entry(job).status, notes("resolution")) == (EntryStatus.DONE, [])
