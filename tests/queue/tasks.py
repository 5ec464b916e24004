"""Tasks that the operation suite enqueues; nothing runs them."""

import gnlqueue


@gnlqueue.task
def send_receipt(order_id: int, *, copy_to: str | None = None) -> None:
    """A task with an argument and an option."""


@gnlqueue.task(queue_name="billing", priority=10, max_attempts=3, takes_context=True)
def charge(context: gnlqueue.JobContext, order_id: int) -> None:
    """A task with options of its own, which takes its context."""


@gnlqueue.task(backoff=gnlqueue.Backoff(base=30, factor=1, jitter=0))
def poll_gateway() -> None:
    """A task with a backoff of its own."""
