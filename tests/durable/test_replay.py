"""What a resumed run gets from its journal."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from gnlqueue import JobContext, queue
from gnlqueue.durable.context import JobContext as Context
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry
from tests.app.models import Note
from tests.durable import tasks
from tests.durable.conftest import (
    KINDS,
    PAST,
    Ledger,
    attempt,
    claim,
    crashing,
    end_lease,
    entries,
    entry,
    jobs,
    notes,
    on_sqlite,
)

Play = Callable[..., Job]


# --- results ---------------------------------------------------------------------------------------------------------

RESULTS = [
    None,
    False,
    0,
    "",
    [],
    {},
    -0.0,
    1e16,
    0.1,
    2**64 - 1,
    "ü €\u2028 \U0001f600 'quoted\"",
    {"b": 1, "a": {"z": [None, True]}},
    "x" * 1_000_000,
]


@pytest.mark.parametrize("kind", ["step", "idempotent_step", "atomic_step"])
def test_results_come_back_as_the_first_run_saw_them(play: Play, kind: str) -> None:
    seen: list[list[Any]] = []

    def handler(context: JobContext) -> None:
        step = getattr(context, kind)
        seen.append([step("give", lambda value=value: value) for value in RESULTS])
        if len(seen) == 1:
            raise OSError("crash")

    job = play(handler)
    attempt(job)
    assert attempt(job).status == JobStatus.DONE
    assert [repr(value) for value in seen[0]] == [repr(value) for value in RESULTS]
    assert [repr(value) for value in seen[1]] == [repr(value) for value in RESULTS]


def test_the_first_run_sees_what_json_makes_of_a_result_too(play: Play) -> None:
    job = play(lambda context: isinstance(context.step("give", lambda: (1, 2)), list))
    assert attempt(job).result is True


@pytest.mark.parametrize("result", [{1, 2}, float("nan"), "\0", "\ud800", b"x"], ids=lambda value: ascii(value)[:9])
def test_a_result_that_cannot_be_stored_is_in_doubt_with_evidence(play: Play, result: Any) -> None:
    job = play(lambda context: context.step("give", lambda: result))
    assert attempt(job).status == JobStatus.BLOCKED
    (note,) = notes()
    assert note.entry_id == entry(job).pk
    assert (note.value or "")[:4] == repr(result)[:4]
    assert len(note.value or "") <= 20_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_over_the_limit_is_not_lost_and_not_stored(alias: str, play: Play, ledger: Ledger, kind: str) -> None:
    """A `step` is in doubt, with the beginning and the end of it as evidence; the others fail for good."""

    def too_much() -> str:
        Note.objects.using(alias).create(text="effect")
        return str(ledger.add("x" * 2**20))

    job = play(lambda context: getattr(context, kind)("give", too_much))
    ended = attempt(job)
    assert (len(ledger), Note.objects.using(alias).count()) == (1, kind != "atomic_step")
    assert entry(job).result is None
    if kind == "step":
        assert (ended.status, entry(job).status) == (JobStatus.BLOCKED, EntryStatus.IN_DOUBT)
        (note,) = notes()
        told = note.why
        assert "characters cut" in (note.value or "")
        assert 10_000 < len(note.value or "") <= 20_000
    else:
        assert (ended.status, entry(job).status) == (JobStatus.DEAD, EntryStatus.FAILED)
        told = ended.last_error or ""
        assert notes() == []
        assert attempt(queue.retry(job)).status == JobStatus.DEAD
        assert len(ledger) == 1
    assert "the limit is 1,048,576 (GNLQUEUE['MAX_PAYLOAD_BYTES'])" in told


@on_sqlite
def test_a_result_that_cannot_even_be_shown_is_in_doubt(play: Play) -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError("go away")

    job = play(lambda context: context.step("give", Shy))
    assert attempt(job).status == JobStatus.BLOCKED
    assert "Shy" in (notes()[0].value or "")


# --- keys, times, arguments ------------------------------------------------------------------------------------------


def test_repeated_names_are_numbered(play: Play) -> None:
    def handler(context: JobContext) -> list[Any]:
        steps = context.using(key="EU")
        return [
            *(context.step("give", lambda number=number: number) for number in range(3)),
            steps.step("give", lambda: "keyed"),
        ]

    job = play(handler)
    assert attempt(job).result == [0, 1, 2, "keyed"]
    assert [each.key for each in entries(job)] == ["give", "give#2", "give#3", "give[EU]"]


def test_keys_that_a_collation_holds_for_one_are_two(play: Play) -> None:
    def handler(context: JobContext) -> list[Any]:
        return [context.step(name, lambda name=name: name) for name in ("receipt:ab", "receipt:AB", "receipt:ab ")]

    assert attempt(play(handler)).result == ["receipt:ab", "receipt:AB", "receipt:ab "]


@on_sqlite
@pytest.mark.parametrize("name", ["", "a#2", "a[b]", "a\0", "\ud800", "x" * 201, 3])
def test_a_name_that_would_be_ambiguous_is_refused(play: Play, name: Any) -> None:
    job = play(lambda context: context.step(name, lambda: None), max_attempts=1)
    assert "A step's name must be" in (attempt(job).last_error or "")
    assert not entries(job).exists()


def test_arguments_that_cannot_be_compared_are_refused_or_closed_over(play: Play) -> None:
    def handler(context: JobContext) -> Any:
        with pytest.raises(Exception, match="Or close over the value"):
            context.step("give", len, {1, 2})
        return context.step("give it", lambda: len({1, 2}))

    assert attempt(play(handler)).result == 2


def test_the_effect_key_is_the_same_in_every_attempt_and_another_for_every_step_and_job(play: Play) -> None:
    seen: list[tuple[str, ...]] = []

    def handler(context: JobContext) -> None:
        passed = context.using(pass_key_as="idempotency_key").step("charge", lambda *, idempotency_key: idempotency_key)
        keyed = context.using(key="EU", pass_key_as="it").step("charge", lambda it: it)
        seen.append((passed, context.effect_key("charge"), keyed, context.effect_key("charge", "EU")))
        if len(seen) == 1:
            raise OSError("crash")

    job = play(handler)
    attempt(job)
    attempt(job)
    attempt(play(handler))
    first, second, other = seen
    assert first == second
    assert first[0] == first[1] != first[2] == first[3]
    assert not set(first) & set(other)
    assert all(len(key) < 60 for key in first)


def test_now_is_the_same_time_on_replay(play: Play) -> None:
    seen: list[datetime] = []

    def handler(context: JobContext) -> None:
        seen.extend([context.now(), context.now()])
        if len(seen) == 2:
            raise OSError("crash")

    job = play(handler)
    attempt(job)
    assert attempt(job).status == JobStatus.DONE
    assert seen[:2] == seen[2:]
    assert seen[0] <= seen[1]
    assert abs(seen[0] - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_sleep_holds_no_worker_counts_no_attempt_and_comes_back_to_its_line(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> str:
        context.step("before", ledger.add)
        context.sleep("cool down", timedelta(days=1))
        context.step("after", ledger.add)
        return "awake"

    job = play(handler, max_attempts=1)
    asleep = attempt(job)
    assert (asleep.status, asleep.attempts, asleep.lease_expires_at) == (JobStatus.SCHEDULED, 0, None)
    assert timedelta(hours=23) < asleep.run_at - datetime.now(UTC) < timedelta(hours=25)
    assert attempt(job).status == JobStatus.SCHEDULED  # somebody woke it too early
    assert queue.get(job).run_at == asleep.run_at
    entries(job).filter(key="cool down").update(result=f'"{PAST.isoformat()}"')
    done = attempt(job)
    assert (done.status, done.result, len(ledger)) == (JobStatus.DONE, "awake", 2)


@on_sqlite
@pytest.mark.parametrize("clause", [Exception, BaseException])
def test_no_except_clause_keeps_a_run_awake(play: Play, clause: type[BaseException]) -> None:
    def handler(context: JobContext) -> str:
        with contextlib.suppress(clause):
            context.sleep("cool down", 3600)
        return "awake"

    assert attempt(play(handler)).status == JobStatus.SCHEDULED


@on_sqlite
def test_many_sleeps_that_are_over_ask_for_the_time_once(alias: str, play: Play) -> None:
    def handler(context: JobContext) -> None:
        for _ in range(20):
            context.sleep("cool down", 0)

    job = play(crashing(handler))
    attempt(job)
    with CaptureQueriesContext(connections[alias]) as queries:
        attempt(job)
    clock = [each for each in queries if " FROM " not in each["sql"] and each["sql"].startswith("SELECT")]
    assert len(clock) <= 1


def test_a_run_of_many_steps_reads_its_journal_once(alias: str, play: Play) -> None:
    steps = 10_000 if alias == "default" else 2_000  # to insert them is what takes the time

    def handler(context: JobContext) -> int:
        return sum(context.step("add", lambda: 1) for _ in range(steps))

    job = play(handler)
    claimed = claim(job)
    RunJournalEntry.objects.using(alias).bulk_create(
        [
            RunJournalEntry(
                run_id=claimed.run_id,
                position=number,
                key="add" if number == 1 else f"add#{number}",
                key_hash=f"{claimed.run_id} {number}",
                kind="step",
                status=EntryStatus.DONE,
                result="1",
                lease_token=1,
                started_at=PAST,
            )
            for number in range(1, steps)
        ],
        batch_size=1000,
    )
    end_lease(job)
    with CaptureQueriesContext(connections[alias]) as queries:
        done = attempt(job)
    assert (done.status, done.result) == (JobStatus.DONE, steps)
    assert len(queries) < 40
    assert sum("gnlqueue_runjournalentry" in each["sql"] and "SELECT" in each["sql"] for each in queries) == 1


# --- journals of others ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clause", [ZeroDivisionError, BaseException])
def test_a_job_that_finds_the_journal_of_a_former_one_is_refused(
    play: Play, ledger: Ledger, clause: type[BaseException]
) -> None:
    def handler(context: JobContext) -> Any:
        try:
            return context.step("charge", ledger.add, "paid")
        except clause:
            return "never mind"

    old = play(crashing(handler))
    attempt(old)
    jobs().filter(pk=old.pk).update(lease_token=0, status=JobStatus.READY)  # as if its id were given out again
    tasks.handlers["play"] = handler
    dead = attempt(old)
    assert (dead.status, len(ledger)) == (JobStatus.DEAD, 1)
    assert "its id was used before" in (dead.last_error or "")


def test_prune_deletes_job_and_journal_together(play: Play) -> None:
    def handler(context: JobContext) -> None:
        context.step("charge", lambda: None)
        context.step("ship", lambda: None)

    job = attempt(play(handler))
    other = attempt(play(crashing(handler)))
    assert queue.prune(timedelta(0), now=job.finished_at + timedelta(days=1)) == 1
    assert not entries(job).exists()
    assert entries(other).count() == 2


def test_a_job_enqueued_again_has_an_empty_journal_and_says_what_will_repeat(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> None:
        context.now()
        context.sleep("cool down", 0)
        context.step("charge", ledger.add)

    job = attempt(play(handler))
    again, repeats = queue.enqueue_again(job)
    assert repeats == ["charge"]
    assert not entries(again).exists()
    attempt(again)
    assert len(ledger) == 2


def test_a_retry_of_a_dead_job_repeats_no_recorded_effect(play: Play, ledger: Ledger) -> None:
    def handler(context: JobContext) -> None:
        for kind in ("step", "idempotent_step", "atomic_step"):
            getattr(context, kind)("charge", ledger.add)
        if context.claimed.lease_token < 3:
            raise OSError("crash")

    job = play(handler, max_attempts=1)
    assert attempt(job).status == JobStatus.DEAD
    assert attempt(queue.retry(job)).status == JobStatus.DEAD
    assert attempt(queue.retry(job)).status == JobStatus.DONE
    assert len(ledger) == 3


@on_sqlite
def test_the_context_says_what_it_is(play: Play) -> None:
    def handler(context: JobContext) -> list[Any]:
        assert isinstance(context, Context)
        return [context.job_id, context.run_id, context.attempt, context.job.task_name]

    job = play(handler)
    assert attempt(job).result == [job.pk, f"job:{job.pk}", 1, "tests.durable.tasks.play"]
