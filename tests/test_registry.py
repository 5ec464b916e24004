"""Tasks: what can be one, what it is called, and how it is found again."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import gnlqueue
from gnlqueue import Backoff, Call, DuplicateTask, InvalidTask, Task, UnknownTask, registry
from gnlqueue.registry import get_task, registered
from tests.queue.tasks import charge, send_receipt


@pytest.fixture(autouse=True)
def registry_restored() -> Iterator[None]:
    """What a test registers is gone after it."""
    tasks, aliases = dict(registry._tasks), dict(registry._aliases)
    yield
    for known, before in ((registry._tasks, tasks), (registry._aliases, aliases)):
        known.clear()
        known.update(before)


def add(one: int, other: int = 1) -> int:
    return one + other


async def add_later(one: int) -> int:
    return one + 1


def generator() -> Iterator[int]:
    yield 1


def with_context(context: Any, number: int) -> int:
    return number


def context_is_second(number: int, context: Any) -> None: ...


def takes_anything(*args: Any, **kwargs: Any) -> None: ...


# Names


def test_a_task_is_called_by_the_path_of_its_function() -> None:
    assert gnlqueue.task(add).name == "tests.test_registry.add"
    assert get_task("tests.test_registry.add").func is add


def test_a_task_may_have_a_name_that_survives_a_move() -> None:
    made = gnlqueue.task(name="shop.add", aliases=["old.shop.add"])(add)
    assert get_task("shop.add") is made
    assert get_task("old.shop.add") is made
    assert "old.shop.add" not in registered()
    assert made.module_path == "tests.test_registry.add"


def test_an_unknown_name_comes_with_the_closest_there_is() -> None:
    with pytest.raises(
        UnknownTask, match=r'No task \'tests.queue.tasks.charg\' .*did you mean "tests.queue.tasks.charge"'
    ):
        get_task("tests.queue.tasks.charg")


def test_a_name_that_was_mistaken_for_an_alias_is_suggested_too() -> None:
    gnlqueue.task(name="shop.add", aliases=["old.shop.addition"])(add)
    with pytest.raises(UnknownTask, match=r'did you mean "old.shop.addition"'):
        get_task("old.shop.additio")


def test_two_functions_cannot_have_one_name() -> None:
    gnlqueue.task(name="shop.add")(add)
    with pytest.raises(
        DuplicateTask, match=r"'shop.add' is taken by tests.test_registry.add; .*add_later needs another"
    ):
        gnlqueue.task(name="shop.add")(add_later)


def test_an_alias_cannot_be_another_s_name() -> None:
    gnlqueue.task(name="shop.add")(add)
    with pytest.raises(DuplicateTask, match=r"'shop.add' is taken"):
        gnlqueue.task(name="shop.later", aliases=["shop.add"])(add_later)
    assert "shop.later" not in registered()


def test_a_name_cannot_be_another_s_alias() -> None:
    gnlqueue.task(name="shop.add", aliases=["old.add"])(add)
    with pytest.raises(DuplicateTask, match=r"'old.add' is taken"):
        gnlqueue.task(name="old.add")(add_later)


def test_a_module_that_is_loaded_again_replaces_its_tasks() -> None:
    gnlqueue.task(name="shop.add", priority=1)(add)
    again = gnlqueue.task(name="shop.add", priority=2)(add)
    assert get_task("shop.add") is again


@pytest.mark.parametrize("name", [" ", "a b", "a/b", "n" * 201, "a\0", "a\n", 5])
def test_a_name_of_other_characters_is_refused(name: Any) -> None:
    with pytest.raises(InvalidTask, match="is not a task name: use 1 to 200 letters"):
        gnlqueue.task(name=name)(add)


def test_registered_tasks_are_sorted_by_name() -> None:
    assert list(registered()) == sorted(registered())


# What can be a task


def local() -> Any:
    def inside() -> None: ...

    return inside


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (local(), {}, "is defined inside another function, where no worker can find it"),
        (lambda: None, {}, "<lambda> has no name by which a worker could find it: write a function with def"),
        (generator, {}, "is a generator: calling it would run nothing"),
        (int, {}, "@task goes on a function, not on <class 'int'>"),
        (print, {}, "@task goes on a function"),
        (with_context, {}, "has a first parameter 'context': add takes_context=True, or rename it"),
        (add, {"takes_context": True}, "its first parameter must be named 'context'"),
        (context_is_second, {"takes_context": True}, "its first parameter must be named 'context'"),
        (add, {"run_after": timedelta(1)}, r"run_after belongs to one call: use .using\(run_after=…\)"),
        (add, {"idempotency_key": "k"}, "idempotency_key belongs to one call"),
        (add, {"database": "default"}, "database belongs to one call"),
        (add, {"prioritty": 1}, r"There is no option 'prioritty' \(did you mean \"priority\"\?\)"),
        (add, {"priority": 101}, "an integer from -100 to 100"),
        (add, {"priority": 1.0}, "an integer from -100 to 100"),
        (add, {"max_attempts": 0}, "from 1 to 1000"),
        (add, {"max_attempts": 1001}, "from 1 to 1000"),
        (add, {"max_attempts": True}, "from 1 to 1000"),
        (add, {"backoff": 5}, "backoff must be a gnlqueue.Backoff"),
        (add, {"timeout": -1}, "timeout must lie between"),
        (add, {"timeout": 0}, "timeout must be more than 0"),
        (add, {"retry_for": (1,)}, "retry_for must be a tuple of exception classes"),
        (add, {"retry_for": "OSError"}, "retry_for must be a tuple of exception classes, not 'OSError'"),
        (add, {"countdown": 5}, r"There is no option 'countdown': use .using\(run_after=…\)"),
        (
            add,
            {"bind": True},
            r"There is no option 'bind': use takes_context=True, with a first parameter named 'context'",
        ),
        (
            add,
            {"max_retries": 3},
            r"There is no option 'max_retries': use max_attempts=…, where the first one counts too",
        ),
        (add, {"time_limit": 3}, r"There is no option 'time_limit': use timeout="),
        (add, {"give_up_on": [int]}, "give_up_on must be a tuple of exception classes"),
        (add, {"queue_name": "Emails"}, "'Emails' is not a queue name"),
    ],
)
def test_what_cannot_be_a_task_is_refused_where_it_is_declared(function: Any, options: Any, message: str) -> None:
    before = registered()
    with pytest.raises(InvalidTask, match=message):
        gnlqueue.task(**options)(function)
    assert registered() == before


# Calling


def test_calling_a_task_calls_its_function() -> None:
    assert gnlqueue.task(add)(1, other=2) == 3


def test_a_task_can_be_called_from_the_other_world() -> None:
    plain, later = gnlqueue.task(add), gnlqueue.task(add_later)
    assert plain.call(1) == 2
    assert later.call(1) == 2
    assert asyncio.run(plain.acall(1)) == 2
    assert asyncio.run(later.acall(1)) == 2
    assert (plain.is_async, later.is_async) == (False, True)


def test_an_external_task_has_no_function_to_call() -> None:
    billing = gnlqueue.external_task("billing.charge")
    with pytest.raises(UnknownTask, match=r"'billing.charge' is an external task: another project has its function"):
        billing(1)
    assert billing.module_path == "billing.charge"
    assert "billing.charge" not in registered()


# Binding and options


def test_a_bound_call_is_a_value() -> None:
    assert send_receipt.bind(1, copy_to="a") == Call(send_receipt, (1,), {"copy_to": "a"})


def test_the_caller_does_not_give_the_context() -> None:
    assert charge.bind(1).args == (1,)
    with pytest.raises(TypeError, match=r"tests.queue.tasks.charge: too many positional arguments"):
        charge.bind(object(), 1)  # type: ignore[call-arg, arg-type]


def test_a_function_that_takes_anything_takes_anything() -> None:
    assert gnlqueue.task(takes_anything).bind(1, a=2).kwargs == {"a": 2}


def test_options_never_mix_with_the_task_s_own_arguments() -> None:
    call = gnlqueue.task(takes_anything).bind(priority=5)
    assert call.kwargs == {"priority": 5}
    assert call.task.options.priority == 0


def test_using_refuses_a_database_that_is_none() -> None:
    with pytest.raises(InvalidTask, match=r"an alias of DATABASES, not 'defualt' \(did you mean \"default\"\?\)"):
        gnlqueue.task(add).using(database="defualt")


def test_using_makes_another_task_and_leaves_the_first() -> None:
    urgent = charge.using(priority=100, timeout=timedelta(minutes=1))
    assert (urgent.options.priority, urgent.options.timeout, urgent.options.queue_name) == (100, 60.0, "billing")
    assert charge.options.priority == 10
    assert urgent.overrides == {"priority": 100, "timeout": 60.0}


def test_one_exception_class_will_do_for_a_tuple() -> None:
    made = gnlqueue.task(retry_for=OSError, give_up_on=[ValueError])(add)
    assert (made.options.retry_for, made.options.give_up_on) == ((OSError,), (ValueError,))


def test_a_task_has_the_attributes_of_django_s_own() -> None:
    names = ("name", "func", "module_path", "call", "acall", "using", "enqueue", "aenqueue")
    assert all(hasattr(send_receipt, name) for name in names)
    assert isinstance(send_receipt, Task)


def test_a_task_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        send_receipt.name = "other"  # type: ignore[misc]


def test_a_backoff_can_be_given_where_a_task_is_declared() -> None:
    backoff = Backoff(base=1, factor=2, cap=60, jitter=0.1)
    assert gnlqueue.task(backoff=backoff)(add).options.backoff == backoff
