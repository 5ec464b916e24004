"""The verbs by which a holder ends its attempt."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

import gnlqueue
from gnlqueue import LeaseLost, PayloadError, queue, signals
from gnlqueue.models import Job, JobAttempt, JobStatus, RunJournalEntry
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.claiming import rescue
from gnlqueue.queue.transitions import (
    complete_many,
    confirm_cancel,
    postpone_unknown,
    put_off,
    release_many,
    release_pairs,
)
from tests.queue.conftest import NOON, after, claimed, crash, row
from tests.queue.tasks import charge, poll_gateway

# complete


def test_complete_stores_the_result(alias: str) -> None:
    job = claimed()
    queue.complete(job, {"receipt": [1, None, "ü"]}, now=after(seconds=5))
    stored = queue.get(job)
    assert (stored.status, stored.result) == (JobStatus.DONE, {"receipt": [1, None, "ü"]})
    assert stored.finished_at == after(seconds=5)
    assert stored.lease_expires_at is None


def test_complete_forgets_the_last_error(alias: str) -> None:
    queue.fail(claimed(), "no use", after=0, now=NOON)
    job = queue.claim(worker_id="w1", now=after(seconds=1))
    assert job is not None
    queue.complete(job)
    assert row(job)["last_error"] is None


@pytest.mark.parametrize("falsy", [0, False, "", [], {}])
def test_a_falsy_result_is_a_result(alias: str, falsy: Any) -> None:
    job = claimed()
    queue.complete(job, falsy)
    assert queue.get(job).result == falsy


def test_a_result_that_json_cannot_carry_is_refused_with_its_path(alias: str) -> None:
    job = claimed()
    with pytest.raises(PayloadError, match=r"result\['at'\] is a datetime.datetime"):
        queue.complete(job, {"at": NOON})
    assert row(job)["status"] == JobStatus.IN_PROGRESS


def test_a_result_over_the_limit_is_refused(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "MAX_PAYLOAD_BYTES": 10}
    with pytest.raises(PayloadError, match="result: 12 bytes as JSON, and the limit is 10"):
        queue.complete(claimed(), "0123456789")


def test_completing_twice_under_one_token_is_completing_once(alias: str) -> None:
    job = claimed()
    queue.complete(job, "first", now=NOON)
    queue.complete(job, "second", now=after(days=1))  # as after a commit whose acknowledgement was lost
    assert (queue.get(job).result, queue.get(job).finished_at) == ("first", NOON)


def test_complete_many_returns_those_that_were_not_held(alias: str) -> None:
    jobs = [claimed(), claimed(), claimed(), claimed()]
    queue.release(jobs[1])
    queue.fail(jobs[3], "x", final=True)

    lost = complete_many([(jobs[0], None), (jobs[1], None), (jobs[2], 42), (jobs[3], 43)])

    assert lost == [jobs[1], jobs[3]]
    assert [row(job)["status"] for job in jobs] == ["done", "ready", "done", "dead"]
    assert queue.get(jobs[2]).result == 42


# fail


def test_a_failed_job_is_scheduled_again_with_growing_delay(alias: str) -> None:
    job: ClaimedJob | None = claimed(max_attempts=10)
    now, delays = NOON, []
    for _ in range(9):
        assert job is not None
        failed = queue.fail(job, "no use", now=now)
        assert failed.status == JobStatus.SCHEDULED
        delays.append((failed.run_at - now).total_seconds())
        now = failed.run_at
        job = queue.claim(worker_id="w1", now=now)
    full = [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(0.9 * longest <= delay <= longest for delay, longest in zip(delays, full, strict=True)), delays


def test_a_job_is_dead_when_its_attempts_are_used_up(alias: str) -> None:
    job = claimed(max_attempts=2)
    assert queue.fail(job, "one", after=0, now=NOON).status == JobStatus.SCHEDULED
    job = queue.claim(worker_id="w1", now=after(seconds=1))
    assert job is not None
    failed = queue.fail(job, "two", now=after(seconds=2))
    assert (failed.status, failed.finished_at, failed.last_error) == (JobStatus.DEAD, after(seconds=2), "two")


def test_a_final_failure_leaves_no_attempt(alias: str) -> None:
    assert queue.fail(claimed(max_attempts=9), "no use", final=True).status == JobStatus.DEAD


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_after_says_when_a_failed_job_comes_back(alias: str, delay: Any) -> None:
    assert queue.fail(claimed(), "x", after=delay, now=NOON).run_at == after(seconds=90)


def test_the_caller_s_backoff_comes_before_the_job_s(alias: str) -> None:
    mine, the_job_s = (gnlqueue.Backoff(base=base, jitter=0) for base in (7, 5))
    assert queue.fail(claimed(backoff=the_job_s), "x", backoff=mine, now=NOON).run_at == after(seconds=7)


def test_the_job_s_backoff_travels_with_it(alias: str) -> None:
    job = claimed(backoff=gnlqueue.Backoff(base=5, jitter=0))
    assert queue.fail(job, "x", now=NOON).run_at == after(seconds=5)


def test_without_one_of_its_own_a_job_has_its_task_s_backoff(alias: str) -> None:
    poll_gateway.enqueue()
    job = queue.claim(worker_id="w1")
    assert job is not None
    assert queue.fail(job, "x", now=NOON).run_at == after(seconds=30)


def test_without_a_number_of_its_own_a_job_has_its_task_s_attempts(alias: str) -> None:
    job = charge.enqueue(1)
    assert row(job)["max_attempts"] is None
    for _ in range(3):
        held = queue.claim("billing", worker_id="w1")
        assert held is not None
        failed = queue.fail(held, "x", after=0)
    assert (failed.status, failed.attempts) == (JobStatus.DEAD, 3)


def test_without_any_number_the_setting_s_attempts_hold(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "MAX_ATTEMPTS": 1}
    assert queue.fail(claimed(max_attempts=None), "x").status == JobStatus.DEAD


def test_a_failing_job_that_somebody_asked_to_cancel_is_cancelled(alias: str) -> None:
    job = claimed()
    queue.cancel(job, now=NOON)
    failed = queue.fail(job, "x", now=after(seconds=5))
    assert (failed.status, failed.finished_at) == (JobStatus.CANCELLED, after(seconds=5))


def test_a_failure_keeps_the_exception_with_its_traceback(alias: str) -> None:
    job = claimed()
    try:
        raise LookupError("no such order")
    except LookupError as error:
        failed = queue.fail(job, error, now=after(seconds=5))
    attempt = JobAttempt.objects.using(alias).get()
    assert failed.last_error == "LookupError: no such order"
    assert attempt.exception_class == "builtins.LookupError"
    assert 'raise LookupError("no such order")' in attempt.error
    assert (attempt.number, attempt.lease_token, attempt.worker_id) == (1, 1, "w1")
    assert (attempt.started_at, attempt.ended_at) == (NOON, after(seconds=5))


@pytest.mark.parametrize("reason", ["a\0b \ud800 ä", ValueError("a\0b \ud800 ä")])
def test_nul_and_lone_surrogates_in_an_error_are_recorded_as_escapes(alias: str, reason: Any) -> None:
    failed = queue.fail(claimed(), reason)
    assert failed.last_error is not None
    assert failed.last_error.endswith(r"a\x00b \ud800 ä")
    assert r"a\x00b \ud800 ä" in JobAttempt.objects.using(alias).get().error


def test_an_exception_that_cannot_be_shown_is_recorded_all_the_same(alias: str) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    failed = queue.fail(claimed(), Mute())
    assert failed.status == JobStatus.SCHEDULED
    assert "Mute" in (failed.last_error or "")


def test_a_long_error_is_cut_in_the_middle(alias: str) -> None:
    failed = queue.fail(claimed(), ValueError("a" * 100_000 + " the end"))
    assert failed.last_error is not None
    assert len(failed.last_error) <= 2_000
    assert failed.last_error.startswith("ValueError: a")
    assert failed.last_error.endswith("the end")
    assert len(JobAttempt.objects.using(alias).get().error) <= 20_000


@pytest.mark.parametrize("reason", ["no use", OSError("no paper")])
@pytest.mark.parametrize("final", [False, True])
def test_a_failure_that_is_recorded_already_counts_as_recorded(alias: str, reason: Any, final: bool) -> None:
    job = claimed()
    queue.fail(job, reason, final=final, now=NOON)
    before = row(job)

    again = queue.fail(job, reason, final=final, now=after(days=1))  # as after a commit whose answer was lost

    assert again.status == before["status"]
    assert row(job) == before
    assert JobAttempt.objects.using(alias).count() == 1
    with pytest.raises(LeaseLost):
        queue.fail(job, "another reason", final=final)


# release, suspend, block, confirm_cancel, postpone_unknown


def test_release_gives_the_attempt_back(alias: str) -> None:
    job = claimed()
    queue.release(job)
    assert (row(job)["status"], row(job)["attempts"], row(job)["lease_token"]) == (JobStatus.READY, 0, 1)
    assert row(job)["lease_expires_at"] is None


def test_a_released_job_is_ready_at_once(alias: str) -> None:
    job = claimed()
    queue.release(job)
    again = queue.claim(worker_id="w2", now=NOON)
    assert again is not None
    assert (again.id, again.attempts, again.lease_token) == (job.id, 1, 2)


def test_a_released_job_that_somebody_asked_to_cancel_is_cancelled(alias: str) -> None:
    job = claimed()
    queue.cancel(job)
    queue.release(job, now=NOON)
    assert (row(job)["status"], row(job)["finished_at"]) == (JobStatus.CANCELLED, NOON)


def test_release_many_tells_how_many_were_not_held(alias: str) -> None:
    jobs = [claimed(), claimed()]
    queue.complete(jobs[0])
    assert release_many(jobs) == 1
    assert [row(job)["status"] for job in jobs] == [JobStatus.DONE, JobStatus.READY]


@pytest.mark.parametrize("until", [after(hours=3), timedelta(hours=3)])
def test_suspend_puts_a_job_to_sleep_and_gives_the_attempt_back(alias: str, until: Any) -> None:
    job = claimed()
    queue.suspend(job, until, now=NOON)
    assert (row(job)["status"], row(job)["attempts"], row(job)["run_at"]) == ("scheduled", 0, after(hours=3))
    assert queue.claim(worker_id="w1", now=after(hours=2)) is None
    assert queue.claim(worker_id="w1", now=after(hours=3)) is not None


@pytest.mark.parametrize(
    ("until", "error", "message"),
    [
        (5, TypeError, "until must be an aware datetime or a timedelta from now, not 5"),
        (NOON.replace(tzinfo=None), ValueError, "has no time zone"),
        (timedelta(days=40_000), ValueError, "a hundred years"),
    ],
)
def test_a_job_is_not_put_to_sleep_until_what_is_no_time(
    alias: str, until: Any, error: type[Exception], message: str
) -> None:
    job = claimed()
    with pytest.raises(error, match=message):
        queue.suspend(job, until)
    assert row(job)["status"] == JobStatus.IN_PROGRESS


def test_block_lets_a_job_wait_for_a_human_and_gives_the_attempt_back(alias: str) -> None:
    job = claimed()
    queue.block(job, "mismatch")
    assert (row(job)["status"], row(job)["attempts"], row(job)["blocked_reason"]) == ("blocked", 0, "mismatch")
    assert queue.claim(worker_id="w1", now=after(days=999)) is None


def test_a_job_that_is_in_doubt_and_was_to_be_cancelled_is_cancelled(alias: str) -> None:
    job = claimed()
    queue.cancel(job)
    assert queue.block(job, "in_doubt", now=after(seconds=5)) == JobStatus.CANCELLED
    assert (row(job)["status"], row(job)["finished_at"], row(job)["attempts"]) == ("cancelled", after(seconds=5), 0)


def test_a_job_that_stopped_because_it_was_asked_to_is_cancelled(alias: str) -> None:
    job = claimed()
    confirm_cancel(job, now=after(seconds=5))
    assert (row(job)["status"], row(job)["finished_at"], row(job)["attempts"]) == ("cancelled", after(seconds=5), 1)


def test_a_job_of_an_unknown_task_comes_back_uncounted(alias: str) -> None:
    job = claimed()
    assert postpone_unknown(job, delay=timedelta(seconds=9), grace=timedelta(hours=1), now=NOON) == "scheduled"
    stored = queue.get(job)
    assert (stored.status, stored.attempts, stored.run_at) == (JobStatus.SCHEDULED, 0, after(seconds=9))
    assert stored.unknown_since == NOON
    assert stored.last_error == "No worker has known the task 'demo'."


def test_a_job_of_an_unknown_task_is_dead_after_the_grace_period(alias: str) -> None:
    job = claimed()
    postpone_unknown(job, delay=timedelta(seconds=9), grace=timedelta(hours=1), now=NOON)
    again = queue.claim(worker_id="w1", now=after(hours=2))
    assert again is not None
    assert postpone_unknown(again, delay=timedelta(1), grace=timedelta(hours=1), now=after(hours=2)) == "dead"
    stored = queue.get(job)
    assert (stored.status, stored.finished_at, stored.unknown_since) == (JobStatus.DEAD, after(hours=2), NOON)
    assert stored.last_error == "No worker has known the task 'demo' since 2030-01-01 12:00:00 UTC."


@pytest.mark.parametrize("grace", [timedelta(0), timedelta(days=1)])
def test_a_job_of_an_unknown_task_that_was_to_be_cancelled_is_cancelled(alias: str, grace: timedelta) -> None:
    job = claimed()
    postpone_unknown(job, delay=timedelta(seconds=9), grace=grace, now=NOON)
    again = queue.claim(worker_id="w1", now=after(hours=2))
    assert again is not None
    queue.cancel(again)
    assert postpone_unknown(again, delay=timedelta(1), grace=grace, now=after(hours=2)) == JobStatus.CANCELLED
    assert (row(job)["status"], row(job)["finished_at"]) == (JobStatus.CANCELLED, after(hours=2))


@pytest.mark.parametrize("error", ["Nobody knows.", ""])
def test_a_block_that_is_recorded_already_counts_as_recorded(alias: str, error: str) -> None:
    job = claimed()
    queue.block(job, "mismatch", error)
    before = row(job)

    assert queue.block(job, "mismatch", error) == JobStatus.BLOCKED

    assert row(job) == before
    with pytest.raises(LeaseLost):
        queue.block(job, "mismatch", "another")


# The row itself


def test_a_row_cannot_be_saved_over(alias: str) -> None:
    job = claimed()
    with pytest.raises(TypeError, match="Use the verb for what you want: cancel, retry, reschedule or enqueue_again"):
        queue.get(job).save()
    assert row(job)["status"] == JobStatus.IN_PROGRESS


def test_a_worker_that_knows_the_task_ends_the_grace_of_those_that_do_not(alias: str) -> None:
    job = claimed(now=NOON)
    postpone_unknown(job, delay=timedelta(seconds=9), grace=timedelta(hours=1), now=NOON)
    known = queue.claim(worker_id="w1", now=after(minutes=1))
    assert known is not None
    queue.fail(known, "no paper", after=0, now=after(minutes=1))
    assert queue.get(job).unknown_since is None


def test_a_rescuer_that_does_not_know_the_task_leaves_its_end_to_one_that_does(alias: str) -> None:
    job = claimed(max_attempts=None, now=NOON, lease=1)
    Job.objects.using(alias).filter(pk=job.id).update(attempts=7, crashes=0)
    rescue(["default"], alias=alias, now=after(days=1))
    assert queue.get(job).status == JobStatus.READY


# signals of jobs that end without a worker


def test_a_job_that_ends_without_a_worker_says_so_after_the_commit(alias: str) -> None:
    heard: list[Any] = []

    def finished(job_id: int, status: JobStatus, database: str, **_: Any) -> None:
        heard.append((job_id, status, database))

    waiting, lost = queue.enqueue("demo", queue_name="other"), claimed(max_attempts=1)
    signals.job_finished.connect(finished)
    try:
        with transaction.atomic(using=alias):
            queue.cancel(waiting)
            assert not heard
        queue.claim(worker_id="w2", now=after(hours=1))
        asked = claimed()
        queue.cancel(asked)
        queue.claim(worker_id="w2", now=after(hours=1))
    finally:
        signals.job_finished.disconnect(finished)
    assert heard == [(waiting.pk, "cancelled", alias), (lost.id, "dead", alias), (asked.id, "cancelled", alias)]


@pytest.mark.parametrize("skip_locked", [False, True])
def test_a_job_that_is_cancelled_as_it_is_given_back_says_so_once(alias: str, skip_locked: bool) -> None:
    heard: list[Any] = []

    def finished(job_id: int, status: JobStatus, **_: Any) -> None:
        heard.append((job_id, status))

    before, asked, kept, late = claimed(), claimed(), claimed(), claimed()
    signals.job_finished.connect(finished)
    try:
        queue.cancel(before)
        confirm_cancel(before)  # its worker tells of it
        queue.cancel(asked)
        pairs = [before.pair, asked.pair, kept.pair]
        assert release_pairs(pairs, alias=alias, skip_locked=skip_locked) == 2
        assert release_pairs(pairs, alias=alias, skip_locked=skip_locked) == 0
        queue.cancel(late)
        put_off(late, timedelta(seconds=9))
    finally:
        signals.job_finished.disconnect(finished)
    assert heard == [(asked.id, "cancelled"), (late.id, "cancelled")]
    assert row(kept)["status"] == JobStatus.READY


def test_a_job_that_a_rescue_blocks_says_so(alias: str) -> None:
    heard: list[Any] = []

    def blocked(job_id: int, reason: str, **_: Any) -> None:
        heard.append((job_id, reason))

    job = claimed(max_attempts=1)
    RunJournalEntry.objects.using(alias).create(
        run_id=job.run_id, position=1, key="charge", key_hash="x", kind="step", status="started", lease_token=1,
        started_at=NOON,
    )  # fmt: skip
    signals.job_blocked.connect(blocked)
    try:
        crash(job, now=after(hours=1))  # claimed once more, to settle the doubt
        assert not heard
        queue.claim(worker_id="w2", now=after(days=3))
    finally:
        signals.job_blocked.disconnect(blocked)
    assert heard == [(job.id, "in_doubt")]


def test_large_results_are_stored_beside_small_ones(alias: str) -> None:
    jobs = [claimed() for _ in range(4)]
    results = ["x" * 20_000, 1, None, {"text": '"\\{}' * 10_000}]
    assert complete_many(list(zip(jobs, results, strict=True))) == []
    assert [queue.get(job).result for job in jobs] == results
    assert [queue.get(job).status for job in jobs] == [JobStatus.DONE] * 4
