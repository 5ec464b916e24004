"""What several subcommands of `manage.py gnlqueue` write."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import BaseCommand

from gnlqueue.models import Job
from gnlqueue.redaction import redacted

LONGEST = 200  # characters of a value


def arguments_of(job: Job) -> str:
    """Return a job's arguments as a call has them, masked, and cut where they are long."""
    args, kwargs = redacted(job)
    return cut(", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]))


def cut(text: str) -> str:
    """Return how a long text begins, and how long it is."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def say_if_more(command: BaseCommand, found: Sequence[object], limit: int) -> None:
    """Say that more than `limit` were found."""
    if len(found) > limit:
        command.stdout.write(command.style.WARNING("There are more: --limit N shows N of them."))
