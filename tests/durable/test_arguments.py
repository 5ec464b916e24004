"""Arguments that do not fit a step's function: an ordinary error, before anything is stored or called."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from gnlqueue import JobContext, queue
from gnlqueue.models import Job, JobStatus
from tests.durable.conftest import KINDS, Ledger, attempt, crashing, entries, entry, leave_started, now_do, on_sqlite

Play = Callable[..., Job]

pytestmark = on_sqlite


def charge(card: str, cents: int) -> str:
    return f"{cents} from {card}"


async def acharge(card: str, cents: int) -> str:
    return charge(card, cents)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "args", "wrong"),
    [
        ({}, ("4242",), "missing a required argument: 'cents'"),
        ({}, ("4242", 1, 2), "too many positional arguments"),
        ({"pass_key_as": "token"}, ("4242", 1), "unexpected keyword argument 'token'"),
    ],
    ids=["missing", "too many", "pass_key_as"],
)
def test_arguments_that_do_not_fit_are_a_failed_attempt(
    play: Play, kind: str, options: Any, args: Any, wrong: str
) -> None:
    told: list[TypeError] = []

    def handler(context: JobContext) -> None:
        try:
            getattr(context.using(**options), kind)("charge card", charge, *args)
        except TypeError as error:
            told.append(error)
            raise

    job = play(handler, max_attempts=2)
    assert attempt(job).status == JobStatus.SCHEDULED
    assert "'charge card'" in str(told[0])
    assert wrong in str(told[0])
    assert not entries(job)
    now_do(lambda context: getattr(context, kind)("charge card", charge, "4242", 1))
    assert attempt(job).result == "1 from 4242"


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_on_the_event_loop(aplay: Play, kind: str) -> None:
    function = charge if kind == "atomic_step" else acharge
    job = aplay(lambda context: getattr(context, f"a{kind}")("charge card", function, "4242"))
    assert attempt(job).status == JobStatus.SCHEDULED
    assert "missing a required argument: 'cents'" in (queue.get(job).last_error or "")
    assert not entries(job)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_called_is_said_before_it_is_stored(play: Play, kind: str) -> None:
    """As where somebody calls the function, and passes what it returned."""
    job = play(lambda context: getattr(context, kind)("charge card", charge("4242", 1)))
    assert attempt(job).status == JobStatus.SCHEDULED
    assert "pass the function itself" in (queue.get(job).last_error or "")
    assert not entries(job)


def with_gateway(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function("the gateway", *args)

    return wrapper


@with_gateway
def charge_at(gateway: str, card: str) -> str:
    return f"{card} at {gateway}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_is_wrapped_may_take_other_arguments_than_it_shows(play: Play, kind: str) -> None:
    job = play(lambda context: getattr(context, kind)("charge card", charge_at, "4242"))
    assert attempt(job).result == "4242 at the gateway"


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_without_a_signature_is_called(play: Play, kind: str) -> None:
    job = play(lambda context: getattr(context, kind)("largest", max, 1, 2))
    assert attempt(job).result == 2


def test_a_step_that_is_done_is_replayed_whatever_its_function_takes_now(play: Play, ledger: Ledger) -> None:
    job = play(crashing(lambda context: context.step("charge card", ledger.add, "4242")))
    attempt(job)
    now_do(lambda context: context.step("charge card", lambda: None, "4242"))
    assert attempt(job).result == "4242"


def test_a_step_that_was_caught_in_a_crash_stays_in_doubt(play: Play) -> None:
    """Nothing that is known of this attempt says what became of the one before."""
    job = play(lambda context: context.using(match_args=False).step("charge card", charge, "4242"))
    leave_started(job, "charge card")
    assert attempt(job).status == JobStatus.BLOCKED
    assert entry(job).status == "in_doubt"


def test_the_effect_key_is_not_in_the_way_of_recover(play: Play) -> None:
    def recover(card: str) -> Any:
        raise AssertionError("nothing is in doubt")

    def keyed(card: str, *, token: str) -> str:
        return token

    def handler(context: JobContext) -> Any:
        steps = context.using(pass_key_as="token", recover=recover)
        return [steps.step("charge card", keyed, "4242"), context.effect_key("charge card")]

    passed, key = attempt(play(handler)).result
    assert passed == key


def test_an_error_of_the_function_itself_is_still_a_doubt(play: Play) -> None:
    """It was entered, so nobody knows what it has done."""
    job = play(lambda context: context.step("charge card", lambda: charge("4242")))  # type: ignore[call-arg]
    assert attempt(job).status == JobStatus.BLOCKED


def test_what_a_function_says_of_itself_is_not_what_it_takes(play: Play) -> None:
    """A decorator may pass an argument of its own, and publish the signature without it, or with another."""

    def inner(session: str, cents: int) -> str:
        return f"{cents} in {session}"

    def outer(cents: int) -> str:
        return inner("s1", cents)

    outer.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]
    job = play(lambda context: context.step("charge card", outer, 5))
    assert attempt(job).result == "5 in s1"


class Proxy:
    """Stands for a call of another machine, as those of `xmlrpc.client` do: it has attributes of all names."""

    def __getattr__(self, name: str) -> "Proxy":
        return Proxy()

    def __call__(self) -> str:
        return "ABC"


def renamed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__qualname__ = name
    return function


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (str.upper, ("abc",), "str.upper"),
        ("abc".upper, (), "str.upper"),
        (functools.partial(str.upper, "abc"), (), "str.upper"),
        (Proxy(), (), f"{__name__}.Proxy"),
        (renamed(lambda: "ABC", "no\0name\ud800"), (), f"{__name__}.no\\x00name\\ud800"),
        (renamed(lambda: "ABC", "x" * 300), (), f"{__name__}.{'x' * 300}"[:200]),
    ],
    ids=["in C", "a method in C", "partial", "a proxy", "what no database stores", "long"],
)
def test_whatever_can_be_called_has_a_name_that_can_be_stored(
    play: Play, function: Callable[..., Any], args: tuple[Any, ...], name: str
) -> None:
    job = play(lambda context: context.step("shout", function, *args))
    assert attempt(job).result == "ABC"
    assert entry(job).function == name


@pytest.mark.parametrize(
    ("options", "error", "wrong"),
    [
        ({"safe_error": OSError}, TypeError, r"no option 'safe_error' \(did you mean \"safe_errors\"\?\)"),
        ({"timeout": 3}, TypeError, r"A step has no option 'timeout'\. Its options are: recover, safe_errors, "),
        ({"backoff": 3}, ValueError, r"backoff of a step must be a gnlqueue\.Backoff, not 3"),
        ({"recover": "ask"}, ValueError, r"recover must be a function, not 'ask'"),
        ({"pass_key_as": 3}, ValueError, r"pass_key_as must be the name of an argument, not 3"),
        ({"on_doubt": "ask"}, ValueError, r'on_doubt must be "block", "rerun" or "fail", not \'ask\''),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_that_make_no_sense_are_refused_before_the_step_begins(
    play: Play, options: Any, error: type[Exception], wrong: str
) -> None:
    """What is found only when the step has gone wrong is found too late: then its outcome is in doubt."""
    told: list[str] = []

    def handler(context: JobContext) -> None:
        with pytest.raises(error, match=wrong):
            context.using(**options).step("charge", charge, "4242", 1)
        told.append("refused")

    job = attempt(play(handler))
    assert (job.status, told, list(entries(job))) == (JobStatus.DONE, ["refused"], [])
