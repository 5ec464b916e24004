"""What a type checker says of uses of gnlqueue: ``tests/test_typing.py`` checks this file with mypy.

A right use must pass. A wrong one carries the error that it must give; mypy complains of an ignore that is not needed.
"""

from datetime import timedelta

import gnlqueue
from gnlqueue import enqueue, queue
from gnlqueue.models import Job


@gnlqueue.task
def send_receipt(order_id: int, copy_to: str = "") -> str:
    return copy_to


@gnlqueue.task(queue_name="billing", takes_context=True, retry_for=OSError, timeout=timedelta(minutes=1))
def charge(context: gnlqueue.JobContext, order_id: int) -> bool:
    return context.attempt > order_id


@gnlqueue.task(priority=10, backoff=gnlqueue.Backoff(base=1))
async def notify(order_id: int) -> None: ...


@gnlqueue.task(prioritty=10)  # type: ignore[call-overload, untyped-decorator]
def misspelled() -> None: ...


@gnlqueue.task(run_after=timedelta(1))  # type: ignore[call-overload, untyped-decorator]
def for_one_call_only() -> None: ...


def right() -> None:
    job: Job = send_receipt.enqueue(1)
    job = send_receipt.enqueue(1, copy_to="a")
    job = send_receipt.using(priority=1, run_after=timedelta(hours=1), idempotency_key="k").enqueue(order_id=1)
    job = charge.enqueue(1)
    job = enqueue(send_receipt, 1, copy_to="a")
    job = enqueue("shop.tasks.anything", 1, 2, three=3)
    ids: list[int] = gnlqueue.enqueue_many([send_receipt.bind(1), charge.bind(2)])
    text: str = send_receipt(1)
    external = gnlqueue.external_task("billing.charge", queue_name="billing")
    job = external.enqueue(1, anything="goes")
    claimed: gnlqueue.ClaimedJob | None = queue.claim(worker_id="w1", lease=timedelta(minutes=1))
    if claimed is not None:
        queue.complete(claimed, {"ids": ids, "text": text})
        failed: Job = queue.fail(claimed, OSError("no route"), after=5)
        job = queue.retry(failed)
    queue.cancel(job)


async def right_in_async_code() -> None:
    job: Job = await send_receipt.aenqueue(1)
    job = await gnlqueue.aenqueue(notify, job.pk)
    await notify(1)


def wrong() -> None:
    send_receipt.enqueue("x")  # type: ignore[arg-type]
    send_receipt.enqueue()  # type: ignore[call-arg]
    send_receipt.enqueue(1, copyto="a")  # type: ignore[call-arg]
    send_receipt.bind("x")  # type: ignore[arg-type]
    send_receipt.using(prioritty=1)  # type: ignore[call-arg]
    send_receipt.using(priority="high")  # type: ignore[arg-type]
    send_receipt.using(run_after=60)  # type: ignore[arg-type]
    send_receipt.using(priority=1).enqueue("x")  # type: ignore[arg-type]
    charge.enqueue("context", 1)  # type: ignore[arg-type, call-arg]
    number: int = send_receipt(1)  # type: ignore[assignment]
    enqueue(send_receipt, number, "a", "b")  # type: ignore[call-arg]
    enqueue(send_receipt, "x")  # type: ignore[arg-type]
    gnlqueue.enqueue_many([send_receipt])  # type: ignore[list-item]
    queue.complete(queue.get(1))  # type: ignore[arg-type]
    queue.claim()  # type: ignore[call-arg]


async def wrong_in_async_code() -> None:
    await send_receipt.aenqueue("x")  # type: ignore[arg-type]
    await gnlqueue.aenqueue(notify, "x")  # type: ignore[arg-type]
