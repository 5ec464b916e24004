"""The backend in the settings; which tasks it refuses, and which it knows."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django's own tasks came with Django 6.0")

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.tasks import Task, task, task_backends
from django.tasks.exceptions import InvalidTask
from django.utils import timezone

from gnlqueue import registry
from gnlqueue.backends import install
from tests.app import tasks as our_tasks
from tests.backends.conftest import BACKEND, ROOT, on_sqlite, use
from tests.backends.tasks import give, undecorated


def test_tasks_that_are_none() -> None:
    with pytest.raises(InvalidTask, match="module level"):
        task(lambda: None)
    with pytest.raises(InvalidTask, match="priority must be"):
        give.using(priority=101)
    with pytest.raises(InvalidTask, match="aware datetime"):
        give.using(run_after=timezone.now().replace(tzinfo=None))
    assert task(priority=1.0)(undecorated).priority == 1.0
    assert registry.get_task("tests.backends.tasks.undecorated").options.priority == 1


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


def test_a_task_is_known_once_it_is_made() -> None:
    assert registry.find_task("tests.backends.tasks.undecorated") is None
    made = task(undecorated)
    known = registry.get_task("tests.backends.tasks.undecorated")
    assert (known.func, known.declared, known.options.max_attempts) == (undecorated, made, 2)
    made.using(priority=3)
    assert registry.get_task("tests.backends.tasks.undecorated") is known


def test_tasks_of_other_backends_are_known_too(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = {
        "default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []},
        "ours": {"BACKEND": BACKEND, "QUEUES": ["ours"]},
    }
    made = task(queue_name="Whatever & more")(undecorated)
    monkeypatch.setattr(our_tasks, "undecorated", made, raising=False)
    assert registry.find_task("tests.backends.tasks.undecorated") is None

    install()

    assert isinstance(made, Task)
    assert registry.get_task("tests.backends.tasks.undecorated").options.queue_name == "default"
    assert "ours" in registry.default_queues()


def test_nothing_is_known_without_a_backend_of_ours(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = {
        "default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        "wrong": {"BACKEND": "no.where"},
    }
    monkeypatch.setattr(our_tasks, "undecorated", task(undecorated), raising=False)
    install()
    assert registry.find_task("tests.backends.tasks.undecorated") is None


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
