"""The tasks that tests run in workers of their own (``manage.py runworker`` finds them here)."""

import asyncio
import ctypes
import functools
import inspect
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone, translation
from django.utils.functional import SimpleLazyObject

import gnlqueue
from gnlqueue import JobContext
from tests.app import events
from tests.app.models import Note

#: What some tasks return or raise; tests set it.
UNSENDABLE: Any = None

#: Failed attempts come again at once: no test waits for a backoff.
AT_ONCE = gnlqueue.Backoff(base=0.001, factor=1, jitter=0)


@gnlqueue.task
def nothing() -> None:
    """The shortest task there is."""


@gnlqueue.task
def give(value: Any) -> Any:
    """Return what was given."""
    return value


@gnlqueue.task(takes_context=True)
def tell(context: JobContext, what: str = "ran") -> None:
    """Say that it ran, and when by the clock that all processes share."""
    events.tell(what, job=context.job_id, attempt=context.attempt, pid=os.getpid(), at=time.monotonic())


@gnlqueue.task(takes_context=True)
def tell_in_a_step(context: JobContext) -> None:
    """Say that it ran, in a step."""
    context.step("tell", lambda: events.tell("ran", job=context.job_id, attempt=context.attempt))


@gnlqueue.task(takes_context=True)
def wait(context: JobContext, gate: str = "go") -> None:
    """Run until the test opens the gate."""
    events.tell("began", job=context.job_id, attempt=context.attempt, pid=os.getpid())
    events.wait_at(gate)
    events.tell("ended", job=context.job_id, attempt=context.attempt, pid=os.getpid())


@gnlqueue.task(takes_context=True)
async def await_gate(context: JobContext, gate: str = "go") -> str:
    """Run on the event loop until the test opens the gate."""
    events.tell("began", job=context.job_id, attempt=context.attempt, pid=os.getpid())
    await asyncio.to_thread(events.wait_at, gate)
    return threading.current_thread().name


@gnlqueue.task(takes_context=True)
def kill_own_process(context: JobContext) -> None:
    """Take its worker with it."""
    events.tell("killing", job=context.job_id, attempt=context.attempt, pid=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


@gnlqueue.task(takes_context=True, max_attempts=2)
def end_own_process(context: JobContext, status: int) -> None:
    """End its worker as a C library might that has met something it does not like."""
    events.tell("ending", job=context.job_id, attempt=context.attempt, pid=os.getpid())
    os._exit(status)


@gnlqueue.task(max_attempts=1)
def end_child() -> int | None:
    """Start a process, and end it at once by a signal, as a `multiprocessing.Pool` does; how it ended."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[events.LONGEST])
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


@gnlqueue.task(max_attempts=1)
def exit_in_child(status: int) -> int:
    """Fork, and leave the child as a program would be left; how it ended."""
    child = os.fork()
    if not child:
        sys.exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@gnlqueue.task(max_attempts=1)
async def aexit_in_child(status: int) -> int:
    """Do the same on the event loop."""
    child = os.fork()
    if not child:
        sys.exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222


@gnlqueue.task(takes_context=True)
def kill_own_process_if_not_alone(context: JobContext) -> None:
    """Take its worker with it, until it runs there with nothing else; then say what else runs."""
    if context.job.crashes < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with connections[context.claimed.database].cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM gnlqueue_job WHERE status = 'in_progress' AND worker_id = %s",
            [context.claimed.worker_id],
        )
        events.tell("alone", held=cursor.fetchone()[0])


@gnlqueue.task(takes_context=True)
def hold_gil(context: JobContext, seconds: float) -> None:
    """Run in C without letting any other thread of the process run."""
    events.tell("began", job=context.job_id, attempt=context.attempt, pid=os.getpid())
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    events.tell("ended", job=context.job_id, attempt=context.attempt, pid=os.getpid())


@gnlqueue.task(timeout=0.1, max_attempts=1)
def loop_for_ever() -> None:
    """Run Python code without end."""
    deadline = time.monotonic() + events.LONGEST
    while time.monotonic() < deadline:
        pass


@gnlqueue.task(timeout=0.1, max_attempts=1)
def sleep_in_c() -> None:
    """Wait inside C, where nothing can interrupt a thread."""
    time.sleep(events.LONGEST)


@gnlqueue.task(timeout=0.1, max_attempts=1)
async def await_for_ever() -> None:
    """Wait on the event loop."""
    try:
        await asyncio.sleep(events.LONGEST)
    finally:
        events.tell("cancelled")


@gnlqueue.task(timeout=0.1, max_attempts=1)
async def block_event_loop() -> None:
    """Wait inside C, on the event loop."""
    time.sleep(events.LONGEST)  # noqa: ASYNC251  the mistake that is tested


@gnlqueue.task(backoff=AT_ONCE)
def write_note(text: str) -> None:
    """Use the database of the queue."""
    Note.objects.using(os.environ.get("GNLQUEUE_TEST_ALIAS", "default")).create(text=text)


@gnlqueue.task(backoff=AT_ONCE, max_attempts=2)
def fail(message: str = "no paper") -> None:
    """Raise."""
    raise RuntimeError(message)


@gnlqueue.task(takes_context=True, backoff=AT_ONCE)
def fail_first(context: JobContext, how_often: int = 1) -> str:
    """Raise in the first attempts, then succeed."""
    if context.attempt <= how_often:
        raise OSError("printer on fire")
    return f"attempt {context.attempt}"


@gnlqueue.task
def raise_system_exit() -> None:
    """Try to end the process."""
    raise SystemExit(3)


@gnlqueue.task(max_attempts=1)
def raise_keyboard_interrupt() -> None:
    """Pretend that somebody pressed Ctrl-C."""
    raise KeyboardInterrupt


@gnlqueue.task(max_attempts=1)
async def araise_keyboard_interrupt() -> None:
    """Pretend it on the event loop."""
    raise KeyboardInterrupt


@gnlqueue.task(max_attempts=1)
async def aexit_in_a_task() -> None:
    """Exit from an asyncio task of its own."""

    async def leave() -> None:
        raise SystemExit(7)

    await asyncio.gather(leave())


@gnlqueue.task(backoff=AT_ONCE)
async def awrite_note(text: str) -> None:
    """Use the database of the queue from the event loop."""
    await Note.objects.using(os.environ.get("GNLQUEUE_TEST_ALIAS", "default")).acreate(text=text)


@gnlqueue.task
def ask_to_retry(after: float | None = None) -> None:
    """Decide for itself to come again."""
    raise gnlqueue.Retry("not yet", after=after)


@gnlqueue.task
def give_up() -> None:
    """Decide for itself that it is no use."""
    raise gnlqueue.GiveUp("the order is gone")


@gnlqueue.task(retry_for=(OSError,), give_up_on=(FileNotFoundError,), backoff=AT_ONCE, max_attempts=2)
def raise_named(name: str) -> None:
    """Raise a built-in exception."""
    raise {"OSError": OSError, "FileNotFoundError": FileNotFoundError, "ValueError": ValueError}[name](name)


@gnlqueue.task
def return_unsendable() -> Any:
    """Return what could not be an argument."""
    return UNSENDABLE


@gnlqueue.task(max_attempts=1)
def raise_unsendable() -> None:
    """Raise with a text that could not be an argument."""
    raise RuntimeError(UNSENDABLE)


@gnlqueue.task(max_attempts=1)
def raise_it() -> None:
    """Raise what the test says."""
    raise UNSENDABLE


def hide(function: Any) -> Any:
    """A decorator that hides what it decorates."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@gnlqueue.task(max_attempts=1)
@hide
async def hidden_async_def() -> None:
    """An `async def` that cannot be seen."""
    events.tell("ran")


@gnlqueue.task(max_attempts=1)
@hide
def hidden_generator() -> Any:
    """A generator that cannot be seen."""
    yield events.tell("ran")


@gnlqueue.task(max_attempts=1)
@hide
async def hidden_async_generator() -> Any:
    """An asynchronous generator that cannot be seen."""
    yield events.tell("ran")


@gnlqueue.task
def return_rest() -> Any:
    """Work, and return what cannot be stored."""
    events.tell("worked")
    return (number for number in range(3))


@gnlqueue.task
def return_what_is_gone() -> Any:
    """Work, and return an object that raises whenever it is looked at."""
    events.tell("worked")

    def look() -> Any:
        raise LookupError("the row is gone")

    return SimpleLazyObject(look)


@gnlqueue.task(max_attempts=1)
async def aforget_to_await() -> Any:
    """Return what it should have awaited."""
    return asyncio.sleep(0)


@gnlqueue.task
def speak(language: str) -> str:
    """Set the language and a time zone; return the language from before."""
    before = translation.get_language()
    translation.activate(language)
    timezone.activate("Asia/Tokyo")
    return before


@gnlqueue.task
async def aspeak(language: str) -> str:
    """Do that on the event loop, where others come in between."""
    before = translation.get_language()
    translation.activate(language)
    await asyncio.sleep(0)
    assert translation.get_language() == language
    return before


@gnlqueue.task(takes_context=True)
def ask_connection(context: JobContext) -> int:
    """Say which database connection this is."""
    connection = connections[context.claimed.database]
    connection.ensure_connection()
    return id(connection.connection)


@gnlqueue.task(takes_context=True)
async def aask_connection(context: JobContext) -> int:
    """Say it of the connection behind sync_to_async."""

    def ask() -> int:
        connection = connections[context.claimed.database]
        connection.ensure_connection()
        return id(connection.connection)

    return await sync_to_async(ask)()


@gnlqueue.task(takes_context=True)
def check_in_loop(context: JobContext, swallow: bool = False) -> str:
    """Ask again and again whether to go on; with `swallow` take no notice of the answer."""
    events.tell("began", job=context.job_id)
    deadline = time.monotonic() + events.LONGEST
    while time.monotonic() < deadline:
        try:
            context.check()
        except BaseException as error:
            events.tell("interrupted", by=type(error).__name__)
            if swallow:
                return "never mind"
            raise
    return "nobody asked"


@gnlqueue.task
def ask_current_context() -> list[Any]:
    """Ask deep inside a task which job it is."""
    context = gnlqueue.current_context()
    return [context.job_id, context.attempt, context.run_id, context.job.task_name]


@gnlqueue.task
async def aask_current_context() -> list[Any]:
    """Ask it on the event loop."""
    await asyncio.sleep(0)
    context = gnlqueue.current_context()
    return [context.job_id, context.attempt]


@gnlqueue.task
def enqueue_next(left: int) -> None:
    """Enqueue a job that does the same, as often as is left, and tell how deep in calls this one is."""
    events.tell("depth", depth=len(inspect.stack(0)))
    if left:
        enqueue_next.enqueue(left - 1)


@gnlqueue.task(queue_name="other")
def work_elsewhere() -> None:
    """Do nothing, in another queue."""


@gnlqueue.task
def leave_transaction_open() -> None:
    """Begin a transaction and forget it."""
    connections[os.environ.get("GNLQUEUE_TEST_ALIAS", "default")].set_autocommit(False)


@gnlqueue.task
async def aleave_transaction_open() -> None:
    """Do that on the connection behind sync_to_async."""
    await sync_to_async(leave_transaction_open)()


@gnlqueue.task
def begin() -> None:
    """Begin a transaction of which Django knows nothing."""
    with connections[os.environ.get("GNLQUEUE_TEST_ALIAS", "default")].cursor() as cursor:
        cursor.execute("BEGIN")


@gnlqueue.task
async def abegin() -> None:
    """Do that on the connection behind sync_to_async."""
    await sync_to_async(begin)()
