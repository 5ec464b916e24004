"""The public names, and that they are there before Django is ready."""

import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gnlqueue
from gnlqueue import exceptions, queue

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("module", [gnlqueue, queue], ids=lambda module: module.__name__)
def test_all_is_sorted_and_each_name_is_there(module: ModuleType) -> None:
    assert module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_all_has_every_public_name_that_is_ours() -> None:
    ours = {
        name
        for name, value in vars(gnlqueue).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("gnlqueue")
    }
    assert ours <= set(gnlqueue.__all__)


def test_every_error_is_exported_and_stands_in_the_drawing() -> None:
    errors = {
        name
        for name, value in vars(exceptions).items()
        if inspect.isclass(value) and value.__module__ == exceptions.__name__
    }
    assert errors <= set(gnlqueue.__all__)
    assert not [name for name in errors if name not in (exceptions.__doc__ or "")]


def test_no_submodule_has_the_name_of_an_exported_function() -> None:
    """Importing it would replace the function in the package."""
    submodules = {module.name for module in pkgutil.iter_modules(gnlqueue.__path__)}
    assert submodules & set(gnlqueue.__all__) == {"queue"}
    assert inspect.ismodule(gnlqueue.queue)
    verbs = {module.name for module in pkgutil.iter_modules(queue.__path__)}
    assert not verbs & set(queue.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gnlqueue' has no attribute 'enqueu'"):
        gnlqueue.enqueu  # noqa: B018


def in_a_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_task_can_be_declared_without_any_settings() -> None:
    code = """if True:
        import gnlqueue

        @gnlqueue.task(queue_name="emails")
        def send(number: int) -> int:
            return number + 1

        print(send(1), send.name, send.bind(2).args)
    """
    assert in_a_new_process(code) == "2 __main__.send (2,)\n"


def test_enqueueing_before_the_app_registry_is_ready_says_so() -> None:
    code = """if True:
        import gnlqueue
        from django.core.exceptions import AppRegistryNotReady

        @gnlqueue.task
        def send() -> None: ...

        try:
            send.enqueue()
        except AppRegistryNotReady as error:
            print(error)
    """
    assert "Apps aren't loaded yet." in in_a_new_process(code, DJANGO_SETTINGS_MODULE="tests.settings")


def test_importing_the_package_imports_no_model() -> None:
    code = "import sys, gnlqueue; print([name for name in sys.modules if 'gnlqueue.models' in name])"
    assert in_a_new_process(code) == "[]\n"
