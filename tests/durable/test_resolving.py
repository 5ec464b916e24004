"""A human's answer: what each one does, who is told that somebody else was first, and what is kept of it."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from gnlqueue import (
    AlreadyResolved,
    FailJob,
    GoOn,
    Happened,
    JobContext,
    JobNotFound,
    NotHappened,
    PayloadError,
    UseRecorded,
    WrongStatus,
    answers,
    queue,
    resolve,
    signals,
)
from gnlqueue.answers import Resolution
from gnlqueue.durable.resolving import in_doubt
from gnlqueue.exceptions import JobBlocked
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry
from gnlqueue.queue import transitions
from tests.durable import tasks
from tests.durable.conftest import (
    Gate,
    Ledger,
    Mortals,
    attempt,
    claim,
    end_lease,
    entries,
    entry,
    jobs,
    leave_started,
    notes,
    on_sqlite,
    received,
)

Play = Callable[..., Job]
BY = {"by": "ada", "reason": "asked the bank"}


@pytest.fixture
def blocked(play: Play, ledger: Ledger) -> Job:
    """A job that charged, and got no answer."""

    def charge() -> str:
        ledger.add()
        if len(ledger) == 1:
            raise TimeoutError("no answer")
        return "second answer"

    job = attempt(play(lambda context: [context.step("charge", charge), context.step("ship", lambda: "shipped")]))
    assert job.status == JobStatus.BLOCKED
    return job


def test_happened_lets_the_step_return_the_result_it_is_told(blocked: Job, ledger: Ledger) -> None:
    resolve(entry(blocked), Happened({"id": 7}), **BY)
    done = attempt(blocked)
    assert (done.status, done.result, len(ledger)) == (JobStatus.DONE, [{"id": 7}, "shipped"], 1)


def test_not_happened_lets_the_step_run_again(blocked: Job, ledger: Ledger) -> None:
    assert resolve(entry(blocked), NotHappened(), **BY).status == EntryStatus.RELEASED
    done = attempt(blocked)
    assert (done.status, done.result, len(ledger)) == (JobStatus.DONE, ["second answer", "shipped"], 2)


def test_a_released_step_that_crashes_blocks_again(alias: str, ledger: Ledger, mortals: Mortals) -> None:
    job = tasks.one_step.enqueue("step", str(ledger.path))
    mortals.die(job, "step", "after the effect")
    assert attempt(job).status == JobStatus.BLOCKED
    resolve(entry(job), NotHappened(), **BY)
    mortals.die(job, "step", "during the effect")
    assert attempt(job).status == JobStatus.BLOCKED
    assert len(ledger) == 2


def test_fail_job_leaves_the_step_in_doubt_so_that_a_retry_asks_again(blocked: Job, ledger: Ledger) -> None:
    resolve(entry(blocked), FailJob(), **BY)
    dead = queue.get(blocked)
    assert (dead.status, dead.last_error) == (JobStatus.DEAD, "Given up by a human: asked the bank")
    assert entry(blocked).status == EntryStatus.IN_DOUBT
    assert attempt(queue.retry(dead)).status == JobStatus.BLOCKED
    resolve(entry(blocked), Happened("paid"), **BY)
    assert attempt(blocked).result == ["paid", "shipped"]
    assert len(ledger) == 1


def test_a_retry_after_cancel_asks_again(blocked: Job, ledger: Ledger) -> None:
    assert queue.cancel(blocked).status == JobStatus.CANCELLED
    assert entry(blocked).status == EntryStatus.IN_DOUBT
    assert attempt(queue.retry(blocked)).status == JobStatus.BLOCKED
    assert len(ledger) == 1


@on_sqlite
def test_a_dead_job_whose_doubt_is_settled_stays_dead(blocked: Job) -> None:
    resolve(entry(blocked), FailJob(), **BY)
    resolve(entry(blocked), Happened("paid"), **BY)
    assert queue.get(blocked).status == JobStatus.DEAD
    assert attempt(queue.retry(blocked)).result == ["paid", "shipped"]


def test_who_when_and_why_are_kept(blocked: Job) -> None:
    before = queue.get(blocked)
    resolved = resolve(entry(blocked), Happened({"id": 7}), **BY)
    (note,) = notes("resolution")
    assert (note.entry_id, note.by, note.why) == (resolved.pk, "ada", "asked the bank")
    assert note.value == "Happened(result={'id': 7})"
    assert note.at > before.last_attempted_at


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Happened(result={'id': 7})", Happened({"id": 7})),
        ("Happened(result=None)", Happened()),
        ("NotHappened()", NotHappened()),
        ("FailJob()", FailJob()),
        ("GoOn()", GoOn()),
        ("UseRecorded()", UseRecorded()),
    ],
)
def test_the_texts_of_answers_are_those_that_stand_in_rows(text: str, answer: Resolution) -> None:
    assert answers.as_text(answer) == text
    assert answers.kind_of(text) is type(answer)


@pytest.mark.parametrize("text", [None, "", "happened", "Unknown()", "NotHappened"])
def test_other_texts_are_no_answers(text: str | None) -> None:
    assert answers.kind_of(text) is None


def test_the_answer_can_be_read_where_its_result_was_cut_off(blocked: Job) -> None:
    resolve(entry(blocked), Happened("x" * 100_000), **BY)
    (note,) = notes("resolution")
    assert len(note.value or "") < 100_000
    assert answers.kind_of(note.value) is Happened


def test_the_second_of_two_is_told_who_decided_what(blocked: Job) -> None:
    resolve(entry(blocked), NotHappened(), **BY)
    with pytest.raises(AlreadyResolved, match=r"has been resolved by ada at .*: NotHappened\(\)\. asked the bank"):
        resolve(entry(blocked), Happened("paid"), by="bob", reason="I think so")
    assert len(notes("resolution")) == 1


def test_a_wrong_answer_stays_until_the_code_copes_with_it(ledger: Ledger, play: Play) -> None:
    def charge() -> dict[str, str] | None:
        ledger.add()
        raise TimeoutError

    fallback: list[dict[str, str]] = []
    job = attempt(play(lambda context: (context.step("charge", charge) or fallback[0])["id"], max_attempts=1))
    resolve(entry(job), Happened(None), **BY)
    assert attempt(job).status == JobStatus.DEAD
    with pytest.raises(AlreadyResolved, match=r"by ada at .*: Happened\(result=None\)\. asked the bank"):
        resolve(entry(job), Happened({"id": "ch_7"}), by="ada", reason="a slip before")

    fallback.append({"id": "ch_7"})
    assert attempt(queue.retry(job)).result == "ch_7"
    assert len(ledger) == 1


def test_the_signal_says_which_step_of_which_job(blocked: Job) -> None:
    with received(signals.job_resolved) as told:
        resolve(entry(blocked), NotHappened(), **BY)
    (arguments,) = told
    assert (arguments["sender"], arguments["job_id"]) == (Job, blocked.pk)
    assert arguments["entry"].status == EntryStatus.RELEASED


def test_a_job_with_two_doubts_waits_for_both(play: Play, run_threads: Callable[..., list[Any]]) -> None:
    def no_answer() -> None:
        raise TimeoutError

    def handler(context: JobContext) -> str:
        def branch(number: int) -> Any:
            try:
                return context.using(key=str(number)).step("charge", no_answer)
            except JobBlocked:
                return None

        run_threads(2, branch)
        return "done"

    job = attempt(play(handler))
    # The other branch may have been stopped before it began, and then it blocks the job the next time.
    first, *others = entries(job).filter(status=EntryStatus.IN_DOUBT)
    resolve(first, Happened(), **BY)
    assert queue.get(job).status == (JobStatus.BLOCKED if others else JobStatus.READY)
    for other in others or [attempt(job) and entries(job).get(status=EntryStatus.IN_DOUBT)]:
        resolve(other, Happened(), **BY)
    assert attempt(job).status == JobStatus.DONE


def test_a_doubt_that_is_settled_before_the_job_is_blocked_does_not_block_it(alias: str, play: Play) -> None:
    claimed = claim(play(lambda context: None, max_attempts=1))
    doubtful = RunJournalEntry.objects.using(alias).create(
        run_id=claimed.run_id,
        position=1,
        key="charge",
        key_hash="x",
        kind="step",
        status=EntryStatus.IN_DOUBT,
        lease_token=1,
        started_at=claimed.last_attempted_at,
    )
    resolve(doubtful, Happened(), **BY)
    assert transitions.block(claimed, "in_doubt", "nobody knows") == JobStatus.READY
    ready = queue.get(claimed)
    assert (ready.status, ready.attempts, ready.blocked_reason) == (JobStatus.READY, 0, None)


def test_a_job_that_blocked_on_its_last_attempt_has_one_to_go_on_with(
    alias: str, ledger: Ledger, mortals: Mortals
) -> None:
    job = tasks.one_step.using(max_attempts=1).enqueue("step", str(ledger.path))
    mortals.die(job, "step", "after the effect")
    assert attempt(job).attempts == 1  # the claim that only settled is given back
    resolve(entry(job), Happened("paid"), **BY)
    done = attempt(job)
    assert (done.status, done.result, done.attempts) == (JobStatus.DONE, "paid", 1)


def test_recover_settles_a_crash_on_the_last_attempt_and_nothing_new_begins(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> None:
        context.using(recover=lambda: Happened("paid")).step("charge", lambda: None)
        context.step("ship", ledger.add)

    job = play(handler, max_attempts=1)
    leave_started(job, "charge")
    dead = attempt(job)
    assert (dead.status, entry(job).status) == (JobStatus.DEAD, EntryStatus.DONE)
    assert "attempts are used up" in (dead.last_error or "")
    assert len(ledger) == 0
    assert attempt(queue.retry(job)).status == JobStatus.DONE
    assert len(ledger) == 1


def test_a_job_that_kills_its_worker_before_it_comes_to_the_doubt_waits_for_a_human(play: Play) -> None:
    """Not for ever in turn: one claim is there to settle it, no more."""
    job = play(lambda context: None, max_attempts=1)
    leave_started(job, "charge")
    claim(job)
    end_lease(job)
    blocked = queue.get(job)
    assert (blocked.status, blocked.blocked_reason) == (JobStatus.BLOCKED, "in_doubt")
    assert [each.pk for each in in_doubt()] == [entry(job).pk]
    resolve(entry(job), Happened(), **BY)
    assert queue.get(job).status == JobStatus.READY


def test_a_failure_before_the_doubtful_step_does_not_end_the_job_with_an_open_question(play: Play) -> None:
    def handler(context: JobContext) -> None:
        raise OSError("it does not get that far")

    job = play(handler, max_attempts=2)
    leave_started(job, "charge")
    assert attempt(job).status == JobStatus.BLOCKED
    assert entry(job).status == EntryStatus.IN_DOUBT


def test_a_late_worker_does_not_undo_a_decision(
    play: Play, ledger: Ledger, gate: Gate, in_thread: Callable[..., Future[Any]]
) -> None:
    def handler(context: JobContext) -> Any:
        return context.step("charge", lambda: gate.wait() or ledger.add("the late answer"))

    job = play(handler)
    late = in_thread(attempt, job)
    gate.until_reached()
    end_lease(job)
    assert attempt(job).status == JobStatus.BLOCKED
    resolve(entry(job), Happened("what ada says"), **BY)
    gate.open()
    late.result(30)
    assert attempt(job).result == "what ada says"
    assert entry(job).status == EntryStatus.DONE
    (note,) = notes("evidence")
    assert note.value == '"the late answer"'
    assert len(ledger) == 1


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("answer", [GoOn(), UseRecorded()], ids=repr)
def test_an_answer_about_a_mismatch_is_no_answer_about_a_doubt(blocked: Job, answer: Any, by_id: bool) -> None:
    fits = r"Answers that fit: Happened\(result\) .* or NotHappened\(\) .* or FailJob\(\) \(--fail-job\)\.$"
    with pytest.raises(ValueError, match=rf"'charge' of '{blocked.run_id}' is in doubt, which is no mismatch\. {fits}"):
        resolve(entry(blocked).pk if by_id else entry(blocked), answer, **BY)
    assert queue.get(blocked).status == JobStatus.BLOCKED
    assert (entry(blocked).decisions, notes("resolution")) == (0, [])


def test_an_answer_that_does_not_fit_what_somebody_has_decided_since_is_told_that(blocked: Job) -> None:
    seen = entry(blocked)
    resolve(seen, FailJob(), **BY)
    queue.retry(blocked)
    assert attempt(blocked).status == JobStatus.BLOCKED
    with pytest.raises(AlreadyResolved, match=r"has been resolved by ada at .* FailJob\(\)"):
        resolve(seen, GoOn(), **BY)


@pytest.mark.parametrize("ended", ["cancelled", "dead"])
def test_a_job_that_is_not_blocked_can_not_be_failed(blocked: Job, ended: str) -> None:
    if ended == "dead":
        resolve(entry(blocked), FailJob(), **BY)
    else:
        queue.cancel(blocked)
    before = entry(blocked)
    with pytest.raises(WrongStatus, match=rf"^Job {blocked.pk} is {ended}, not blocked: there is nothing to fail\.$"):
        resolve(before, FailJob(), **BY)
    assert entry(blocked).decisions == before.decisions == len(notes("resolution"))


def test_a_row_that_a_worker_of_the_version_before_made_can_be_decided_about(alias: str, blocked: Job) -> None:
    """In a rolling deploy: it does not name the column that counts the decisions."""
    table = RunJournalEntry._meta.db_table
    columns = {field.column for field in RunJournalEntry._meta.concrete_fields} - {"id", "key_hash", "decisions"}
    known = ", ".join(map(connections[alias].ops.quote_name, columns))
    with connections[alias].cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({known}, key_hash) SELECT {known}, 'another' FROM {table}")
    made = entries().get(key_hash="another")
    assert made.decisions == 0
    assert resolve(made, Happened("paid"), **BY).decisions == 1


def test_what_makes_no_sense_is_refused_and_changes_nothing(alias: str, blocked: Job) -> None:
    charge = entry(blocked)
    with pytest.raises(ValueError, match="Say who decides"):
        resolve(charge, NotHappened(), by="", reason="sure")
    with pytest.raises(ValueError, match="Say who decides"):
        resolve(charge, NotHappened(), by="ada", reason="")
    with pytest.raises(ValueError, match="is not an answer"):
        resolve(charge, "yes", **BY)  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="cannot carry"):
        resolve(charge, Happened({1}), **BY)
    with pytest.raises(JobNotFound, match="no journal entry"):
        resolve(charge.pk + 1000, NotHappened(), **BY)
    assert (entry(blocked).status, notes("resolution")) == (EntryStatus.IN_DOUBT, [])


def test_prune_keeps_what_waits_for_a_decision(blocked: Job) -> None:
    queue.cancel(blocked)
    assert queue.prune(timedelta(0), now=blocked.enqueued_at + timedelta(days=1)) == 0
    resolve(entry(blocked), Happened(), **BY)
    assert queue.prune(timedelta(0), now=blocked.enqueued_at + timedelta(days=1)) == 1
    assert not entries().exists()
    assert notes("resolution") == []
    assert not jobs().exists()
