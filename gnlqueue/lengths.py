"""Lengths of time: a `timedelta` or a number of seconds, everywhere."""

from __future__ import annotations

from datetime import timedelta

#: The longest delay that is accepted anywhere; a database's date arithmetic ends not far above it.
LONGEST = timedelta(days=366 * 100)


def seconds(length: timedelta | float, what: str = "a length of time") -> float:
    """Return a length of time, a `timedelta` or a number of seconds, as seconds.

    Raises `ValueError` for anything else, for what is negative, not finite, or longer than a hundred years.
    """
    value = length.total_seconds() if isinstance(length, timedelta) else length
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a timedelta or a number of seconds, not {length!r}.")
    if not 0 <= value <= LONGEST.total_seconds():  # also refuses NaN, which compares false
        raise ValueError(f"{what} must lie between 0 seconds and a hundred years, not {length!r}.")
    return float(value)
