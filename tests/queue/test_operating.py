"""What people do to jobs and queues from outside, and what they ask of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction

import gnlqueue
from gnlqueue import InvalidTask, JobNotFound, WrongStatus, queue
from gnlqueue.models import EntryStatus, Job, JobAttempt, JobStatus, QueueState, RunJournalEntry
from tests.queue.conftest import NOON, after, claimed, count, dead, row


def scheduled() -> Job:
    return queue.enqueue("demo", run_after=timedelta(hours=1), now=NOON)


def ready() -> Job:
    return queue.enqueue("demo", now=NOON)


def in_progress() -> Job:
    return queue.get(claimed())


def blocked() -> Job:
    job = claimed()
    queue.block(job, "mismatch")
    return queue.get(job)


def done() -> Job:
    job = claimed()
    queue.complete(job, now=NOON)
    return queue.get(job)


def cancelled() -> Job:
    return queue.cancel(ready(), now=NOON)


def entry(job: Job, key: str, status: EntryStatus = EntryStatus.DONE, kind: str = "step") -> RunJournalEntry:
    return RunJournalEntry.objects.using(job._state.db).create(
        run_id=job.run_id,
        position=1,
        key=key,
        key_hash=f"{job.run_id} {key}",
        kind=kind,
        status=status,
        lease_token=1,
        started_at=NOON,
    )


# get


def test_get_reads_the_job_as_it_stands_now(alias: str) -> None:
    job = ready()
    queue.cancel(job)
    assert queue.get(job).status == queue.get(job.pk).status == JobStatus.CANCELLED


def test_get_tells_of_a_job_that_is_not_there(alias: str) -> None:
    with pytest.raises(JobNotFound, match=f"There is no job 404 on the database '{alias}'"):
        queue.get(404)


VERBS: list[Callable[[Any], Any]] = [
    queue.cancel,
    queue.retry,
    queue.unblock,
    queue.enqueue_again,
    lambda job: queue.reschedule(job, NOON),
]


@pytest.mark.parametrize("verb", VERBS, ids=["cancel", "retry", "unblock", "enqueue_again", "reschedule"])
def test_a_job_that_is_not_there_is_not_found(alias: str, verb: Callable[[Any], Any]) -> None:
    with pytest.raises(JobNotFound):
        verb(404)


# cancel


@pytest.mark.parametrize("make", [scheduled, ready, blocked, dead])
def test_a_job_that_nobody_runs_is_cancelled_at_once(alias: str, make: Callable[[], Job]) -> None:
    job = queue.cancel(make(), now=after(hours=1))
    assert (job.status, job.finished_at) == (JobStatus.CANCELLED, after(hours=1))
    assert queue.claim(worker_id="w1", now=after(days=1)) is None


def test_a_job_in_progress_is_asked_to_stop_and_keeps_its_lease(alias: str) -> None:
    job = claimed()
    asked = queue.cancel(job, now=after(seconds=9))
    assert (asked.status, asked.cancel_requested_at) == (JobStatus.IN_PROGRESS, after(seconds=9))
    assert asked.lease_expires_at == job.lease_expires_at


def test_a_handler_that_finishes_before_it_is_stopped_is_done(alias: str) -> None:
    job = claimed()
    queue.cancel(job)
    queue.complete(job, "made it")
    assert queue.get(job).status == JobStatus.DONE


def test_the_first_request_to_cancel_counts(alias: str) -> None:
    job = claimed()
    queue.cancel(job, now=NOON)
    assert queue.cancel(job, now=after(hours=1)).cancel_requested_at == NOON


def test_cancelling_twice_is_cancelling_once(alias: str) -> None:
    job = cancelled()
    assert queue.cancel(job, now=after(hours=1)).finished_at == NOON


def test_a_finished_job_cannot_be_cancelled(alias: str) -> None:
    job = done()
    with pytest.raises(WrongStatus, match=rf"job {job.pk} \(demo\) is done and cannot be cancelled: it is finished"):
        queue.cancel(job)


def before_nth_update(alias: str, nth: int, act: Callable[[], Any]) -> AbstractContextManager[None]:
    """Let something happen between the statements of a verb, as another process might."""
    updates = 0

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal updates
        if sql.startswith("UPDATE"):
            updates += 1
            if updates == nth:
                act()
        return execute(sql, params, many, context)

    return connections[alias].execute_wrapper(wrapper)


@pytest.mark.parametrize(
    "move",
    [queue.release, lambda job: queue.block(job, "mismatch"), lambda job: queue.fail(job, "x", final=True)],
    ids=["released", "blocked", "dead"],
)
def test_a_job_that_moves_while_it_is_cancelled_is_cancelled(alias: str, move: Any) -> None:
    job = claimed()
    with before_nth_update(alias, 2, lambda: move(job)):
        assert queue.cancel(job).status == JobStatus.CANCELLED


# retry


@pytest.mark.parametrize("make", [dead, cancelled])
def test_a_retried_job_has_all_its_attempts_again(alias: str, make: Callable[[], Job]) -> None:
    job = queue.retry(make(), now=after(hours=1))
    assert (job.status, job.attempts, job.crashes, job.run_at) == (JobStatus.READY, 0, 0, after(hours=1))
    assert (job.finished_at, job.cancel_requested_at) == (None, None)


def test_a_retried_job_keeps_token_and_journal(alias: str) -> None:
    job = dead()
    entry(job, "charge card")
    queue.retry(job)
    again = queue.claim(worker_id="w2")
    assert again is not None
    assert again.lease_token == 2
    assert RunJournalEntry.objects.using(alias).get().run_id == again.run_id


@pytest.mark.parametrize("make", [scheduled, ready, in_progress, blocked, done])
def test_only_dead_and_cancelled_jobs_are_retried(alias: str, make: Callable[[], Job]) -> None:
    job = make()
    before = row(job)
    with pytest.raises(WrongStatus, match="cannot be retried: only dead and cancelled jobs can be"):
        queue.retry(job)
    assert row(job) == before


# reschedule, unblock


@pytest.mark.parametrize("make", [scheduled, ready])
@pytest.mark.parametrize("to", [after(hours=5), timedelta(hours=5)])
def test_a_waiting_job_can_start_at_another_time(alias: str, make: Callable[[], Job], to: Any) -> None:
    job = queue.reschedule(make(), to, now=NOON)
    assert (job.status, job.run_at) == (JobStatus.SCHEDULED, after(hours=5))


@pytest.mark.parametrize("make", [in_progress, blocked, done, dead, cancelled])
def test_only_waiting_jobs_are_rescheduled(alias: str, make: Callable[[], Job]) -> None:
    job = make()
    before = row(job)
    with pytest.raises(WrongStatus, match="cannot be rescheduled: only waiting jobs can be"):
        queue.reschedule(job, NOON)
    assert row(job) == before


def test_a_job_is_not_rescheduled_to_a_time_without_a_zone(alias: str) -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        queue.reschedule(ready(), datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("when", [60, "tomorrow", None])
def test_a_job_is_not_rescheduled_to_what_is_no_time(alias: str, when: Any) -> None:
    with pytest.raises(TypeError, match=r"^run_after must be an aware datetime or a timedelta from now, not "):
        queue.reschedule(ready(), when)


def test_a_job_is_not_rescheduled_beyond_what_the_databases_can_store(alias: str) -> None:
    with pytest.raises(ValueError, match="run_after must lie between 0 seconds and a hundred years"):
        queue.reschedule(ready(), timedelta(days=366 * 101))


def test_an_unblocked_job_is_ready(alias: str) -> None:
    job = queue.unblock(blocked(), now=after(hours=1))
    assert (job.status, job.blocked_reason, job.run_at) == (JobStatus.READY, None, after(hours=1))


@pytest.mark.parametrize("make", [scheduled, ready, in_progress, done, dead, cancelled])
def test_only_blocked_jobs_are_unblocked(alias: str, make: Callable[[], Job]) -> None:
    with pytest.raises(WrongStatus, match="cannot be unblocked: it is not blocked"):
        queue.unblock(make())


# enqueue_again


def test_a_job_enqueued_again_is_a_new_one_like_the_old(alias: str) -> None:
    backoff = gnlqueue.Backoff(base=5)
    old = queue.enqueue(
        "demo", [1], {"a": 2}, queue_name="emails", priority=3, max_attempts=7, backoff=backoff, timeout=9
    )
    new, repeats = queue.enqueue_again(old)
    assert new.pk != old.pk
    same = ("task_name", "args", "kwargs", "queue_name", "priority", "max_attempts", "options")
    assert {name: row(new)[name] for name in same} == {name: row(old)[name] for name in same}
    assert new.options == row(new)["options"]
    assert row(new)["origin_id"] == new.origin_id == old.pk
    assert repeats == []


def test_a_job_enqueued_again_may_have_other_arguments(alias: str) -> None:
    new = queue.enqueue_again(queue.enqueue("demo", [1], {"a": 2}), args=[5], kwargs={}).job
    assert (row(new)["args"], row(new)["kwargs"]) == ([5], {})


def test_enqueue_again_tells_which_recorded_effects_will_repeat(alias: str) -> None:
    old = dead()
    entry(old, "charge card")
    entry(old, "cool down", kind="sleep")
    entry(old, "ship", EntryStatus.FAILED)
    assert queue.enqueue_again(old).repeats == ["charge card"]


def test_enqueue_again_leaves_the_old_job_alone(alias: str) -> None:
    old = queue.enqueue("demo", idempotency_key="k")
    before = row(old)
    new = queue.enqueue_again(old).job
    assert row(old) == before
    assert row(new)["idempotency_key"] is None


# pause, resume


def test_pausing_keeps_the_first_time(alias: str) -> None:
    queue.pause("default", now=NOON)
    queue.pause("default", now=after(hours=1))
    assert QueueState.objects.using(alias).get().paused_at == NOON


def test_a_queue_that_was_never_paused_can_be_resumed(alias: str) -> None:
    queue.resume("default")
    assert not QueueState.objects.using(alias).exists()


@pytest.mark.parametrize("verb", [queue.pause, queue.resume, queue.stats, queue.dead])
def test_a_queue_name_that_cannot_be_is_refused(alias: str, verb: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidTask, match="'Emails' is not a queue name"):
        verb("Emails")


# prune


def test_prune_deletes_done_and_cancelled_jobs_of_some_age(alias: str) -> None:
    done(), cancelled()
    kept = [scheduled(), in_progress(), blocked(), dead(), ready()]
    assert queue.prune(timedelta(days=1), now=after(hours=23)) == 0
    assert queue.prune(timedelta(days=1), now=after(hours=25)) == 2
    assert set(Job.objects.using(alias).values_list("pk", flat=True)) == {job.pk for job in kept}


def test_dead_jobs_are_pruned_where_they_are_asked_for(alias: str) -> None:
    dead()
    assert queue.prune(timedelta(days=1), statuses=[JobStatus.DEAD], now=after(days=2)) == 1


@pytest.mark.parametrize("status", [JobStatus.BLOCKED, JobStatus.READY, JobStatus.SCHEDULED, JobStatus.IN_PROGRESS])
def test_a_job_that_is_not_finished_is_never_pruned(status: JobStatus) -> None:
    with pytest.raises(ValueError, match=f"Only done, cancelled and dead jobs are pruned, not {status}"):
        queue.prune(timedelta(days=1), statuses=[status], using="default")


def test_a_pruned_job_takes_its_journal_and_attempts_with_it(alias: str) -> None:
    pruned, kept = dead(), dead()
    for job in (pruned, kept):
        note = entry(job, "charge card").notes
        note.create(kind="evidence", by="w1", at=NOON, why="late")
    assert queue.prune(timedelta(1), statuses=[JobStatus.DEAD], limit=1, now=after(days=2)) == 1
    assert RunJournalEntry.objects.using(alias).get().run_id == kept.run_id
    assert JobAttempt.objects.using(alias).get().job_id == kept.pk


@pytest.mark.parametrize("status", [EntryStatus.IN_DOUBT, EntryStatus.STARTED])
def test_a_job_with_an_entry_in_doubt_is_never_pruned(alias: str, status: EntryStatus) -> None:
    job = cancelled()
    entry(job, "charge card", status)
    assert queue.prune(timedelta(days=1), now=after(days=2)) == 0
    assert RunJournalEntry.objects.using(alias).exists()


def test_prune_keeps_to_one_queue_and_to_its_limit(alias: str) -> None:
    for _ in range(3):
        cancelled()
    queue.cancel(queue.enqueue("demo", queue_name="emails"), now=NOON)
    assert queue.prune(timedelta(days=1), queue_name="default", limit=2, now=after(days=2)) == 2
    assert queue.prune(timedelta(days=1), queue_name="default", now=after(days=2)) == 1
    assert queue.prune(timedelta(days=1), now=after(days=2)) == 1


def test_prune_goes_on_batch_by_batch(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnlqueue.queue.pruning.BATCH", 2)
    monkeypatch.setattr("gnlqueue.queue.pruning.PAUSE", 0)
    for _ in range(5):
        cancelled()
    assert queue.prune(timedelta(days=1), now=after(days=2)) == 5


def test_a_job_that_is_retried_while_it_is_pruned_keeps_its_journal(alias: str, in_thread: Any) -> None:
    if connections[alias].vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    job = cancelled()
    entry(job, "charge card")
    with transaction.atomic(alias):
        queue.retry(job)
        pruned = in_thread(lambda: queue.prune(timedelta(days=1), now=after(days=2), using=alias)).result(10)
    assert pruned == 0
    assert count(JobStatus.READY) == 1
    assert RunJournalEntry.objects.using(alias).exists()


# stats, dead


def test_stats_count_the_jobs_of_each_status(alias: str) -> None:
    in_progress(), blocked(), done(), dead(), cancelled(), scheduled(), ready()
    assert queue.stats(now=NOON) == {
        "ready": 1,
        "scheduled": 1,
        "in_progress": 1,
        "expired": 0,
        "blocked": 1,
        "done": 1,
        "dead": 1,
        "cancelled": 1,
        "total": 7,
    }


def test_stats_of_an_empty_queue_are_all_zero(alias: str) -> None:
    assert set(queue.stats().values()) == {0}


def test_a_scheduled_job_that_is_due_counts_as_ready(alias: str) -> None:
    scheduled()
    stats = queue.stats(now=after(hours=1))
    assert (stats["ready"], stats["scheduled"], stats["total"]) == (1, 0, 1)


def test_a_job_whose_lease_has_run_out_counts_as_expired(alias: str) -> None:
    in_progress()
    stats = queue.stats(now=after(seconds=61))
    assert (stats["in_progress"], stats["expired"], stats["total"]) == (0, 1, 1)


def test_stats_of_one_queue_leave_out_the_others(alias: str) -> None:
    ready()
    queue.enqueue("demo", queue_name="emails")
    assert queue.stats("emails")["total"] == 1


def test_dead_jobs_come_newest_first(alias: str) -> None:
    jobs = [queue.fail(claimed(), "x", final=True, now=after(hours=hour)) for hour in (1, 3, 2)]
    assert [job.pk for job in queue.dead()] == [jobs[1].pk, jobs[2].pk, jobs[0].pk]
    assert [job.pk for job in queue.dead(limit=1)] == [jobs[1].pk]


def test_dead_jobs_of_one_queue_leave_out_the_others(alias: str) -> None:
    dead()
    assert queue.dead("emails") == []
    assert len(queue.dead("default")) == 1
