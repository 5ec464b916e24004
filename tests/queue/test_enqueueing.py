"""Every way of making a job, and what is refused before anything is stored."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

import gnlqueue
from gnlqueue import EnqueuedOutsideTransaction, IdempotencyConflict, InvalidTask, PayloadError, UnknownTask, queue
from gnlqueue.models import Job, JobStatus
from gnlqueue.payloads import DEEPEST
from gnlqueue.signals import job_enqueued
from tests.app.models import Note
from tests.queue.conftest import NOON, after, row
from tests.queue.tasks import charge, poll_gateway, send_receipt

# What is stored


def test_a_task_s_name_arguments_and_options_are_stored(alias: str) -> None:
    job = charge.enqueue(42)
    stored = row(job)
    assert (stored["task_name"], stored["args"], stored["kwargs"]) == ("tests.queue.tasks.charge", [42], {})
    assert (stored["queue_name"], stored["priority"], stored["status"]) == ("billing", 10, JobStatus.READY)
    assert (stored["attempts"], stored["lease_token"], stored["options"]) == (0, 0, None)


def test_the_returned_job_is_what_the_row_holds(alias: str) -> None:
    job = send_receipt.using(idempotency_key="k", timeout=9, run_after=timedelta(hours=1)).enqueue(1, copy_to="ä")
    assert {field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields} == row(job)
    assert job.created


def test_a_job_s_database_is_the_queue_s(alias: str) -> None:
    assert send_receipt.enqueue(1)._state.db == alias


def test_the_four_ways_of_enqueueing_one_task_are_the_same(alias: str) -> None:
    jobs = [
        gnlqueue.enqueue(send_receipt, 1, copy_to="a"),
        gnlqueue.enqueue("tests.queue.tasks.send_receipt", 1, copy_to="a"),
        send_receipt.enqueue(1, copy_to="a"),
        send_receipt.bind(1, copy_to="a").enqueue(),
    ]
    assert len({(job.task_name, str(job.args), str(job.kwargs)) for job in jobs}) == 1
    assert len({job.pk for job in jobs}) == 4


def test_async_code_enqueues_with_aenqueue(alias: str) -> None:
    async def view() -> list[Job]:
        return [await send_receipt.aenqueue(1), await gnlqueue.aenqueue(send_receipt, 2)]

    assert [row(job)["args"] for job in asyncio.run(view())] == [[1], [2]]


def test_only_what_using_changed_travels_with_the_job(alias: str) -> None:
    job = poll_gateway.using(timeout=timedelta(minutes=1), max_attempts=2, retry_for=OSError).enqueue()
    assert row(job)["options"] == {"timeout": 60.0, "retry_for": ["builtins.OSError"]}
    assert row(job)["max_attempts"] == 2


def test_using_options_twice_adds_them_up(alias: str) -> None:
    job = send_receipt.using(priority=5).using(queue_name="emails").enqueue(1)
    assert (row(job)["priority"], row(job)["queue_name"]) == (5, "emails")


def test_a_task_of_another_project_is_enqueued_by_any_name(alias: str) -> None:
    billing = gnlqueue.external_task("billing.charge", queue_name="billing")
    stored = row(billing.enqueue(42, whatever=True))
    assert (stored["task_name"], stored["queue_name"], stored["args"]) == ("billing.charge", "billing", [42])


def test_the_queue_s_own_enqueue_takes_any_name(alias: str) -> None:
    assert row(queue.enqueue("nobody.knows.it", [1]))["max_attempts"] == 5


@pytest.mark.parametrize("run_after", [after(hours=4), timedelta(hours=4)])
def test_a_job_for_later_is_scheduled(alias: str, run_after: Any) -> None:
    stored = row(queue.enqueue("demo", run_after=run_after, now=NOON))
    assert (stored["status"], stored["run_at"], stored["enqueued_at"]) == (JobStatus.SCHEDULED, after(hours=4), NOON)


def test_a_time_in_another_zone_is_the_same_time(alias: str) -> None:
    from zoneinfo import ZoneInfo

    karachi = datetime(2030, 1, 1, 17, tzinfo=ZoneInfo("Asia/Karachi"))
    assert row(queue.enqueue("demo", run_after=karachi))["run_at"] == NOON


def test_a_job_for_a_time_that_is_over_is_due(alias: str) -> None:
    job = queue.enqueue("demo", run_after=timedelta(hours=-1), now=NOON)
    held = queue.claim(worker_id="w1", now=NOON)
    assert held is not None
    assert held.id == job.pk


def test_every_json_value_comes_back_as_it_went_in(alias: str) -> None:
    args = [
        None,
        True,
        False,
        0,
        -1,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
        0.1,
        1e15,
        1e-300,
        "",
        "ä€😀\\\"'%s\n",
        [[]],
        {"": {}},
    ]
    queue.enqueue("demo", args, {"b": 1, "a": 2})
    job = queue.claim(worker_id="w1")
    assert job is not None
    assert job.args == args
    assert [type(value) for value in job.args] == [type(value) for value in args]
    assert job.kwargs == {"a": 2, "b": 1}


def test_the_deepest_nesting_allowed_can_be_stored(alias: str) -> None:
    value: Any = "x"
    for _ in range(DEEPEST - 1):
        value = [value]
    queue.enqueue("demo", [value])
    job = queue.claim(worker_id="w1")
    assert job is not None
    assert job.args == [value]


# enqueue_many


def test_enqueue_many_returns_the_ids_in_order(alias: str) -> None:
    ids = gnlqueue.enqueue_many(send_receipt.using(priority=-number).bind(number) for number in range(20))
    jobs = Job.objects.using(alias).in_bulk(ids)
    assert [jobs[id].args for id in ids] == [[number] for number in range(20)]


def test_enqueue_many_keeps_the_order_where_some_have_keys(alias: str) -> None:
    calls = [
        send_receipt.using(idempotency_key=f"receipt:{number}" if number % 2 else None).bind(number)
        for number in range(6)
    ]
    jobs = Job.objects.using(alias).in_bulk(ids := gnlqueue.enqueue_many(calls))
    assert [jobs[id].args for id in ids] == [[number] for number in range(6)]


def test_enqueue_many_takes_one_statement_per_batch(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not connections[alias].features.can_return_rows_from_bulk_insert:
        pytest.skip("MySQL returns no ids")
    monkeypatch.setattr("gnlqueue.queue.enqueueing.BATCH", 10)
    with CaptureQueriesContext(connections[alias]) as captured:
        gnlqueue.enqueue_many(send_receipt.bind(number) for number in range(25))
    assert sum("INSERT" in query["sql"] for query in captured) == 3


def test_a_batch_is_bounded_in_bytes_too(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not connections[alias].features.can_return_rows_from_bulk_insert:
        pytest.skip("MySQL returns no ids")
    monkeypatch.setattr("gnlqueue.queue.enqueueing.BATCH_BYTES", 1000)
    with CaptureQueriesContext(connections[alias]) as captured:
        ids = gnlqueue.enqueue_many(send_receipt.bind(number, copy_to="x" * 300) for number in range(10))
    assert sum("INSERT" in query["sql"] for query in captured) == 4  # three of a good 300 fit
    jobs = Job.objects.using(alias).in_bulk(ids)
    assert [jobs[id].args for id in ids] == [[number] for number in range(10)]


def test_many_that_differ_in_everything_are_stored_as_one_by_one(alias: str) -> None:
    calls = [
        task.using(**options).bind(number, **kwargs)
        for number, (task, options, kwargs) in enumerate(
            [
                (send_receipt, {}, {}),
                (send_receipt, {"priority": 7, "queue_name": "emails"}, {"copy_to": "ä\\\"'{%s}\n"}),
                (charge, {"max_attempts": 3, "timeout": 9}, {}),
                (send_receipt, {"run_after": NOON}, {"copy_to": "NULL"}),
                (send_receipt, {"backoff": gnlqueue.Backoff(base=2), "retry_for": OSError}, {}),
            ]
            * 4
        )
    ]
    same_for_both = [
        field.attname for field in Job._meta.concrete_fields if field.attname not in {"id", "enqueued_at", "run_at"}
    ]
    one_by_one = [row(call.enqueue()) for call in calls]
    many = [row(id) for id in gnlqueue.enqueue_many(calls)]
    assert [[each[name] for name in same_for_both] for each in many] == [
        [each[name] for name in same_for_both] for each in one_by_one
    ]
    assert [each["run_at"] == NOON for each in many] == [each["status"] == "scheduled" for each in many]
    assert all(each["run_at"] == each["enqueued_at"] for each in many if each["status"] == "ready")


def test_the_same_key_twice_in_enqueue_many_is_one_job(alias: str) -> None:
    call = send_receipt.using(idempotency_key="receipt:1").bind(1)
    one, two = gnlqueue.enqueue_many([call, call])
    assert one == two
    assert Job.objects.using(alias).count() == 1


def test_enqueue_many_stores_all_or_none(alias: str) -> None:
    send_receipt.using(idempotency_key="taken").enqueue(0)
    calls = [send_receipt.bind(1), send_receipt.using(idempotency_key="taken").bind(2)]
    with pytest.raises(gnlqueue.IdempotencyConflict):
        gnlqueue.enqueue_many(calls)
    assert Job.objects.using(alias).count() == 1


def test_enqueue_many_of_nothing_stores_nothing(alias: str) -> None:
    assert gnlqueue.enqueue_many([]) == []


def test_enqueue_many_takes_bound_calls_only(alias: str) -> None:
    with pytest.raises(TypeError, match=r"takes bound calls, made with task.bind\(…\)"):
        gnlqueue.enqueue_many([send_receipt])  # type: ignore[list-item]


# What is refused


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a missing argument": (lambda: send_receipt.enqueue(), TypeError, r"send_receipt: missing a required argument"),  # type: ignore[call-arg]
    "an unknown argument": (
        lambda: send_receipt.enqueue(1, copyto="a"),  # type: ignore[call-arg]
        TypeError,
        "send_receipt: got an unexpected keyword argument 'copyto'",
    ),
    "the context": (lambda: charge.enqueue("context", 1), TypeError, "charge: too many positional"),  # type: ignore[arg-type]
    "an unknown name": (
        lambda: gnlqueue.enqueue("tests.queue.tasks.send_reciept", 1),
        UnknownTask,
        r'did you mean "tests.queue.tasks.send_receipt"',
    ),
    "a function": (lambda: gnlqueue.enqueue(print), InvalidTask, "Is the function decorated with @gnlqueue.task"),  # type: ignore[arg-type]
    "bytes": (lambda: send_receipt.enqueue(b"x"), PayloadError, r"args\[0\] is a builtins.bytes"),  # type: ignore[arg-type]
    "an object": (
        lambda: send_receipt.enqueue(1, copy_to=Note()),  # type: ignore[arg-type]
        PayloadError,
        r"kwargs\['copy_to'\] is a tests.app.models.Note.*pass its primary key",
    ),
    "NaN": (lambda: queue.enqueue("demo", [[float("nan")]]), PayloadError, r"args\[0\]\[0\] is nan"),
    "an infinity": (lambda: queue.enqueue("demo", kwargs={"a": -float("inf")}), PayloadError, r"kwargs\['a'\] is -inf"),
    "NUL": (lambda: queue.enqueue("demo", ["a\0b"]), PayloadError, r"args\[0\] contains a NUL"),
    "a lone surrogate": (lambda: queue.enqueue("demo", ["\udc00"]), PayloadError, r"args\[0\] contains a lone surro"),
    "a key with NUL": (lambda: queue.enqueue("demo", [{"\0": 1}]), PayloadError, r"the key .* of args\[0\] contains"),
    "a key that is no text": (lambda: queue.enqueue("demo", [{1: 1}]), PayloadError, r"args\[0\] has the key 1"),
    "a long number": (lambda: queue.enqueue("demo", [2**64]), PayloadError, r"args\[0\] is a number of more than 64"),
    "too many bytes": (lambda: queue.enqueue("demo", ["x" * 2**20]), PayloadError, "args: 1,048,580 bytes as JSON"),
    "too many classes": (
        lambda: send_receipt.using(retry_for=type("E" * 100_000, (Exception,), {})).enqueue(1),
        PayloadError,
        "and the limit is 100,000: name fewer exception classes in retry_for and give_up_on",
    ),
    "a naive time": (
        lambda: queue.enqueue("demo", run_after=datetime(2030, 1, 1)),  # noqa: DTZ001
        InvalidTask,
        "has no time zone",
    ),
    "a bare number of seconds": (
        lambda: queue.enqueue("demo", run_after=60),  # type: ignore[arg-type]
        InvalidTask,
        "run_after must be an aware datetime or a timedelta from now, not 60",
    ),
    "a time too far off": (lambda: queue.enqueue("demo", run_after=timedelta.max), InvalidTask, "a hundred years"),
    "a high priority": (lambda: queue.enqueue("demo", priority=101), InvalidTask, "from -100 to 100"),
    "a low priority": (lambda: queue.enqueue("demo", priority=-101), InvalidTask, "from -100 to 100"),
    "a priority that is none": (lambda: queue.enqueue("demo", priority=True), InvalidTask, "from -100 to 100"),
    "no attempts": (lambda: queue.enqueue("demo", max_attempts=0), InvalidTask, "from 1 to 1000"),
    "a queue name": (lambda: queue.enqueue("demo", queue_name="Emails"), InvalidTask, "'Emails' is not a queue name"),
    "a long queue name": (lambda: queue.enqueue("demo", queue_name="q" * 65), InvalidTask, "is not a queue name"),
    "a long key": (lambda: queue.enqueue("demo", idempotency_key="k" * 201), InvalidTask, "1 to 200 characters"),
    "an empty key": (lambda: queue.enqueue("demo", idempotency_key=""), InvalidTask, "1 to 200 characters"),
    "a key that cannot be stored": (lambda: queue.enqueue("demo", idempotency_key="\ud800"), InvalidTask, "string"),
    "a task name": (lambda: queue.enqueue("no such name"), InvalidTask, "'no such name' is not a task name"),
    "a long task name": (lambda: queue.enqueue("n" * 201), InvalidTask, "is not a task name"),
    "a text for the arguments": (lambda: queue.enqueue("demo", "abc"), TypeError, "args must be a list or a tuple"),
    "no timeout": (lambda: queue.enqueue("demo", timeout=0), InvalidTask, "timeout must be more than 0"),
    "a wrong backoff": (lambda: queue.enqueue("demo", backoff=5), InvalidTask, "backoff must be a gnlqueue.Backoff"),  # type: ignore[arg-type]
    "an unknown option": (lambda: send_receipt.using(prioritty=1), InvalidTask, 'did you mean "priority"'),  # type: ignore[call-arg]
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_enqueue_refuses_before_it_asks_the_database(case: str) -> None:
    enqueue, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        enqueue()


def test_the_limit_of_a_payload_can_be_set(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "MAX_PAYLOAD_BYTES": 10}
    queue.enqueue("demo", ["123456"])
    with pytest.raises(PayloadError, match=r"args: 11 bytes as JSON, and the limit is 10"):
        queue.enqueue("demo", ["1234567"])


# The transaction that is open on another database


def other_than(alias: str) -> str:
    return next(other for other in connections if other != alias)


def test_enqueueing_outside_the_open_transaction_warns(alias: str) -> None:
    other = other_than(alias)
    with transaction.atomic(other), pytest.warns(EnqueuedOutsideTransaction, match=f"is open on '{other}', and not"):
        send_receipt.enqueue(1)


def test_the_warning_names_the_line_that_enqueues(alias: str) -> None:
    with transaction.atomic(other_than(alias)), pytest.warns(EnqueuedOutsideTransaction) as caught:
        send_receipt.enqueue(1)
    assert caught[0].filename == __file__


def test_enqueueing_outside_the_open_transaction_can_be_made_an_error(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "STRICT_TRANSACTIONS": True}
    with transaction.atomic(other_than(alias)), pytest.raises(EnqueuedOutsideTransaction):
        send_receipt.enqueue(1)
    assert not Job.objects.using(alias).exists()


def test_enqueue_many_outside_the_open_transaction_warns_too(alias: str) -> None:
    with transaction.atomic(other_than(alias)), pytest.warns(EnqueuedOutsideTransaction):
        gnlqueue.enqueue_many([send_receipt.bind(1)])


def test_enqueueing_again_outside_the_open_transaction_warns_too(alias: str) -> None:
    old = queue.enqueue("demo")
    with transaction.atomic(other_than(alias)), pytest.warns(EnqueuedOutsideTransaction) as caught:
        queue.enqueue_again(old)
    assert [each.filename for each in caught] == [__file__]


def test_with_a_transaction_open_on_both_databases_nothing_is_said(alias: str) -> None:
    with transaction.atomic(other_than(alias)), transaction.atomic(alias):
        send_receipt.enqueue(1)


def test_a_transaction_on_the_queue_s_own_database_is_the_job_s(alias: str) -> None:
    with transaction.atomic(alias):
        send_receipt.enqueue(1)


# Signals


@pytest.fixture
def receive() -> Any:
    """``receive(fn)`` connects fn to job_enqueued for this test."""
    receivers: list[Any] = []

    def connect(receiver: Callable[..., Any]) -> None:
        receivers.append(receiver)
        job_enqueued.connect(receiver)

    yield connect
    for receiver in receivers:
        job_enqueued.disconnect(receiver)


def test_a_signal_tells_of_each_job(alias: str, receive: Any) -> None:
    told: list[Any] = []
    receive(lambda sender, job, **_: told.append((sender, job.pk)))
    job = send_receipt.enqueue(1)
    ids = gnlqueue.enqueue_many([send_receipt.bind(2), send_receipt.bind(3)])
    assert told == [(Job, id) for id in [job.pk, *ids]]


def test_a_signal_tells_which_job_another_is_made_from_and_with_which_options(alias: str, receive: Any) -> None:
    old = queue.enqueue("demo", timeout=9)
    told: list[Any] = []
    receive(lambda job, **_: told.append((job.pk, job.origin_id, job.options, connections[alias].in_atomic_block)))
    new = queue.enqueue_again(old).job
    assert told == [(new.pk, old.pk, {"timeout": 9}, False)]


def test_a_key_that_was_taken_sends_no_signal(alias: str, receive: Any) -> None:
    keyed = send_receipt.using(idempotency_key="k")
    keyed.enqueue(1)
    told: list[Any] = []
    receive(lambda job, **_: told.append(job.pk))
    keyed.enqueue(1)
    gnlqueue.enqueue_many([keyed.bind(1)])
    assert told == []


def test_a_receiver_that_raises_loses_no_job(alias: str, receive: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("broken receiver")

    receive(broken)
    with caplog.at_level(logging.ERROR, "gnlqueue"):
        job = send_receipt.enqueue(1)
    assert row(job)["status"] == JobStatus.READY
    assert "raised; its signal is lost" in caplog.text
    assert "broken receiver" in caplog.text


def test_the_database_s_clock_says_when_a_job_was_enqueued(alias: str) -> None:
    before = datetime.now(UTC)
    job = send_receipt.enqueue(1)
    assert abs(job.enqueued_at - before) < timedelta(seconds=5)
    assert job.run_at == job.enqueued_at


def test_all_or_none_of_a_database_however_it_is_named(alias: str) -> None:
    """A call that names the database and one that leaves it to the settings are of one transaction."""
    send_receipt.using(idempotency_key="k").enqueue(1)
    conflict = send_receipt.using(idempotency_key="k", database=alias).bind(2)
    with pytest.raises(IdempotencyConflict):
        gnlqueue.enqueue_many([send_receipt.bind(3), conflict])
    assert Job.objects.using(alias).count() == 1
