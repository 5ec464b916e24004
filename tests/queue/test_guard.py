"""The guard that each write of a holder carries: whoever lost the job writes nothing, and is told why."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gnlqueue import JobNotFound, LeaseLost, queue
from gnlqueue.models import Job, JobAttempt, JobStatus
from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.claiming import rescue
from gnlqueue.queue.transitions import confirm_cancel, postpone_unknown
from tests.queue.conftest import NOON, after, claimed, crash, row

VERBS: dict[str, Callable[[ClaimedJob], Any]] = {
    "complete": queue.complete,
    "complete with a result": lambda job: queue.complete(job, {"a": 1}),
    "fail": lambda job: queue.fail(job, "no use"),
    "fail for good": lambda job: queue.fail(job, "no use", final=True),
    "extend": lambda job: queue.extend(job, 60),
    "release": queue.release,
    "suspend": lambda job: queue.suspend(job, timedelta(days=1)),
    "block": lambda job: queue.block(job, "mismatch"),
    "confirm_cancel": confirm_cancel,
    "postpone_unknown": lambda job: postpone_unknown(job, delay=timedelta(1), grace=timedelta(1)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_stale_holder_writes_nothing(alias: str, verb: str) -> None:
    stale = claimed()
    crash(stale, now=NOON)
    before = row(stale)

    with pytest.raises(LeaseLost, match="not held under token 1 any more"):
        VERBS[verb](stale)

    assert row(stale) == before
    assert JobAttempt.objects.using(alias).count() == 1  # the crash's


@pytest.mark.parametrize("verb", VERBS)
def test_a_holder_whose_job_is_gone_is_told_so(alias: str, verb: str) -> None:
    job = claimed()
    Job.objects.using(alias).all()._raw_delete(alias)
    with pytest.raises(JobNotFound, match=rf"Job {job.id} \(demo\) is gone; it was probably pruned"):
        VERBS[verb](job)


WITHOUT_RECORD = ["suspend", "confirm_cancel", "postpone_unknown"]


@pytest.mark.parametrize("verb", WITHOUT_RECORD)
def test_a_verb_that_is_written_already_counts_as_written(alias: str, verb: str) -> None:
    """That is what a commit looks like whose acknowledgement was lost."""
    job = claimed()
    VERBS[verb](job)
    before = row(job)

    VERBS[verb](job)

    assert row(job) == before


@pytest.mark.parametrize("verb", WITHOUT_RECORD)
@pytest.mark.parametrize("asked_to_cancel", [False, True])
def test_what_a_rescue_wrote_is_not_taken_for_the_holder_s(alias: str, verb: str, asked_to_cancel: bool) -> None:
    stale = claimed(now=NOON)
    if asked_to_cancel:
        queue.cancel(stale)
    assert len(rescue(["default"], alias=alias, now=after(hours=1))) == 1
    if not asked_to_cancel:
        queue.reschedule(stale, timedelta(days=1))  # scheduled, as `suspend` would have left it
    before = row(stale)

    with pytest.raises(LeaseLost):
        VERBS[verb](stale)

    assert row(stale) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_row_read_back_is_no_proof_of_holding(alias: str, verb: str) -> None:
    job = claimed()
    with pytest.raises(TypeError, match=r"takes the ClaimedJob that claim\(\) gave"):
        VERBS[verb](queue.get(job))  # type: ignore[arg-type]
    assert row(job)["status"] == JobStatus.IN_PROGRESS


ENDINGS: dict[str, tuple[Callable[[ClaimedJob], Any], str]] = {
    "claimed by another": (lambda job: crash(job, now=NOON), r"w1 has claimed it since \(its token is 2\)"),
    "rescued": (
        lambda job: (queue.pause("default"), queue.claim(worker_id="w2", now=after(hours=1))),
        "it was released or rescued, and is ready",
    ),
    "released": (queue.release, "it was released or rescued, and is ready"),
    "cancelled": (confirm_cancel, "it has been cancelled"),
    "failed": (lambda job: queue.fail(job, "x"), "it was released or rescued, and is scheduled"),
    "dead": (lambda job: queue.fail(job, "x", final=True), "it is already dead"),
    "blocked": (lambda job: queue.block(job, "mismatch"), "it is already blocked"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_message_says_what_ended_the_ownership(alias: str, ending: str) -> None:
    job = claimed()
    end, message = ENDINGS[ending]
    end(job)
    with pytest.raises(LeaseLost, match=f"{message}. Nothing was written."):
        queue.complete(job)


def test_an_expired_lease_on_which_nobody_acted_may_complete(alias: str) -> None:
    job = claimed(now=NOON, lease=1)
    queue.complete(job, now=after(days=1))
    assert row(job)["status"] == JobStatus.DONE


def test_a_token_is_never_used_twice(alias: str) -> None:
    tokens = [claimed(max_attempts=1).lease_token]
    for day in range(1, 4):
        job = Job.objects.using(alias).get()
        queue.claim(worker_id="w1", now=after(days=day))  # rescues: dead
        queue.retry(job, now=after(days=day))
        again = queue.claim(worker_id="w1", now=after(days=day))
        assert again is not None
        tokens.append(again.lease_token)
    assert tokens == [1, 2, 3, 4]
