"""Tasks that do nothing but say when they began."""

import gnlqueue
from noops.marks import mark


@gnlqueue.task
def noop(number: int) -> None:
    mark(number)


@gnlqueue.task
async def async_noop(number: int) -> None:
    mark(number)


@gnlqueue.task(takes_context=True)
def many_steps(context: gnlqueue.JobContext, steps: int) -> None:
    """Take so many steps. The first attempt ends when it has; each marks its beginning and its end."""
    mark(0)
    for number in range(steps):
        context.atomic_step("work", int, number)
    mark(steps)
    if context.attempt == 1:
        raise gnlqueue.Retry("as if it had crashed", after=0)
