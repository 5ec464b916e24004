"""The tasks whose runs are tested, here and in processes that die."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

import gnlqueue
from gnlqueue import JobContext
from tests.app.models import Note
from tests.durable import faults

#: Failed attempts come again at once: no test waits for a backoff.
AT_ONCE = gnlqueue.Backoff(base=0.001, factor=1, jitter=0)

#: What `play` and `aplay` do: set by a test.
handlers: dict[str, Callable[..., Any]] = {}


@gnlqueue.task(takes_context=True, backoff=AT_ONCE)
def play(context: JobContext, *args: Any) -> Any:
    """Do what the test says."""
    return handlers["play"](context, *args)


@gnlqueue.task(takes_context=True, backoff=AT_ONCE)
async def aplay(context: JobContext, *args: Any) -> Any:
    """Do on the event loop what the test says."""
    return await handlers["aplay"](context, *args)


class Declined(Exception):
    """A definite answer."""


class Refused(Exception):
    """It is known that nothing happened."""


@gnlqueue.task(takes_context=True, backoff=AT_ONCE)
def one_step(context: JobContext, kind: str, ledger: str, first_claim: int = 1) -> Any:
    """Have one effect, from the given claim on; the attempt that has it for the first time fails afterwards."""
    claim = context.claimed.lease_token
    if claim < first_claim:
        raise OSError("not yet")
    steps = context.using(safe_errors=(Refused,), final_errors=(Declined,))
    result = getattr(steps, kind)("effect", effect, ledger, context.fence.database)
    if claim == first_claim:
        raise OSError("something else, after the step")
    return result


@gnlqueue.task(takes_context=True, backoff=AT_ONCE)
async def aone_step(context: JobContext, kind: str, ledger: str) -> Any:
    """Do what `one_step` does, on the event loop."""
    steps = context.using(safe_errors=(Refused,), final_errors=(Declined,))
    function = effect if kind == "aatomic_step" else aeffect
    result = await getattr(steps, kind)("effect", function, ledger, context.fence.database)
    if context.claimed.lease_token == 1:
        raise OSError("something else, after the step")
    return result


@gnlqueue.task(takes_context=True, backoff=AT_ONCE)
def half_committed(context: JobContext, ledger: str, way: str) -> Any:
    """Have an effect that commits behind the back of its `atomic_step`."""
    return context.atomic_step("effect", half_commit, ledger, context.fence.database, way)


def half_commit(ledger: str, alias: str, way: str) -> str:
    """Leave a line in a file and a row in the database, which is committed before the function has ended."""
    Note.objects.using(alias).create(text="the first half")
    append(ledger)
    commit_unseen(alias, way)
    faults.reach("during the effect")
    return "the result"


#: Ways to commit that `durable.statements` does not see, by the database's alias.
UNSEEN_COMMITS = {
    "default": ["executescript"],
    "postgresql": ["SELECT 1; COMMIT"],
    "mysql": ["CALL commits()", "PREPARE p FROM 'COMMIT' | EXECUTE p"],
}


def commit_unseen(alias: str, way: str) -> None:
    """Commit in a way that is not refused."""
    with connections[alias].cursor() as cursor:
        if way == "executescript":
            cursor.executescript("SELECT 1")  # the driver commits before it
        else:
            for statement in way.split(" | "):
                cursor.execute(statement)


async def aeffect(ledger: str, alias: str) -> str:
    """Do what `effect` does, from asynchronous code."""
    return await sync_to_async(effect)(ledger, alias)


def effect(ledger: str, alias: str) -> str:
    """Leave a line in a file and a row in the database."""
    Note.objects.using(alias).create(text="effect")
    append(ledger)
    faults.reach("during the effect")
    return "the result"


def append(ledger: str | Path) -> None:
    """Add a line to a file, which no rollback takes back."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"effect\n")
    os.close(descriptor)
