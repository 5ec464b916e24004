"""The plain calls of a context on an event loop: refused, with the name of the one to await."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from gnlqueue import JobContext, queue
from gnlqueue.models import Job, JobStatus
from tests.durable.conftest import attempt, entries, on_sqlite

Play = Callable[..., Job]

pytestmark = on_sqlite

CALLS = {
    "step": ("charge", lambda: 1),
    "idempotent_step": ("charge", lambda: 1),
    "atomic_step": ("charge", lambda: 1),
    "sleep": ("cool down", 60),
    "now": (),
    "check": (),
}


async def one() -> int:
    return 1


@pytest.mark.parametrize("begun", [False, True], ids=["first of all", "after a step"])
@pytest.mark.parametrize("call", CALLS)
def test_a_plain_call_in_a_coroutine_names_the_one_to_await(aplay: Play, call: str, begun: bool) -> None:
    async def handler(context: JobContext) -> None:
        if begun:
            await context.astep("before", one)
        getattr(context, call)(*CALLS[call])

    job = aplay(handler)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert f"await context.a{call}()" in (queue.get(job).last_error or "")
    assert callable(getattr(JobContext, f"a{call}"))
    assert len(entries(job)) == begun


def test_what_a_function_of_its_own_does_on_an_event_loop_is_its_own_error(play: Play) -> None:
    """A step that was entered is in doubt, whatever Django has refused."""

    def fails() -> Any:
        raise SynchronousOnlyOperation("use a thread")

    assert attempt(play(lambda context: context.step("charge", fails))).status == JobStatus.BLOCKED


def test_who_lets_django_query_on_an_event_loop_may_do_so(aplay: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    async def handler(context: JobContext) -> int:
        return context.step("charge", lambda: 1)

    assert attempt(aplay(handler)).result == 1


def test_acheck_raises_where_check_does(aplay: Play) -> None:
    async def handler(context: JobContext) -> None:
        await context.acheck()
        await context.astep("ask to cancel", cancel, context.job_id)
        await context.acheck()
        raise AssertionError("it goes on")

    async def cancel(job_id: int) -> None:
        await Job.objects.filter(pk=job_id).aupdate(cancel_requested_at="2020-01-01T00:00:00Z")

    assert attempt(aplay(handler)).status == JobStatus.CANCELLED
