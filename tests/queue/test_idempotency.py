"""The same idempotency key gives the same single job, under any race."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from gnlqueue import IdempotencyConflict, queue
from gnlqueue.models import Job
from tests.app.models import Note
from tests.queue.conftest import NOON, after, row
from tests.queue.tasks import charge, send_receipt


def test_a_key_makes_one_job(alias: str) -> None:
    first = send_receipt.using(idempotency_key="receipt:1").enqueue(1)
    second = send_receipt.using(idempotency_key="receipt:1").enqueue(1)
    assert (first.created, second.created) == (True, False)
    assert second.pk == first.pk


def test_the_job_found_is_as_it_stands_now(alias: str) -> None:
    first = queue.enqueue("demo", idempotency_key="k")
    queue.cancel(first)
    assert queue.enqueue("demo", idempotency_key="k").status == "cancelled"


def test_a_key_is_free_again_once_its_job_is_pruned(alias: str) -> None:
    first = queue.cancel(queue.enqueue("demo", idempotency_key="k"), now=NOON)
    queue.prune(timedelta(days=1), now=after(days=2))
    second = queue.enqueue("demo", idempotency_key="k")
    assert second.created
    assert second.pk != first.pk


def test_jobs_without_a_key_never_meet(alias: str) -> None:
    assert queue.enqueue("demo").pk != queue.enqueue("demo").pk


def test_keys_are_compared_byte_for_byte(alias: str) -> None:
    keys = ["receipt:ab", "receipt:AB", "receipt:ab ", " receipt:ab", "receipt:äb", "receipt:a\u0308b"]
    jobs = [queue.enqueue("demo", idempotency_key=key) for key in keys]
    assert [job.created for job in jobs] == [True] * 6
    assert [row(job)["idempotency_key"] for job in jobs] == keys


def test_the_longest_keys_differ_in_their_last_character(alias: str) -> None:
    assert queue.enqueue("demo", idempotency_key="k" * 199 + "a").created
    assert queue.enqueue("demo", idempotency_key="k" * 199 + "b").created


@pytest.mark.parametrize(
    ("one", "other"),
    [([1], [2]), ([1], [True]), ([0], [False]), ([1], []), ([1], ["1"]), ([None], [0]), ([{"a": 1}], [{"a": True}])],
)
def test_a_key_with_other_arguments_is_a_conflict(alias: str, one: list[Any], other: list[Any]) -> None:
    job = queue.enqueue("demo", one, idempotency_key="k")
    told = f"The idempotency key 'k' belongs to job {job.pk}, which has other arguments: demo was not enqueued."
    with pytest.raises(IdempotencyConflict, match=re.escape(told)):
        queue.enqueue("demo", other, idempotency_key="k")


def test_a_key_with_another_task_is_a_conflict(alias: str) -> None:
    send_receipt.using(idempotency_key="k").enqueue(1)
    told = f", which runs {send_receipt.name}: {charge.name} was not enqueued. One key is for one call of one task: put"
    with pytest.raises(IdempotencyConflict, match=re.escape(told)):
        charge.using(idempotency_key="k").enqueue(1)


@pytest.mark.parametrize("arguments", [[1.5, 1e15], [{"b": 1, "a": [2]}], ["ä€😀"], [2**64 - 1], [1.0]])
def test_arguments_that_were_stored_are_the_same_when_they_come_again(alias: str, arguments: list[Any]) -> None:
    queue.enqueue("demo", arguments, idempotency_key="k")
    assert not queue.enqueue("demo", arguments, idempotency_key="k").created


def test_after_a_taken_key_the_caller_s_transaction_is_usable(alias: str) -> None:
    queue.enqueue("demo", idempotency_key="k")
    with transaction.atomic(alias):
        Note.objects.using(alias).create(text="before")
        assert not queue.enqueue("demo", idempotency_key="k").created
        Note.objects.using(alias).create(text="after")
    assert Note.objects.using(alias).count() == 2


def test_after_a_conflict_the_caller_s_transaction_is_usable(alias: str) -> None:
    queue.enqueue("demo", [1], idempotency_key="k")
    with transaction.atomic(alias):
        Note.objects.using(alias).create(text="before")
        with pytest.raises(IdempotencyConflict):
            queue.enqueue("demo", [2], idempotency_key="k")
        Note.objects.using(alias).create(text="after")
    assert Note.objects.using(alias).count() == 2


def test_fifty_threads_with_one_key_make_one_job(alias: str, run_threads: Callable[..., list[Job]]) -> None:
    jobs = run_threads(50, lambda _: send_receipt.using(idempotency_key="receipt:1").enqueue(1))
    assert len({job.pk for job in jobs}) == 1
    assert [job.created for job in jobs].count(True) == 1
    assert Job.objects.using(alias).count() == 1


def test_transactions_that_meet_at_a_taken_key_do_not_deadlock(alias: str, run_threads: Any) -> None:
    queue.enqueue("demo", idempotency_key="k")

    def in_a_transaction(number: int) -> bool:
        with transaction.atomic(alias):
            Note.objects.using(alias).create(text=str(number))
            return queue.enqueue("demo", idempotency_key="k").created

    assert run_threads(20, in_a_transaction) == [False] * 20
    assert Note.objects.using(alias).count() == 20


def test_a_snapshot_older_than_the_key_s_job_finds_it(alias: str, in_thread: Callable[..., Future[Any]]) -> None:
    if connections[alias].vendor != "mysql":
        pytest.skip("PostgreSQL answers with a serialization error, SQLite has one writer at a time")
    with connections[alias].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic(alias):
        assert not Job.objects.using(alias).exists()
        first = in_thread(lambda: queue.enqueue("demo", idempotency_key="k")).result(10)
        second = queue.enqueue("demo", idempotency_key="k")
    assert (second.pk, second.created) == (first.pk, False)


@pytest.fixture
def second(in_thread: Callable[..., Future[Any]], until_blocked: Callable[[], None]) -> Callable[[], Future[Job]]:
    """``second()`` starts a second inserter of the key, and returns once it waits for the first one's transaction."""

    def start() -> Future[Job]:
        begun = threading.Event()

        def enqueue() -> Job:
            begun.set()
            return queue.enqueue("demo", idempotency_key="k")

        future = in_thread(enqueue)
        assert begun.wait(10)
        until_blocked()
        assert not future.done()
        return future

    return start


def test_a_second_inserter_gets_the_job_of_the_first_that_commits(alias: str, second: Any) -> None:
    with transaction.atomic(alias):
        first = queue.enqueue("demo", idempotency_key="k")
        waiting = second()
    assert (waiting.result(10).pk, waiting.result().created) == (first.pk, False)


def test_a_second_inserter_inserts_where_the_first_rolls_back(alias: str, second: Any) -> None:
    with transaction.atomic(alias):
        queue.enqueue("demo", idempotency_key="k")
        waiting = second()
        transaction.set_rollback(True, using=alias)
    assert waiting.result(10).created
    assert Job.objects.using(alias).get().pk == waiting.result().pk


def test_the_index_of_the_keys_has_no_entry_for_a_job_without_one(alias: str) -> None:
    """Every change of a row would make its entry anew. MySQL has no partial indexes, and keeps the uniqueness."""
    with connections[alias].cursor() as cursor:
        found = connections[alias].introspection.get_constraints(cursor, Job._meta.db_table)["gnlqueue_job_key"]
    assert (found["columns"], found["unique"]) == (["key_hash"], True)
    if alias == "postgresql":
        with connections[alias].cursor() as cursor:
            cursor.execute(
                "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = 'gnlqueue_job_key'::regclass"
            )
            assert cursor.fetchone()[0] == "(key_hash IS NOT NULL)"
