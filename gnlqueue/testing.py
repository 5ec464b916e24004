"""What a project's own tests need: what was enqueued, and running it here and now.

    from gnlqueue.testing import assert_enqueued, run_jobs

    class CheckoutTest(TestCase):
        def test_the_customer_gets_a_receipt(self):
            self.client.post("/checkout/", {"card": "4242"})
            assert_enqueued(send_receipt.bind(order.pk))
            run_jobs()
            self.assertEqual(len(mail.outbox), 1)

Everything here works inside `TestCase`'s transaction, and with pytest. From an asynchronous test call it through
`sync_to_async`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from django.core.exceptions import SynchronousOnlyOperation

from gnlqueue import payloads
from gnlqueue.models import WAITING, Job
from gnlqueue.queue.transactions import alias_of
from gnlqueue.registry import Call, Task
from gnlqueue.worker import Worker

#: Beyond this many attempts `run_jobs` assumes that jobs enqueue each other for ever.
MOST_RUNS = 10_000

#: The options of `.using()` that `assert_enqueued` compares.
COMPARED = ("queue_name", "priority", "max_attempts", "idempotency_key")

SHOWN = 20  # jobs in a message


class DjangoTask(Protocol):
    """One of Django's own tasks; Django 5.2 has no class to import."""

    @property
    def module_path(self) -> str: ...


def run_jobs(
    queues: Sequence[str] | None = None, *, database: str | None = None, limit: int | None = None
) -> list[Job]:
    """Run in this process what is due, until nothing is, and return the jobs that ran, as they ended.

    Jobs that these enqueue run too. A job that failed waits for its backoff, and one with a `run_after` for its time:
    make it due with `gnlqueue.queue.reschedule(job, timedelta())`, then call `run_jobs()` again. `queues` defaults to
    those that a worker without `--queues` serves; with `limit`, at most that many attempts are made.

    What a task raises is not raised here: see the job's `status`, `last_error` and `failed_attempts`.

    Raises `RuntimeError` after 10,000 attempts: then jobs enqueue each other without end.
    """
    worker = Worker(queues, database=database, concurrency=1, heartbeat=False)
    ran: dict[int, Job] = {}
    for _ in range(MOST_RUNS if limit is None else limit):
        with _synchronous("run_jobs"):
            job = worker.run_once()
        if job is None:
            return list(ran.values())
        ran.pop(job.pk, None)  # it comes again, as it is now
        ran[job.pk] = job
    if limit is None:
        last = list(ran.values())[-1]
        raise RuntimeError(f"{MOST_RUNS:,} attempts, and still something is due; the last was {last}.")
    return list(ran.values())


def enqueued(task: Task[..., Any] | DjangoTask | str | None = None, *, database: str | None = None) -> list[Job]:
    """Return the waiting jobs, of one task or of all, in the order in which they were enqueued.

    Each has `task_name`, `args` (a list), `kwargs`, and the other fields of its row. `task` may be a task's name.
    """
    with _synchronous("enqueued"):
        return _enqueued(None if task is None else _name(task), database)


def _enqueued(task_name: str | None, database: str | None) -> list[Job]:
    jobs = Job.objects.using(alias_of(database)).filter(status__in=WAITING).order_by("pk")
    return list(jobs if task_name is None else jobs.filter(task_name=task_name))


@contextmanager
def _synchronous(name: str) -> Iterator[None]:
    """Say how one of these functions is called in an asynchronous test."""
    try:
        yield
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(
            f"{name}() was called in an asynchronous test, which may not wait for the database: write "
            f"`await sync_to_async({name})()`, with its arguments in the last parentheses."
        ) from None


def assert_enqueued(call: Call, *, count: int = 1, database: str | None = None) -> None:
    """Assert that a call, made with `task.bind(…)`, waits in the queue exactly `count` times.

    Compared are the task, its arguments (by position or by name, as they were given), and what `.using()` said of
    queue, priority, attempts and idempotency key. The database is the one given here, else the call's own.

    Raises `AssertionError`, which lists what waits instead.
    """
    if not isinstance(call, Call):
        raise TypeError(
            f"assert_enqueued() takes a bound call, made with task.bind(…), not {call!r}. For one of Django's own "
            "tasks look at what enqueued(task) returns."
        )
    with _synchronous("assert_enqueued"):
        jobs = _enqueued(None, database or call.task.options.database)
    found = sum(_is_of(call, job) for job in jobs)
    if found == count:
        return
    options = {name: value for name, value in call.task.overrides.items() if name in COMPARED}
    wanted = _call(call.task.name, call.args, call.kwargs) + (f" with {_listed(options)}" if options else "")
    raise AssertionError(
        f"Expected {wanted} to be waiting {_times(count)}, but found it {_times(found)}. {_overview(jobs, call.task)}"
    )


def _is_of(call: Call, job: Job) -> bool:
    said = call.task.overrides
    return (
        job.task_name == call.task.name
        and payloads.same([job.args, job.kwargs], [call.args, dict(call.kwargs)])
        and all(getattr(job, name) == said[name] for name in COMPARED if name in said)
    )


def _name(task: Task[..., Any] | DjangoTask | str) -> str:
    if isinstance(task, str):
        return task
    return task.name if isinstance(task, Task) else task.module_path


def _overview(jobs: Sequence[Job], task: Task[..., Any]) -> str:
    if not jobs:
        return "Nothing is waiting; jobs that have already run do not count."
    jobs = sorted(jobs, key=lambda job: job.task_name != task.name)  # its task's first: one is probably nearly right
    lines = [f"  {_call(job.task_name, job.args, job.kwargs)}  {_details(job)}" for job in jobs[:SHOWN]]
    if len(jobs) > SHOWN:
        lines.append(f"  … and {len(jobs) - SHOWN} more")
    return "\n".join(["These are waiting:", *lines])


def _details(job: Job) -> str:
    details = {"queue_name": job.queue_name, "priority": job.priority}
    if job.max_attempts is not None:
        details["max_attempts"] = job.max_attempts
    if job.idempotency_key is not None:
        details["idempotency_key"] = job.idempotency_key
    return _listed(details)


def _call(name: str, args: Iterable[Any], kwargs: Any) -> str:
    return f"{name}({', '.join([*map(repr, args), *(f'{key}={value!r}' for key, value in kwargs.items())])})"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
