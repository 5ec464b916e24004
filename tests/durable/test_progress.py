"""`set_progress`: a holder's write like the others."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from gnlqueue import JobContext, JobPreempted, PayloadError, queue
from gnlqueue.models import Job, JobStatus
from tests.durable.conftest import attempt, claim, crashing, end_lease, jobs, on_sqlite

Play = Callable[..., Job]


def nothing(context: JobContext) -> None:
    pass


def held_context(job: Any) -> JobContext:
    """The context of an attempt that has just begun."""
    return JobContext(claim(job), timedelta(seconds=60))


@pytest.mark.parametrize("value", ["120 of 500", {"done": 120, "files": ["ä.csv"]}, 0.25, 0, [], None], ids=repr)
def test_it_is_stored_and_stays(play: Play, value: Any) -> None:
    """Through the end of the attempt, and the next one."""
    job = play(crashing(lambda context: [context.set_progress(each) for each in ("before", value, value)]))
    attempt(job)
    stored = queue.get(job)
    assert (stored.status, stored.progress) == (JobStatus.SCHEDULED, value)
    assert jobs().filter(progress__isnull=True).exists() == (value is None)


def test_it_is_one_statement(play: Play, alias: str) -> None:
    context = held_context(play(nothing))
    with CaptureQueriesContext(connections[alias]) as asked:
        context.set_progress("120 of 500")
    assert len(asked) == 1


def test_who_lost_the_job_writes_nothing_and_is_told(play: Play) -> None:
    job = play(nothing)
    context = held_context(job)
    end_lease(job)
    held_context(job).set_progress("the new one")
    for _ in range(2):  # an interrupt is a fact of the run
        with pytest.raises(JobPreempted):
            context.set_progress("the old one")
    assert queue.get(job).progress == "the new one"


def test_who_is_asked_to_cancel_hears_of_it(play: Play) -> None:
    job = play(lambda context: [queue.cancel(context.job), context.set_progress("further")])
    assert attempt(job).status == JobStatus.CANCELLED
    assert queue.get(job).progress is None


def test_a_job_that_is_gone_is_lost(play: Play) -> None:
    job = play(nothing)
    context = held_context(job)
    jobs().filter(pk=job.pk).delete()
    with pytest.raises(JobPreempted):
        context.set_progress("further")


def test_what_json_cannot_carry_is_refused(play: Play, settings: Any) -> None:
    context = held_context(play(nothing))
    with pytest.raises(PayloadError, match=r"progress\['rate'\] is nan"):
        context.set_progress({"rate": float("nan")})
    settings.GNLQUEUE = {**settings.GNLQUEUE, "MAX_PAYLOAD_BYTES": 1024}
    with pytest.raises(PayloadError, match="the limit is 1,024"):
        context.set_progress("x" * 1024)


def test_it_is_refused_inside_of_a_transaction(play: Play, alias: str) -> None:
    context = held_context(play(nothing))
    with transaction.atomic(using=alias), pytest.raises(RuntimeError, match="Call it outside"):
        context.set_progress("further")


def test_a_step_may_say_how_far_it_is(play: Play) -> None:
    job = play(lambda context: context.step("import", lambda: context.set_progress("half")))
    attempt(job)
    assert queue.get(job).progress == "half"


def test_on_the_event_loop(aplay: Play) -> None:
    job = aplay(lambda context: context.aset_progress("half"))
    attempt(job)
    assert queue.get(job).progress == "half"


@on_sqlite
def test_the_plain_call_on_the_event_loop_names_the_other_one(aplay: Play) -> None:
    async def handler(context: JobContext) -> None:
        context.set_progress("half")

    job = aplay(handler)
    attempt(job)
    assert "await context.aset_progress()" in (queue.get(job).last_error or "")
