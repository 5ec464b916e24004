"""A job shares the fate of the transaction that it is enqueued in, and nothing hides what happens to that one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction

import gnlqueue
from gnlqueue import queue
from gnlqueue.models import Job
from gnlqueue.queue.transactions import in_own_transaction
from tests.app.models import Note
from tests.queue.conftest import claimed, row
from tests.queue.tasks import send_receipt


def test_an_enqueue_that_is_rolled_back_never_appears(alias: str) -> None:
    with transaction.atomic(alias):
        queue.enqueue("demo")
        gnlqueue.enqueue_many([send_receipt.bind(1)])
        transaction.set_rollback(True, using=alias)
    assert not Job.objects.using(alias).exists()


def test_a_savepoint_that_is_rolled_back_takes_its_job_with_it(alias: str) -> None:
    with transaction.atomic(alias):
        queue.enqueue("kept")
        with transaction.atomic(alias):
            queue.enqueue("dropped")
            transaction.set_rollback(True, using=alias)
    assert Job.objects.using(alias).get().task_name == "kept"


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_becomes_claimable_when_its_transaction_commits(alias: str, in_thread: Any, key: str | None) -> None:
    def claim() -> object:
        return queue.claim(worker_id="w1")

    with transaction.atomic(alias):
        job = queue.enqueue("demo", idempotency_key=key)
        assert in_thread(claim).result(10) is None
    assert in_thread(claim).result(10).id == job.pk


def test_an_outcome_commits_with_the_caller_s_transaction(alias: str) -> None:
    job = claimed()
    with transaction.atomic(alias):
        queue.complete(job)
        transaction.set_rollback(True, using=alias)
    assert row(job)["status"] == "in_progress"


# Retrying: only what has no transaction around it.


def transient_error(alias: str) -> OperationalError:
    """The error of a deadlock, as the database's driver raises it through Django."""
    match connections[alias].vendor:
        case "postgresql":
            import psycopg.errors

            error = OperationalError("deadlock detected")
            error.__cause__ = psycopg.errors.DeadlockDetected()
            return error
        case "mysql":
            return OperationalError(1213, "Deadlock found when trying to get lock; try restarting transaction")
        case _:
            return OperationalError("database is locked")


@contextmanager
def failing(alias: str, times: int, verb: str) -> Iterator[list[str]]:
    """Let the first statements of a kind fail with a deadlock; yields those that were tried."""
    tried: list[str] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip().startswith(verb):
            tried.append(sql)
            if len(tried) <= times:
                raise transient_error(alias)
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(wrapper):
        yield tried


@pytest.mark.parametrize("key", [None, "k"])
def test_outside_a_transaction_a_deadlock_is_tried_again(alias: str, key: str | None) -> None:
    with failing(alias, 2, "INSERT") as tried:
        assert queue.enqueue("demo", idempotency_key=key).created
    assert len(tried) == 3
    assert Job.objects.using(alias).count() == 1


def test_enqueueing_again_is_tried_again(alias: str) -> None:
    old = queue.enqueue("demo")
    with failing(alias, 2, "INSERT") as tried:
        new = queue.enqueue_again(old).job
    assert len(tried) == 3
    assert Job.objects.using(alias).get(pk=new.pk).origin_id == old.pk


def test_trying_again_ends_at_some_time(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnlqueue.queue.transactions.FIRST_PAUSE", 0)
    with failing(alias, 1000, "INSERT") as tried, pytest.raises(OperationalError):
        queue.enqueue("demo")
    assert len(tried) == 8


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
def test_a_holder_s_verb_is_tried_again_too(alias: str, verb: str) -> None:
    job = claimed()
    with failing(alias, 1, "UPDATE") as tried:
        queue.fail(job, "x") if verb == "fail" else getattr(queue, verb)(job)
    assert len(tried) == 2
    assert row(job)["status"] != "in_progress"


@pytest.mark.parametrize("key", [None, "k"])
def test_inside_a_transaction_a_deadlock_reaches_the_caller_and_marks_it(alias: str, key: str | None) -> None:
    with transaction.atomic(alias):
        Note.objects.using(alias).create(text="half")
        with failing(alias, 1, "INSERT") as tried, pytest.raises(OperationalError):
            queue.enqueue("demo", idempotency_key=key)
        assert len(tried) == 1
        with pytest.raises(transaction.TransactionManagementError):
            Note.objects.using(alias).create(text="other half")
    assert not Note.objects.using(alias).exists()


# A transaction that the caller ends by hand is the caller's too.


@pytest.fixture
def by_hand(alias: str) -> Iterator[str]:
    """The alias, with Django's autocommit off."""
    transaction.set_autocommit(False, using=alias)
    yield alias
    transaction.rollback(using=alias)
    transaction.set_autocommit(True, using=alias)


@pytest.mark.parametrize("key", [None, "k"])
def test_in_a_manual_transaction_a_deadlock_reaches_the_caller(by_hand: str, key: str | None) -> None:
    Note.objects.using(by_hand).create(text="half")
    with failing(by_hand, 1, "INSERT") as tried, pytest.raises(OperationalError):
        queue.enqueue("demo", idempotency_key=key)
    assert len(tried) == 1


def test_an_enqueue_in_a_manual_transaction_commits_with_it(by_hand: str) -> None:
    queue.enqueue("dropped")
    transaction.rollback(using=by_hand)
    job = queue.enqueue("kept")
    gnlqueue.enqueue_many([send_receipt.bind(1)])
    transaction.commit(using=by_hand)
    transaction.rollback(using=by_hand)
    assert list(Job.objects.using(by_hand).values_list("task_name", flat=True)) == ["kept", send_receipt.name]
    assert job.created


def test_a_manual_transaction_counts_as_the_caller_s(by_hand: str) -> None:
    assert in_own_transaction(by_hand)
    transaction.set_autocommit(True, using=by_hand)
    assert not in_own_transaction(by_hand)


# Real deadlocks and lock waits, on the databases that have them.


@pytest.fixture
def row_locks(alias: str) -> str:
    if connections[alias].vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    return alias


@pytest.mark.parametrize("key", [None, "k"])
def test_the_victim_of_a_deadlock_keeps_no_half_of_its_transaction(
    row_locks: str, run_threads: Callable[..., list[Any]], key: str | None
) -> None:
    alias = row_locks
    notes = [Note.objects.using(alias).create(text="untouched") for _ in range(2)]
    both_hold_one = threading.Barrier(2, timeout=10)

    def cross(number: int) -> str:
        mine, other = (notes[number], notes[1 - number])
        if connections[alias].vendor == "postgresql":
            with connections[alias].cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '20ms'")
        try:
            with transaction.atomic(alias):
                Note.objects.using(alias).filter(pk=mine.pk).update(text=f"by {number}")
                queue.enqueue("demo", [number], idempotency_key=key and f"{key}{number}")
                both_hold_one.wait()
                Note.objects.using(alias).filter(pk=other.pk).update(text=f"by {number}")
        except OperationalError:
            return "victim"
        return "winner"

    outcomes = run_threads(2, cross)

    assert sorted(outcomes) == ["victim", "winner"]
    winner = outcomes.index("winner")
    assert Job.objects.using(alias).get().args == [winner]
    assert set(Note.objects.using(alias).values_list("text", flat=True)) == {f"by {winner}"}


def test_an_enqueue_that_is_the_victim_of_a_deadlock_marks_the_transaction(
    row_locks: str, in_thread: Any, until_blocked: Callable[[], None]
) -> None:
    alias = row_locks
    note = Note.objects.using(alias).create(text="untouched")
    holds_the_key, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with transaction.atomic(alias):
            # More work done, so that MariaDB chooses the other one.
            gnlqueue.enqueue_many(send_receipt.bind(number) for number in range(50))
            queue.enqueue("other", idempotency_key="k")
            holds_the_key.set()
            assert go_on.wait(10)
            Note.objects.using(alias).filter(pk=note.pk).update(text="by the other")

    with connections[alias].cursor() as cursor:
        if connections[alias].vendor == "postgresql":
            cursor.execute("SET deadlock_timeout = '10ms'")  # who looks first is the victim
    future = in_thread(other)
    assert holds_the_key.wait(10)
    try:
        with transaction.atomic(alias):
            Note.objects.using(alias).filter(pk=note.pk).update(text="half")
            go_on.set()
            until_blocked()
            with pytest.raises(OperationalError, match=r"(?i)deadlock"):
                queue.enqueue("mine", idempotency_key="k")
            with pytest.raises(transaction.TransactionManagementError):
                Note.objects.using(alias).create(text="other half")
    finally:
        connections[alias].close()  # its settings end with it
    future.result(10)
    assert Note.objects.using(alias).get().text == "by the other"
    assert Job.objects.using(alias).get(idempotency_key="k").task_name == "other"


def test_a_lock_wait_that_is_over_marks_the_transaction(row_locks: str, in_thread: Any) -> None:
    alias = row_locks
    holds_the_key, done = threading.Event(), threading.Event()

    def other() -> None:
        with transaction.atomic(alias):
            queue.enqueue("demo", idempotency_key="k")
            holds_the_key.set()
            assert done.wait(20)

    future = in_thread(other)
    assert holds_the_key.wait(10)
    limit = {"postgresql": "SET lock_timeout = '50ms'", "mysql": "SET innodb_lock_wait_timeout = 1"}
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(limit[connections[alias].vendor])
        with transaction.atomic(alias):
            Note.objects.using(alias).create(text="half")
            with pytest.raises(DatabaseError, match=r"(?i)lock"):
                queue.enqueue("demo", idempotency_key="k")
            with pytest.raises(transaction.TransactionManagementError):
                Note.objects.using(alias).create(text="other half")
    finally:
        connections[alias].close()
        done.set()
    future.result(10)
    assert not Note.objects.using(alias).exists()
    assert Job.objects.using(alias).count() == 1
