"""claim and claim_many: what comes next, for whom, and what they do before they take it."""

from datetime import timedelta

import pytest
from django.db import connections, transaction

from gnlqueue import InvalidTask, enqueue_many, queue
from gnlqueue.dialects.base import COLUMNS
from gnlqueue.models import Job, JobAttempt, JobStatus
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.candidates import _template
from gnlqueue.queue.claiming import claim_ready, promote, rescue
from gnlqueue.queue.crashes import end_crashed
from tests.queue.conftest import NOON, after, claimed, count, crash, row
from tests.queue.tasks import poll_gateway


def names(jobs: list[queue.ClaimedJob]) -> list[str]:
    return [job.task_name for job in jobs]


def test_an_empty_queue_has_nothing_to_claim(alias: str) -> None:
    assert queue.claim(worker_id="w1") is None
    assert queue.claim_many(worker_id="w1", limit=10) == []


def test_a_claim_gives_the_row_as_a_value(alias: str) -> None:
    job = queue.enqueue("demo", [1, "ä"], {"a": None}, priority=7, max_attempts=2, timeout=5, now=NOON)

    claimed = queue.claim(worker_id="w1", lease=60, now=after(seconds=1))

    assert claimed == queue.ClaimedJob(
        id=job.pk,
        task_name="demo",
        queue_name="default",
        args=[1, "ä"],
        kwargs={"a": None},
        priority=7,
        attempts=1,
        max_attempts=2,
        crashes=0,
        options={"timeout": 5.0},
        lease_token=1,
        lease_expires_at=after(seconds=61),
        worker_id="w1",
        enqueued_at=NOON,
        run_at=NOON,
        last_attempted_at=after(seconds=1),
        unknown_since=None,
        database=alias,
    )
    assert claimed.run_id == f"job:{job.pk}"


def test_a_claimed_value_is_what_the_row_holds(alias: str) -> None:
    job = claimed(now=NOON)

    stored = row(job)
    assert stored["status"] == JobStatus.IN_PROGRESS
    assert {name: stored[name] for name in job._fields if name != "database"} == {
        name: value for name, value in job._asdict().items() if name != "database"
    }


def test_the_database_s_clock_gives_aware_times_in_utc(alias: str) -> None:
    queue.enqueue("demo")
    job = queue.claim(worker_id="w1", lease=60)
    assert job is not None
    assert job.last_attempted_at.utcoffset() == timedelta()
    assert job.lease_expires_at - job.last_attempted_at == timedelta(seconds=60)


def test_the_highest_priority_comes_first_then_the_longest_due_then_the_lowest_id(alias: str) -> None:
    queue.enqueue("later", now=after(minutes=1))
    queue.enqueue("first", now=NOON)
    queue.enqueue("second", now=NOON)
    queue.enqueue("low", priority=-100, now=NOON)
    queue.enqueue("high", priority=100, now=after(minutes=2))

    jobs = queue.claim_many(worker_id="w1", limit=5, now=after(minutes=3))

    assert names(jobs) == ["high", "first", "second", "later", "low"]


def test_claim_many_takes_no_more_than_its_limit(alias: str) -> None:
    for _ in range(5):
        queue.enqueue("demo")
    assert len(queue.claim_many(worker_id="w1", limit=3)) == 3
    assert count(JobStatus.READY) == 2


def test_a_claim_takes_only_from_its_queue(alias: str) -> None:
    queue.enqueue("demo", queue_name="emails")
    assert queue.claim(worker_id="w1") is None
    assert queue.claim("emails", worker_id="w1") is not None


def test_a_claimed_job_is_not_claimed_again(alias: str) -> None:
    claimed()
    assert queue.claim(worker_id="w2", now=NOON) is None


def test_each_claim_adds_one_to_attempts_and_token(alias: str) -> None:
    job = claimed()
    assert (job.attempts, job.lease_token) == (1, 1)
    queue.fail(job, "again", after=0, now=NOON)

    job = queue.claim(worker_id="w2", now=after(seconds=1))

    assert job is not None
    assert (job.attempts, job.lease_token, job.worker_id) == (2, 2, "w2")


def test_started_at_is_the_first_attempt_s(alias: str) -> None:
    queue.fail(claimed(), "again", after=0, now=NOON)
    job = queue.claim(worker_id="w2", now=after(seconds=9))
    assert row(job)["started_at"] == NOON
    assert row(job)["last_attempted_at"] == after(seconds=9)


def test_a_scheduled_job_is_not_claimed_before_its_time(alias: str) -> None:
    queue.enqueue("demo", run_after=timedelta(hours=1), now=NOON)
    assert queue.claim(worker_id="w1", now=after(minutes=59)) is None


def test_a_claim_promotes_what_is_due(alias: str) -> None:
    queue.enqueue("demo", run_after=timedelta(hours=1), now=NOON)
    job = queue.claim(worker_id="w1", now=after(hours=1))
    assert job is not None
    assert job.run_at == after(hours=1)


def test_a_promoted_job_keeps_its_place_by_due_time(alias: str) -> None:
    queue.enqueue("enqueued.first", now=after(minutes=2))
    queue.enqueue("due.first", run_after=timedelta(minutes=1), now=NOON)
    assert names(queue.claim_many(worker_id="w1", limit=2, now=after(minutes=3))) == ["due.first", "enqueued.first"]


def test_a_claim_rescues_what_was_lost(alias: str) -> None:
    job = claimed(lease=60)
    assert queue.claim(worker_id="w2", now=after(seconds=60)) is None

    again = queue.claim(worker_id="w2", now=after(seconds=61))

    assert again is not None
    assert (again.id, again.attempts, again.lease_token, again.crashes) == (job.id, 2, 2, 1)


def test_a_paused_queue_gives_nothing_until_it_is_resumed(alias: str) -> None:
    queue.enqueue("demo")
    queue.pause("default")
    assert queue.claim(worker_id="w1") is None
    queue.resume("default")
    assert queue.claim(worker_id="w1") is not None


def test_pausing_one_queue_leaves_the_others(alias: str) -> None:
    queue.enqueue("demo", queue_name="emails")
    queue.pause("default")
    assert queue.claim("emails", worker_id="w1") is not None


def test_what_runs_in_a_paused_queue_goes_on(alias: str) -> None:
    job = claimed()
    queue.pause("default")
    queue.complete(job)
    assert row(job)["status"] == JobStatus.DONE


def test_a_job_that_crashed_twice_in_a_row_is_claimed_alone(alias: str) -> None:
    suspect = claimed(max_attempts=10)
    suspect = crash(suspect, now=NOON)
    queue.enqueue("before", priority=1, now=NOON)
    queue.enqueue("after", priority=-1, now=NOON)
    late = after(days=30)
    queue.claim_many(worker_id="w1", limit=1, now=late, lease=1)  # rescues the suspect once more, takes "before"
    late += timedelta(days=1)

    batches = [names(queue.claim_many(worker_id="w1", limit=10, now=late, lease=10**7)) for _ in range(4)]

    assert row(suspect)["crashes"] == 2
    assert batches == [["before"], ["demo"], ["after"], []]


def test_a_row_that_somebody_else_has_locked_is_skipped(alias: str, rows_locked) -> None:
    first, second = queue.enqueue("first"), queue.enqueue("second")
    with rows_locked(first):
        job = queue.claim(worker_id="w1")
    assert job is not None
    assert job.id == second.pk


def test_claiming_from_an_empty_queue_does_not_wait_for_sqlite_s_write_lock(alias: str, in_thread) -> None:
    if connections[alias].vendor != "sqlite":
        pytest.skip("others have row locks")
    _template.cache_clear()  # as in a new process
    with transaction.atomic(alias):
        queue.pause("other")  # takes the write lock

        def claim() -> object:
            with connections[alias].cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 0")
            return queue.claim(worker_id="w1")

        assert in_thread(claim).result(10) is None


def test_the_lease_may_be_a_timedelta(alias: str) -> None:
    queue.enqueue("demo", now=NOON)
    job = queue.claim(worker_id="w1", lease=timedelta(minutes=2), now=NOON)
    assert job is not None
    assert job.lease_expires_at == after(minutes=2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"worker_id": ""}, ValueError, "worker_id must be a string of 1 to 100 characters"),
        ({"worker_id": "w" * 101}, ValueError, "worker_id must be a string of 1 to 100 characters"),
        ({"worker_id": "w1", "lease": -1}, ValueError, "lease must lie between 0 seconds and a hundred years"),
        ({"worker_id": "w1", "lease": "60"}, ValueError, "lease must be a timedelta or a number of seconds"),
        ({"worker_id": "w1", "queue_name": "No Queue"}, InvalidTask, "'No Queue' is not a queue name"),
        ({"worker_id": "w1", "limit": 0}, ValueError, "limit must be at least 1"),
    ],
)
def test_a_claim_refuses_what_makes_no_sense(alias: str, arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        queue.claim_many(**{"limit": 1, **arguments})


# Rescue: what becomes of a job whose lease has expired.


def test_after_its_first_crash_a_job_is_ready_at_once(alias: str) -> None:
    job = claimed(queue_name="default")
    queue.pause("default")  # so that the claim only rescues

    queue.claim(worker_id="w2", now=after(seconds=61))

    assert row(job)["status"] == JobStatus.READY
    assert row(job)["crashes"] == 1
    assert row(job)["lease_expires_at"] is None


def test_after_its_second_crash_a_job_waits(alias: str) -> None:
    job = crash(claimed(), now=NOON)
    queue.pause("default")
    late = after(days=9)

    queue.claim(worker_id="w2", now=late)

    assert row(job)["status"] == JobStatus.SCHEDULED
    assert row(job)["crashes"] == 2
    assert late < row(job)["run_at"] <= late + timedelta(seconds=1)


def test_without_attempts_left_a_lost_job_is_dead(alias: str) -> None:
    job = claimed(max_attempts=1)
    assert queue.claim(worker_id="w2", now=after(seconds=61)) is None
    assert row(job)["status"] == JobStatus.DEAD
    assert row(job)["finished_at"] == after(seconds=61)
    assert row(job)["last_error"] == "The worker w1 died or lost contact while it held the job."


def test_a_lost_job_that_somebody_asked_to_cancel_is_cancelled(alias: str) -> None:
    job = claimed()
    queue.cancel(job, now=NOON)
    assert queue.claim(worker_id="w2", now=after(seconds=61)) is None
    assert row(job)["status"] == JobStatus.CANCELLED
    assert row(job)["finished_at"] == after(seconds=61)


def test_a_rescue_keeps_the_lost_attempt(alias: str) -> None:
    job = claimed()
    queue.claim(worker_id="w2", now=after(seconds=61))
    attempt = JobAttempt.objects.using(alias).get()
    assert (attempt.job_id, attempt.number, attempt.lease_token, attempt.worker_id) == (job.id, 1, 1, "w1")
    assert (attempt.started_at, attempt.ended_at) == (NOON, after(seconds=61))
    assert attempt.exception_class == ""
    assert "died or lost contact" in attempt.error


def test_an_attempt_that_ends_in_order_ends_the_row_of_crashes(alias: str) -> None:
    job = crash(claimed(), now=NOON)
    assert job.crashes == 1
    queue.fail(job, "an ordinary failure", now=NOON)
    assert row(job)["crashes"] == 0


def test_one_claim_rescues_at_most_200(alias: str) -> None:
    enqueue_many(poll_gateway.bind() for _ in range(201))
    queue.claim_many(worker_id="w1", limit=201, now=NOON)
    queue.pause("default")
    queue.claim(worker_id="w2", now=after(seconds=61))
    assert count(JobStatus.READY) == 200
    assert count(JobStatus.IN_PROGRESS) == 1


def test_one_claim_promotes_at_most_200(alias: str) -> None:
    enqueue_many(poll_gateway.using(run_after=NOON).bind() for _ in range(201))
    queue.pause("default")
    queue.claim(worker_id="w1", now=NOON)
    assert count(JobStatus.READY) == 200
    assert count(JobStatus.SCHEDULED) == 1


def test_a_locked_row_is_neither_rescued_nor_waited_for(alias: str, rows_locked) -> None:
    job = claimed()
    with rows_locked(job):
        assert len(rescue(["default"], alias=alias, now=after(seconds=61))) == 0
    assert len(rescue(["default"], alias=alias, now=after(seconds=61))) == 1


def test_a_locked_row_is_neither_promoted_nor_waited_for(alias: str, rows_locked) -> None:
    job = queue.enqueue("demo", run_after=NOON)
    with rows_locked(job):
        assert promote(["default"], alias=alias, now=NOON) == 0
    assert promote(["default"], alias=alias, now=NOON) == 1


def test_the_jobs_of_a_dead_worker_can_be_given_up_before_their_leases_expire(alias: str) -> None:
    job = claimed()
    assert len(end_crashed("w1", [(job.id, job.lease_token)], alias=alias)) == 1
    assert (row(job)["status"], row(job)["crashes"]) == (JobStatus.READY, 1)


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_of_several_jobs_of_a_dead_worker_none_pays_with_an_attempt(alias: str, max_attempts: int) -> None:
    """Nobody knows which of them killed it; each has a crash more, so that soon it runs alone."""
    queue.enqueue("demo", max_attempts=max_attempts)
    queue.enqueue("demo", max_attempts=max_attempts)
    jobs = queue.claim_many(worker_id="w1", limit=2)
    assert len(end_crashed("w1", [job.pair for job in jobs], alias=alias)) == 2
    assert [(row(job)["status"], row(job)["attempts"], row(job)["crashes"]) for job in jobs] == [("ready", 0, 1)] * 2
    kept = JobAttempt.objects.using(alias).order_by("id")
    assert [attempt.number for attempt in kept] == [1, 1]
    assert "nobody knows which did it" in kept[0].error


def test_a_job_that_had_ended_pays_for_none_that_was_running_and_none_for_it(alias: str) -> None:
    for _ in range(3):
        queue.enqueue("demo", max_attempts=1)
    running, *ended = queue.claim_many(worker_id="w1", limit=3)
    assert len(end_crashed("w1", [running.pair], [job.pair for job in ended], alias=alias)) == 3
    assert [(row(job)["status"], row(job)["attempts"]) for job in ended] == [("ready", 0)] * 2
    assert (row(running)["status"], row(running)["attempts"]) == ("dead", 1)
    errors = JobAttempt.objects.using(alias).filter(job__in=[job.id for job in ended]).values_list("error", flat=True)
    assert ["had run to its end" in error for error in errors] == [True, True]


def test_a_job_that_had_ended_and_was_alone_is_to_blame(alias: str) -> None:
    job = claimed()
    assert len(end_crashed("w1", [], [job.pair], alias=alias)) == 1
    assert (row(job)["status"], row(job)["attempts"], row(job)["crashes"]) == (JobStatus.READY, 1, 1)


def test_of_several_jobs_whose_worker_fell_silent_none_pays_with_an_attempt(alias: str) -> None:
    for _ in range(2):
        queue.enqueue("demo", max_attempts=1)
    mine = queue.claim_many(worker_id="w1", limit=2, now=NOON)
    queue.enqueue("demo", max_attempts=1)
    other = queue.claim(worker_id="w2", now=NOON)
    assert len(rescue(["default"], alias=alias, now=after(seconds=61))) == 3
    assert [row(job)["status"] for job in (*mine, other)] == ["ready", "ready", "dead"]


def test_what_a_worker_held_in_two_queues_it_has_lost_together(alias: str) -> None:
    held = []
    for name in ("a", "b"):
        queue.enqueue("demo", queue_name=name, max_attempts=1)
        held.append(queue.claim(name, worker_id="w1", now=NOON))
    assert len(rescue(["a", "b"], alias=alias, now=after(seconds=61))) == 2
    assert [row(job)["status"] for job in held] == ["ready", "ready"]


def test_giving_up_a_job_that_another_has_claimed_since_changes_nothing(alias: str) -> None:
    job = crash(claimed(), now=NOON)
    before = row(job)
    assert len(end_crashed("w1", [(job.id, 1)], alias=alias)) == 0
    assert row(job) == before


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_claim_beyond_a_place_takes_what_stands_there_or_later_in_its_priority(alias: str) -> None:
    for name, priority, run_after in [
        ("earlier", 0, NOON),
        ("here", 0, after(seconds=1)),
        ("same-time", 0, after(seconds=1)),
        ("later", 0, after(seconds=2)),
        ("higher", 1, after(seconds=2)),
        ("lower", -1, after(seconds=2)),
    ]:
        queue.enqueue(name, priority=priority, run_after=run_after)
    promote(["default"], alias=alias, now=after(seconds=2))
    here = Job.objects.using(alias).get(task_name="here")

    place = here.priority, here.run_at, here.pk
    found = claim_ready("default", worker_id="w1", lease=60, limit=10, alias=alias, beyond=place)

    assert names(found) == ["here", "same-time", "later"]


def test_a_claim_reads_what_its_holder_gets() -> None:
    assert ClaimedJob._fields == (*COLUMNS, "database")
