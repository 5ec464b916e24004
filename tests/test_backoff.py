"""How long a failed job waits."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnlqueue import Backoff, InvalidTask
from gnlqueue.lengths import seconds


def test_a_delay_doubles_up_to_its_cap() -> None:
    backoff = Backoff(base=1, factor=2, cap=60, jitter=0)
    assert [backoff.delay(attempt).total_seconds() for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


@given(
    base=st.floats(0, 10**9),
    factor=st.floats(1, 10**9),
    cap=st.floats(0, 10**9),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 10**9),
)
def test_no_delay_is_longer_than_the_cap_or_overflows(
    base: float, factor: float, cap: float, jitter: float, attempt: int
) -> None:
    delay = Backoff(base, factor, cap, jitter).delay(attempt)
    assert timedelta() <= delay <= timedelta(seconds=cap) + timedelta(microseconds=1)


def test_jitter_is_taken_away_also_at_the_cap() -> None:
    delays = {Backoff(jitter=0.5).delay(100).total_seconds() for _ in range(100)}
    assert len(delays) > 50
    assert all(30 <= delay <= 60 for delay in delays)


def test_a_constant_delay_is_a_factor_of_one() -> None:
    assert {Backoff(base=5, factor=1, jitter=0).delay(attempt) for attempt in range(1, 9)} == {timedelta(seconds=5)}


def test_a_backoff_is_stored_as_what_it_is_made_from() -> None:
    backoff = Backoff(base=3, factor=1.5, cap=10, jitter=0)
    assert Backoff(**backoff.as_options()) == backoff


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": -1}, r"Backoff\(base=\) must lie between 0 seconds and a hundred years"),
        ({"cap": float("inf")}, r"Backoff\(cap=\) must lie between"),
        ({"cap": "60"}, r"Backoff\(cap=\) must be a timedelta or a number of seconds"),
        ({"factor": 0.5}, r"Backoff\(factor=\) must be a number of at least 1"),
        ({"factor": float("nan")}, r"Backoff\(factor=\) must be"),
        ({"factor": float("inf")}, r"Backoff\(factor=\) must be"),
        ({"factor": "2"}, r"Backoff\(factor=\) must be"),
        ({"jitter": 1.1}, r"Backoff\(jitter=\) must be a number between 0 and 1"),
        ({"jitter": "0"}, r"Backoff\(jitter=\) must be"),
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        Backoff(**arguments)


@pytest.mark.parametrize("delta", [timedelta(minutes=1), timedelta(0)])
def test_base_and_cap_may_be_timedeltas(delta: timedelta) -> None:
    backoff = Backoff(base=delta, cap=delta, jitter=0)  # type: ignore[arg-type]
    assert backoff.delay(3) == delta
    assert backoff.as_options()["cap"] == delta.total_seconds()


@pytest.mark.parametrize(("length", "expected"), [(1, 1.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (0, 0.0)])
def test_a_length_of_time_is_a_timedelta_or_a_number_of_seconds(length: Any, expected: float) -> None:
    assert seconds(length) == expected


@pytest.mark.parametrize("length", [True, "60", None, -1, float("nan"), float("inf"), timedelta(days=-1), 1e10])
def test_anything_else_is_no_length_of_time(length: Any) -> None:
    with pytest.raises(ValueError, match=r"the pause must (be a timedelta or|lie between)"):
        seconds(length, "the pause")
