"""What the flags of several commands take, and which errors say enough by their message."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from gnlqueue.exceptions import GnlqueueError
from gnlqueue.options import check_queue_name

#: A command that raises one of these says only its message. The last is raised for an alias that is not there and that
#: the parser has not seen: a keyword of `call_command`, or the setting.
WRONG = (GnlqueueError, ImproperlyConfigured, ValueError, ConnectionDoesNotExist)


def queue_list(text: str) -> list[str]:
    """Parse `default,billing` into queue names."""
    names = [name.strip() for name in text.split(",")]
    try:
        return [check_queue_name(name) for name in names]
    except GnlqueueError as error:
        raise ArgumentTypeError(f"{error} Separate queues with commas: --queues default,billing.") from None


def database_alias(text: str) -> str:
    """Parse an alias of DATABASES."""
    if text not in connections:
        raise ArgumentTypeError(f"DATABASES has no alias {text!r}; it has {', '.join(connections)}.")
    return text


def positive(kind: type[int] | type[float]) -> Any:
    """Return a parser of numbers of `kind` above 0."""

    def parse(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            number = kind(0)
        if not 0 < number < 1e9:
            raise ArgumentTypeError(f"{text!r} is not a {'whole ' if kind is int else ''}number above 0.")
        return number

    return parse
