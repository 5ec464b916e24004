"""Django's own tasks as our jobs: what `django.tasks` promises, on every database."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django's own tasks came with Django 6.0")

from asgiref.sync import async_to_sync
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.dispatch import Signal
from django.tasks import Task, TaskResult, TaskResultStatus, task, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone

import gnlqueue
from gnlqueue import queue, registry, signals
from gnlqueue.backends import GnlqueueBackend, install
from gnlqueue.models import Job, JobStatus
from gnlqueue.testing import enqueued, run_jobs
from gnlqueue.worker import Worker
from tests.app import tasks as our_tasks

BACKEND = "gnlqueue.backends.GnlqueueBackend"
ROOT = Path(__file__).parents[1]

on_sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@task
def give(value: Any = None) -> Any:
    return value


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task(takes_context=True, priority=7)
def fail_first(context: Any, how_often: int) -> list[Any]:
    result = context.task_result
    if context.attempt <= how_often:
        raise OSError("printer on fire")
    return [context.attempt, result.id, result.status, len(result.errors), len(set(result.worker_ids)), result.args]


@task(takes_context=True)
async def afail_first(context: Any, how_often: int) -> list[Any]:
    await asyncio.sleep(0)
    if context.attempt <= how_often:
        raise OSError("printer on fire")
    return [context.attempt, context.task_result.status]


@task
def leave(code: int) -> None:
    raise SystemExit(code)


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
def return_bytes(size: int) -> Any:
    return {"list": [b"bytes" * size]} if size else object()


@task
def take_step() -> str:
    return gnlqueue.current_context().step("one", lambda: "stepped")


@task
def cancel_itself() -> None:
    context = gnlqueue.current_context()
    queue.cancel(context.job)
    context.check()


def undecorated() -> None: ...


class Heard(list[tuple[str, Any, Any, Any]]):
    """What the signals of `django.tasks` said: name, sender, status, and the result itself."""

    def names(self) -> list[str]:
        return [f"{name} {status}" for name, _, status, _ in self]


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    receivers: list[tuple[Signal, Any]] = []
    for name, signal in {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}.items():

        def receive(sender: Any, task_result: TaskResult, name: str = name, **kwargs: Any) -> None:
            heard.append((name, sender, task_result.status, task_result))

        signal.connect(receive, weak=False)
        receivers.append((signal, receive))
    yield heard
    for signal, receive in receivers:
        signal.disconnect(receive)


def use(settings: Any, **backends: dict[str, Any]) -> None:
    settings.TASKS = {alias: {"BACKEND": BACKEND, **params} for alias, params in backends.items()}


@pytest.fixture(autouse=True)
def configured(settings: Any) -> Iterator[None]:
    """Our backend is the default one; what it registers is gone after the test."""
    before = [known.copy() for known in (registry._tasks, registry._aliases, registry._queues)]
    use(settings, default={"OPTIONS": {"max_attempts": 2}})
    yield
    for known, was in zip((registry._tasks, registry._aliases, registry._queues), before, strict=True):
        known.clear()
        known.update(was)
    signals.job_finished.disconnect(dispatch_uid="gnlqueue.backends")
    signals.job_attempt_failed.disconnect(dispatch_uid="gnlqueue.backends")


def run_until_nothing_waits() -> None:
    """Run jobs, without waiting for the backoff of those that failed."""
    while waiting := enqueued():
        for job in waiting:
            queue.reschedule(job, timedelta())
        run_jobs()


# One task


def test_a_task_runs_and_its_result_is_there(alias: str) -> None:
    result = give.enqueue({"a": [1, "naïve"]})
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 0, False)
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    (job,) = enqueued(give)
    assert (job.task_name, str(job.pk)) == ("tests.test_backends.give", result.id)
    assert (job.options, job.max_attempts, job.priority) == ({"backend": "default"}, 2, 0)
    assert give.get_result(result.id) == result
    with pytest.raises(ValueError, match="has not finished yet"):
        result.return_value  # noqa: B018

    worker = Worker()
    assert worker.run_once() == job
    result.refresh()

    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, {"a": [1, "naïve"]})
    assert (result.attempts, result.worker_ids, result.errors) == (1, [worker.worker_id], [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert result.started_at.tzinfo is not None
    assert (result.args, result.kwargs, result.backend) == ([{"a": [1, "naïve"]}], {}, "default")


def test_a_task_that_fails_is_ready_again_then_failed(alias: str) -> None:
    result = fail.enqueue(message="no paper")

    run_jobs()
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 1, False)
    assert result.errors[0].exception_class is ValueError
    assert fail.get_result(result.id).task.run_after > result.last_attempted_at

    run_until_nothing_waits()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)
    assert result.errors[1].traceback.endswith("ValueError: no paper\n")
    assert "in fail" in result.errors[1].traceback
    assert result.started_at < result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018


def test_the_context_is_djangos(alias: str) -> None:
    result = fail_first.enqueue(1)

    run_until_nothing_waits()
    result.refresh()

    assert result.return_value == [2, result.id, "RUNNING", 1, 2, [1]]
    assert result.attempts == 2


def test_async(alias: str) -> None:
    result = afail_first.enqueue(how_often=1)

    run_until_nothing_waits()
    result.refresh()

    assert result.return_value == [2, "RUNNING"]


@on_sqlite
def test_async_on_the_worker_s_event_loop(alias: str, heard: Heard) -> None:
    result = afail_first.enqueue(0)

    Worker(drain=True).run()
    result.refresh()

    assert result.return_value == [1, "RUNNING"]
    assert heard.names() == ["enqueued READY", "started RUNNING", "finished SUCCESSFUL"]


def test_enqueueing_and_asking_from_asynchronous_code(alias: str) -> None:
    async def enqueue_and_ask() -> TaskResult:
        result = await give.aenqueue(3)
        assert await give.aget_result(result.id) == result
        return result

    result = async_to_sync(enqueue_and_ask)()
    run_jobs()
    async_to_sync(result.arefresh)()

    assert result.return_value == 3


def test_a_task_commits_and_rolls_back_with_the_transaction(alias: str) -> None:
    with transaction.atomic(alias):
        kept = give.enqueue(1)
    with pytest.raises(RuntimeError), transaction.atomic(alias):  # noqa: PT012  the enqueue belongs in there
        lost = give.enqueue(2)
        raise RuntimeError

    assert [str(job.pk) for job in enqueued()] == [kept.id]
    with pytest.raises(TaskResultDoesNotExist):
        give.get_result(lost.id)


def test_a_deferred_task(alias: str) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = give.using(run_after=later).enqueue("later")

    assert result.task.run_after == later
    assert give.get_result(result.id).task.run_after == later
    assert give.get_result(result.id).status == TaskResultStatus.READY
    assert run_jobs() == []
    queue.reschedule(int(result.id), timedelta())
    assert [job.result for job in run_jobs()] == ["later"]


def test_priorities(alias: str) -> None:
    for priority in (0, -100, 100, 50):
        give.using(priority=priority).enqueue(priority)

    assert [job.result for job in run_jobs()] == [100, 50, 0, -100]
    assert fail_first.enqueue(0).task.priority == 7
    assert [job.priority for job in enqueued()] == [7]


@on_sqlite
def test_queues(alias: str, settings: Any) -> None:
    use(settings, default={"QUEUES": ["default", "emails"]})
    result = give.using(queue_name="emails").enqueue(1)

    assert give.get_result(result.id).task.queue_name == "emails"
    assert [job.queue_name for job in run_jobs(["emails"])] == ["emails"]
    assert "emails" in registry.default_queues()
    with pytest.raises(InvalidTask, match="Queue 'slow' is not valid"):
        give.using(queue_name="slow")


@on_sqlite
def test_any_queue_is_one_that_we_can_name(alias: str, settings: Any) -> None:
    use(settings, default={"QUEUES": []})
    assert give.using(queue_name="slow").enqueue().task.queue_name == "slow"
    with pytest.raises(InvalidTask, match="'Emails & more' is not a queue name"):
        give.using(queue_name="Emails & more")


@on_sqlite
def test_results_become_json_as_django_does_it(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    results = [return_bytes.enqueue(size) for size in (1, 0)]
    run_jobs()

    assert [return_bytes.get_result(result.id).status for result in results] == ["SUCCESSFUL", "SUCCESSFUL"]
    assert [return_bytes.get_result(result.id).return_value for result in results] == [{"list": ["bytes"]}, None]
    assert "is done, but its result was not stored: result is a builtins.object" in caplog.text


@on_sqlite
def test_arguments_become_json_as_django_does_it(alias: str) -> None:
    result = give.enqueue(value=(1, b"two", {"three": (3,)}))
    assert (result.args, result.kwargs) == ([], {"value": [1, "two", {"three": [3]}]})
    assert result == give.get_result(result.id)
    for refused, error in (
        (object(), TypeError),
        (float("nan"), gnlqueue.PayloadError),
        ({1: 2}, gnlqueue.PayloadError),
    ):
        with pytest.raises(error):
            give.enqueue(refused)
    with pytest.raises(TypeError, match=r"tests\.test_backends\.give: too many positional arguments"):
        give.enqueue(1, 2)
    assert len(enqueued()) == 1


@on_sqlite
def test_system_exit_is_a_failure_and_only_ctrl_c_passes(alias: str) -> None:
    result = leave.enqueue(3)
    run_until_nothing_waits()
    result.refresh()
    assert (result.status, result.errors[1].exception_class) == (TaskResultStatus.FAILED, SystemExit)

    result = interrupt.enqueue()
    with pytest.raises(KeyboardInterrupt):
        run_jobs()
    result.refresh()
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.READY, 0, [])


@on_sqlite
def test_a_task_may_take_steps(alias: str) -> None:
    result = take_step.enqueue()
    run_jobs()
    result.refresh()
    assert result.return_value == "stepped"


@on_sqlite
def test_cancelled_tasks_have_failed(alias: str) -> None:
    waiting, running = give.enqueue(1), cancel_itself.enqueue()
    queue.cancel(int(waiting.id))
    run_jobs()

    for result, attempts in ((waiting, 0), (running, 1)):
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, attempts)
        assert result.errors[0].exception_class is gnlqueue.JobCancelled
        assert result.finished_at is not None


@pytest.mark.parametrize(
    ("status", "expected"),
    [("scheduled", "READY"), ("ready", "READY"), ("blocked", "READY"), ("in_progress", "RUNNING"),
     ("done", "SUCCESSFUL"), ("dead", "FAILED"), ("cancelled", "FAILED")],
)  # fmt: skip
@on_sqlite
def test_every_status_of_ours_is_one_of_djangos(alias: str, status: str, expected: str) -> None:
    result = give.enqueue(1)
    Job.objects.using(alias).update(status=status, last_error="a human said so")
    result.refresh()
    assert result.status == expected
    assert len(result.errors) == (expected == "FAILED")
    assert set(JobStatus.values) == {"scheduled", "ready", "blocked", "in_progress", "done", "dead", "cancelled"}


@on_sqlite
def test_an_attempt_whose_worker_died_is_an_error_without_exception(alias: str) -> None:
    result = give.enqueue("in the end")
    claimed = queue.claim(worker_id="gone", lease=60)
    queue.fail(claimed, "The worker gone died or lost contact.", after=0)

    run_jobs()
    result.refresh()

    assert (result.return_value, result.worker_ids[0], result.attempts) == ("in the end", "gone", 2)
    assert result.errors[0].exception_class is gnlqueue.GnlqueueError
    assert result.errors[0].traceback == "The worker gone died or lost contact."


# Whose result it is


@pytest.mark.parametrize(
    "id",
    ["", "0", "-1", "01", "1.0", "٣", " 1", "x" * 5000, "9" * 5000, str(2**63), str(2**63 - 1), 1],
    ids=lambda id: repr(id)[:21],
)
@on_sqlite
def test_ids_that_no_result_has(alias: str, id: Any) -> None:
    give.enqueue(1)
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(id)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(give.aget_result)(id)


@on_sqlite
def test_results_of_others(alias: str, settings: Any) -> None:
    use(settings, default={}, other={"OPTIONS": {"max_attempts": 1}})
    result, ours = give.using(backend="other").enqueue(1), our_tasks.nothing.enqueue()

    assert (result.backend, result.task.backend) == ("other", "other")
    assert task_backends["other"].get_result(result.id) == result
    for id in (result.id, str(ours.pk)):
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(id)
    with pytest.raises(TaskResultMismatch):
        fail.using(backend="other").get_result(result.id)
    assert [job.max_attempts for job in enqueued(give)] == [1]


@on_sqlite
def test_enqueueing_by_name(alias: str) -> None:
    """A Django task is as registered as any other; its backend is then that of its declaration."""
    give.enqueue("known from here on")
    job = gnlqueue.enqueue("tests.test_backends.give", "by name")
    assert job.options is None
    assert [each.result for each in run_jobs()] == ["known from here on", "by name"]
    assert give.get_result(str(job.pk)).return_value == "by name"


@on_sqlite
def test_a_backend_that_is_not_there_any_more(alias: str, settings: Any) -> None:
    use(settings, default={}, old={"QUEUES": []})
    give.enqueue("declared for the default one")
    result = give.using(backend="old", queue_name="older").enqueue(1)
    use(settings, default={})

    run_jobs(["older"])

    assert give.get_result(result.id).return_value == 1
    assert give.get_result(result.id).task.queue_name == "default"  # no backend has the queue any more


@on_sqlite
def test_the_task_called_outside_of_a_job_is_just_the_function(alias: str, heard: Heard) -> None:
    for each in (give, afail_first):
        each.enqueue(0)
    heard.clear()
    assert registry.get_task("tests.test_backends.give").call(b"as it is") == b"as it is"
    assert async_to_sync(registry.get_task("tests.test_backends.give").acall)(2) == 2
    context = SimpleNamespace(attempt=1, task_result=SimpleNamespace(status="as it is"))
    assert registry.get_task("tests.test_backends.afail_first").call(context, 0) == [1, "as it is"]
    assert heard == []


def test_another_database(alias: str, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "DATABASE": "default"}
    use(settings, default={"OPTIONS": {"database": alias}})
    result = give.enqueue(1)
    assert [job.pk for job in enqueued(give, database=alias)] == [int(result.id)]
    run_jobs(database=alias)
    result.refresh()
    assert result.return_value == 1


@on_sqlite
def test_each_thread_has_a_backend_of_its_own(alias: str) -> None:
    seen: list[Any] = [task_backends["default"]]
    thread = threading.Thread(target=lambda: seen.append(task_backends["default"]))
    thread.start()
    thread.join()
    assert seen[0] is not seen[1]
    assert all(isinstance(each, GnlqueueBackend) for each in seen)


# Signals, and what Django logs of them


def test_signals(alias: str, heard: Heard) -> None:
    good, bad = give.enqueue(1), fail.enqueue("x")
    run_until_nothing_waits()

    assert sorted(f"{name} {status} {result.id}" for name, _, status, result in heard) == sorted(
        [
            f"enqueued READY {good.id}", f"started RUNNING {good.id}", f"finished SUCCESSFUL {good.id}",
            f"enqueued READY {bad.id}", f"started RUNNING {bad.id}", f"started RUNNING {bad.id}",
            f"finished FAILED {bad.id}",
        ]
    )  # fmt: skip
    assert {sender for _, sender, _, _ in heard} == {GnlqueueBackend}
    (finished,) = [result for name, _, _, result in heard if name == "finished" and result.id == good.id]
    assert finished.return_value == 1
    assert finished == give.get_result(good.id)


@on_sqlite
def test_a_task_that_was_cancelled_has_finished(alias: str, heard: Heard) -> None:
    cancel_itself.enqueue()
    run_jobs()
    assert heard.names() == ["enqueued READY", "started RUNNING", "finished FAILED"]


@on_sqlite
def test_our_own_tasks_send_only_our_own_signals(alias: str, heard: Heard) -> None:
    task_backends["default"]
    our_tasks.nothing.enqueue()
    our_tasks.give_up.enqueue()
    run_jobs()
    assert heard == []


@on_sqlite
def test_a_receiver_that_raises_loses_nothing(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    def raise_it(**kwargs: Any) -> None:
        raise LookupError("bad receiver")

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(raise_it)
    try:
        result = give.enqueue(1)
        run_jobs()
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(raise_it)
    result.refresh()
    assert result.return_value == 1
    assert caplog.text.count("LookupError: bad receiver") == 3


@on_sqlite
def test_django_logs_the_exception_or_nothing(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django.tasks")
    good, bad = give.enqueue(1), fail.enqueue("no paper")
    run_until_nothing_waits()

    records = [record for record in caplog.records if record.name == "django.tasks"]
    finished = {
        record.args[0]: record for record in records if "state=SUCC" in record.message or "=FAI" in record.message
    }
    assert finished[good.id].exc_info is None
    assert finished[bad.id].exc_info[0] is ValueError
    assert finished[bad.id].levelname == "ERROR"
    assert f"Task id={good.id} path=tests.test_backends.give enqueued backend=default" in caplog.messages
    assert f"Task id={good.id} path=tests.test_backends.give state=RUNNING" in caplog.messages


# What is refused


def test_tasks_that_are_none() -> None:
    with pytest.raises(InvalidTask, match="module level"):
        task(lambda: None)
    with pytest.raises(InvalidTask, match="priority must be"):
        give.using(priority=101)
    with pytest.raises(InvalidTask, match="aware datetime"):
        give.using(run_after=timezone.now().replace(tzinfo=None))
    assert task(priority=1.0)(undecorated).priority == 1.0
    assert registry.get_task("tests.test_backends.undecorated").options.priority == 1


@on_sqlite
def test_enqueueing_validates_itself(alias: str, settings: Any) -> None:
    """A task may have been made before the settings were what they are."""
    use(settings, default={"QUEUES": ["emails"]})
    with pytest.raises(InvalidTask, match="Queue 'default' is not valid"):
        give.enqueue(1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"OPTIONS": {"max_attempt": 1}},
            r"TASKS\['default'\] has no option 'max_attempt' \(did you mean \"max_attempts",
        ),
        ({"OPTIONS": {"max_attempts": 0}}, r"TASKS\['default'\]: max_attempts must be an integer from 1"),
        ({"OPTIONS": {"database": "defualt"}}, r"DATABASES has no alias 'defualt' \(did you mean \"default\"\?\)"),
        ({"QUEUES": ["default", "E-Mails"]}, r"TASKS\['default'\]: 'E-Mails' is not a queue name"),
    ],
)
def test_settings_that_make_no_sense(settings: Any, params: dict[str, Any], message: str) -> None:
    use(settings, default=params)
    with pytest.raises(ImproperlyConfigured, match=message):
        task_backends["default"]
    install()  # leaves it to the check
    with pytest.raises(ImproperlyConfigured, match=message):
        checks.run_checks()


def test_checks(settings: Any) -> None:
    assert task_backends["default"].check() == []
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "gnlqueue"]
    assert [message.id for message in task_backends["default"].check()] == ["gnlqueue.E011"]


def test_what_the_backend_can() -> None:
    backend = task_backends["default"]
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_an_older_django_is_told_so() -> None:
    code = "import django; django.VERSION = (5, 2, 0, 'final', 0); import gnlqueue.backends"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "ImproperlyConfigured: gnlqueue.backends is for Django's own tasks, which came with" in done.stderr


# How tasks are known


def test_a_task_is_known_once_it_is_made() -> None:
    assert registry.find_task("tests.test_backends.undecorated") is None
    made = task(undecorated)
    known = registry.get_task("tests.test_backends.undecorated")
    assert (known.func, known.declared, known.options.max_attempts) == (undecorated, made, 2)
    made.using(priority=3)
    assert registry.get_task("tests.test_backends.undecorated") is known


def test_tasks_of_other_backends_are_known_too(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = {
        "default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []},
        "ours": {"BACKEND": BACKEND, "QUEUES": ["ours"]},
    }
    made = task(queue_name="Whatever & more")(undecorated)
    monkeypatch.setattr(our_tasks, "undecorated", made, raising=False)
    assert registry.find_task("tests.test_backends.undecorated") is None

    install()

    assert isinstance(made, Task)
    assert registry.get_task("tests.test_backends.undecorated").options.queue_name == "default"
    assert "ours" in registry.default_queues()


def test_nothing_is_known_without_a_backend_of_ours(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = {
        "default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        "wrong": {"BACKEND": "no.where"},
    }
    monkeypatch.setattr(our_tasks, "undecorated", task(undecorated), raising=False)
    install()
    assert registry.find_task("tests.test_backends.undecorated") is None


PROJECT = {
    "settings.py": f"""
        DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3",
                                   "OPTIONS": {{"transaction_mode": "IMMEDIATE"}}}}}}
        INSTALLED_APPS = ["shop", "gnlqueue"]
        TASKS = {{"default": {{"BACKEND": "{BACKEND}"}}}}
        USE_TZ = True
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        import sys
        from django.tasks import task
        from shop import mails
        assert "gnlqueue.models" not in sys.modules
    """,
    "shop/mails.py": """
        from django.tasks import task

        @task
        def send(number):
            return number + 1
    """,
    "shop/tasks.py": """
        from django.tasks import task

        @task
        async def pay(number):
            return number + 2
    """,
}


def test_a_project_from_its_settings_to_its_worker(tmp_path: Path) -> None:
    """Tasks are declared before the apps are ready; the worker is another process, which only imports them."""
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()))

    def python(*words: str) -> str:
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        done = subprocess.run(
            [sys.executable, "-W", "error", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python("-m", "django", "migrate")
    enqueue = (
        "import django; django.setup(); from shop import mails, tasks; mails.send.enqueue(1); tasks.pay.enqueue(1)"
    )
    python("-c", enqueue)
    python("-m", "django", "runworker", "--drain")
    ask = "import django; django.setup(); from shop import mails, tasks; "
    ask += "print(mails.send.get_result('1').return_value, tasks.pay.get_result('2').return_value)"
    assert python("-c", ask) == "2 3\n"
