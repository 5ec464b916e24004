"""What projects' own tests use: under unittest and pytest, inside the transaction of a TestCase too."""

import asyncio
import re
import unittest
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.test import TestCase

import gnlqueue
from gnlqueue import queue, testing
from gnlqueue.models import Job, JobStatus
from gnlqueue.testing import assert_enqueued, enqueued, run_jobs
from tests.app import tasks

on_sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@gnlqueue.task(backoff=tasks.AT_ONCE)
def enqueue_itself() -> None:
    enqueue_itself.enqueue()


@gnlqueue.task
def enqueue_next(left: int) -> None:
    if left:
        enqueue_next.enqueue(left - 1)


@gnlqueue.task
async def wait_for_nothing() -> None:
    await asyncio.sleep(0)


@gnlqueue.task(takes_context=True)
def take_steps(context: gnlqueue.JobContext, path: str) -> str:
    first = context.step("one", lambda: path + "1")
    return context.atomic_step("two", lambda: first + "2")


# Running


def test_everything_that_is_due_runs(alias: str) -> None:
    first, last = tasks.give.enqueue("first"), tasks.work_elsewhere.enqueue()
    later = tasks.nothing.using(run_after=timedelta(hours=1)).enqueue()

    jobs = run_jobs()

    assert {(job.pk, job.status, job.result) for job in jobs} == {
        (first.pk, JobStatus.DONE, "first"),
        (last.pk, JobStatus.DONE, None),
    }
    assert enqueued() == [later]
    assert run_jobs() == []


@on_sqlite
def test_what_jobs_enqueue_runs_too(alias: str) -> None:
    enqueue_next.enqueue(3)

    assert [job.args for job in run_jobs()] == [[3], [2], [1], [0]]


@on_sqlite
def test_a_failure_is_in_the_job_and_waits_for_its_backoff(alias: str) -> None:
    tasks.fail.using(backoff=gnlqueue.Backoff(base=60)).enqueue()

    (job,) = run_jobs()
    assert (job.status, job.last_error, job.attempts) == (JobStatus.SCHEDULED, "RuntimeError: no paper", 1)
    assert run_jobs() == []

    queue.reschedule(job, timedelta())
    (job,) = run_jobs()
    assert (job.status, job.attempts) == (JobStatus.DEAD, 2)


@on_sqlite
def test_a_job_that_runs_twice_is_returned_once(alias: str) -> None:
    tasks.ask_to_retry.using(max_attempts=3).enqueue(after=0)

    (job,) = run_jobs()
    assert (job.status, job.attempts) == (JobStatus.DEAD, 3)


@on_sqlite
def test_only_some_queues_or_so_many(alias: str) -> None:
    elsewhere = tasks.work_elsewhere.enqueue()
    jobs = [tasks.nothing.enqueue() for _ in range(3)]

    assert run_jobs(["other"]) == [elsewhere]
    assert run_jobs(limit=2) == jobs[:2]
    assert run_jobs(limit=0) == []
    assert enqueued() == jobs[2:]


@on_sqlite
def test_jobs_without_end_are_noticed(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "MOST_RUNS", 20)
    enqueue_itself.enqueue()

    with pytest.raises(RuntimeError, match=r"20 attempts, and still .* job \d+ \(tests.test_testing.enqueue_itself\)"):
        run_jobs()


# Asserting


@on_sqlite
def test_what_waits(alias: str) -> None:
    one, two = tasks.give.enqueue(1), tasks.nothing.using(run_after=timedelta(days=1)).enqueue()
    external = gnlqueue.external_task("billing.charge", queue_name="billing").enqueue(card="4242")
    django_task = SimpleNamespace(module_path="tests.app.tasks.nothing")

    assert enqueued() == [one, two, external]
    assert enqueued(tasks.give) == [one]
    assert enqueued(django_task) == [two]
    assert [(job.task_name, job.args, job.kwargs) for job in enqueued("billing.charge")] == [
        ("billing.charge", [], {"card": "4242"})
    ]
    run_jobs()
    assert enqueued() == [two, external]


def test_a_call_is_compared_by_task_and_arguments(alias: str) -> None:
    for value in ({"a": [1, 2]}, 1, 1):
        tasks.give.enqueue(value)
    tasks.nothing.enqueue()

    assert_enqueued(tasks.give.bind({"a": (1, 2)}))
    assert_enqueued(tasks.give.bind(1), count=2)
    assert_enqueued(tasks.give.bind(True), count=0)
    assert_enqueued(tasks.give.bind(value=1), count=0)
    assert_enqueued(tasks.nothing.bind())


@on_sqlite
def test_what_using_said_is_compared_too(alias: str) -> None:
    tasks.give.using(queue_name="slow", priority=5, idempotency_key="k", run_after=timedelta(days=1)).enqueue(1)

    assert_enqueued(tasks.give.bind(1))
    assert_enqueued(tasks.give.using(queue_name="slow", idempotency_key="k").bind(1))
    assert_enqueued(tasks.give.using(queue_name="slow", priority=6).bind(1), count=0)
    assert_enqueued(tasks.give.using(max_attempts=2).bind(1), count=0)


@on_sqlite
def test_the_message_tells_what_waits(alias: str) -> None:
    tasks.nothing.using(max_attempts=2).enqueue()
    tasks.give.using(priority=5, idempotency_key="k").enqueue(value="b")

    with pytest.raises(AssertionError) as caught:
        assert_enqueued(tasks.give.using(queue_name="slow").bind("a"))
    assert str(caught.value) == (
        "Expected tests.app.tasks.give('a') with queue_name='slow' to be waiting once, but found it 0 times. "
        "These are waiting:\n"
        "  tests.app.tasks.give(value='b')  queue_name='default', priority=5, idempotency_key='k'\n"
        "  tests.app.tasks.nothing()  queue_name='default', priority=0, max_attempts=2"
    )


@on_sqlite
def test_the_message_is_of_bounded_length(alias: str) -> None:
    gnlqueue.enqueue_many(tasks.give.bind(number) for number in range(25))

    with pytest.raises(AssertionError) as caught:
        assert_enqueued(tasks.give.bind(3), count=0)
    first, *lines, last = str(caught.value).splitlines()
    assert first == "Expected tests.app.tasks.give(3) to be waiting 0 times, but found it once. These are waiting:"
    assert (len(lines), last) == (20, "  … and 5 more")


@on_sqlite
def test_nothing_waits(alias: str) -> None:
    with pytest.raises(AssertionError, match=r"to be waiting 2 times, but found it 0 times\. Nothing is waiting"):
        assert_enqueued(tasks.give.bind(1), count=2)


def test_a_function_is_no_call() -> None:
    with pytest.raises(TypeError, match=r"task.bind\(…\), not <function .*look at what enqueued\(task\) returns"):
        assert_enqueued(tasks.give.func)  # type: ignore[arg-type]


@on_sqlite
@pytest.mark.parametrize(
    ("call", "right_way"),
    [
        (run_jobs, "await sync_to_async(run_jobs)()"),
        (enqueued, "await sync_to_async(enqueued)()"),
        (lambda: assert_enqueued(tasks.give.bind(1)), "await sync_to_async(assert_enqueued)()"),
        (lambda: tasks.give.enqueue(1), "await task.aenqueue(…)"),
        (lambda: tasks.give.bind(1).enqueue(), "await sync_to_async(call.enqueue)()"),
        (lambda: gnlqueue.enqueue_many([tasks.give.bind(1)]), "await sync_to_async(gnlqueue.enqueue_many)(calls)"),
    ],
)
def test_asynchronous_code_is_told_the_right_way(alias: str, call: Callable[[], object], right_way: str) -> None:
    async def test() -> None:
        call()

    with pytest.raises(SynchronousOnlyOperation, match=re.escape(f"`{right_way}`")):
        asyncio.run(test())


@on_sqlite
def test_another_database(alias: str) -> None:
    others = [each for each in connections if each != alias]
    if not others:
        pytest.skip("there is only one database")
    call = tasks.give.using(database=others[0]).bind(1)
    job = call.enqueue()

    assert_enqueued(call)
    assert_enqueued(tasks.give.bind(1), count=0)
    assert enqueued(database=others[0]) == [job]
    assert run_jobs(database=others[0]) == [job]


# Inside of Django's TestCase


def test_inside_the_transaction_of_a_test_case(alias: str) -> None:
    class Case(TestCase):
        databases = frozenset({alias})

        @classmethod
        def setUpTestData(cls) -> None:
            cls.before = tasks.give.enqueue("before")

        def test_one(self) -> None:
            self._run("one")

        def test_another(self) -> None:
            self._run("another")

        def _run(self, path: str) -> None:
            take_steps.enqueue(path)
            wait_for_nothing.enqueue()
            assert_enqueued(take_steps.bind(path))
            assert [job.result for job in run_jobs()] == ["before", path + "12", None]
            assert enqueued() == []

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)

    assert not [text for _, text in result.errors + result.failures]
    assert result.testsRun == 2
    assert not Job.objects.using(alias).exists()


class UnderPytestTest(TestCase):
    def test_transaction_is_rolled_back(self) -> None:
        tasks.write_note.enqueue("hello")
        assert_enqueued(tasks.write_note.bind("hello"))
        (job,) = run_jobs()
        assert job.status == JobStatus.DONE
