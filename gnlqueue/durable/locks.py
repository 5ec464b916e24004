"""Locks on run ids, and runs outside a job.

A run lock is a row of its own, so that a handler may lock its own `context.run_id`: it nests with the job's lease.
A thread renews it while it is held; it is released by its token, and taken over once it has expired.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from django.db import IntegrityError, connections, transaction
from django.db.models import F, Q

from gnlqueue.connection import ConnectionProblem
from gnlqueue.dialects import now as clock
from gnlqueue.durable.context import current
from gnlqueue.durable.entries import Entry
from gnlqueue.durable.fences import LockFence
from gnlqueue.durable.keys import can_name
from gnlqueue.durable.run import Run
from gnlqueue.exceptions import JobBlocked, JobGivenUp, JobInterrupt, JournalMismatch, LeaseLost, RunBlocked, RunLocked
from gnlqueue.lengths import seconds
from gnlqueue.models import RUN_OF_JOB, RunLock
from gnlqueue.queue.transactions import alias_of, in_own_transaction, retried

logger = logging.getLogger("gnlqueue")

POLL = 0.2  # seconds between two tries to take a lock that somebody else holds, less some jitter
RENEWALS = 3  # within one ttl

#: The locks that this flow of control holds, by alias and run id; taking one again nests.
_held: ContextVar[frozenset[tuple[str, str]]] = ContextVar("gnlqueue_run_locks", default=frozenset())


@contextmanager
def run_lock(
    run_id: str, *, ttl: timedelta | float = 60, wait: timedelta | float = 0, using: str | None = None
) -> Iterator[None]:
    """Hold the lock on a run id: nobody else holds it meanwhile, on any host.

    `ttl` is how many seconds it lasts after its holder has died, `wait` how long to wait while somebody else holds it.
    If the same code takes it again, it nests. A holder that was stopped for longer than `ttl` loses it, which is logged
    when the block ends: what must not overlap even then belongs in a `durable_run`, whose writes are fenced.

    Raises `RunLocked` when somebody else holds it for longer than `wait`, `RuntimeError` inside `atomic()`.
    """
    alias = alias_of(using)
    if (alias, run_id) in _held.get():
        yield
        return
    fence = _acquire(run_id, alias, timedelta(seconds=seconds(ttl, "ttl")), seconds(wait, "wait"))
    with _kept(fence):
        yield


@contextmanager
def durable_run(run_id: str, *, ttl: timedelta | float = 60, using: str | None = None) -> Iterator[Run]:
    """Open a durable run outside a job, under its run lock; the same id goes on with the same journal.

    There is no `sleep` here. Inside job n, `durable_run("job:n")` is the job's own run; elsewhere such ids are
    refused. If an interrupt of the run ends the block, it surfaces as an error.

    Raises `RunLocked` when somebody else has it open, `RunBlocked` when a step is in doubt, `JournalMismatch` when
    the code does not fit the journal, `LeaseLost` when the lock was lost, `ValueError` for another job's id,
    `RuntimeError` inside `atomic()`.
    """
    context = current.get()
    if context is not None and context.run_id == run_id:
        yield context
        return
    _check_run_id(run_id)
    if _looks_like_a_job_s(run_id):
        raise ValueError(f"{run_id!r} is the run of a job, and belongs to it alone: use another prefix.")
    alias = alias_of(using)
    fence = _acquire(run_id, alias, timedelta(seconds=seconds(ttl, "ttl")), 0)
    with _kept(fence):
        run = _OutsideRun(run_id, fence)
        try:
            yield run
        finally:
            run.end()
        run.look_back()
        if run.interrupt is not None:  # however it was caught
            raise run.as_raised(run.interrupt)


class _OutsideRun(Run):
    """A run outside a job: nothing above it knows interrupts, so they are raised as ordinary errors."""

    is_shared = True

    def sleep(self, name: str, length: timedelta | float) -> None:
        raise RuntimeError("Only a job's run can sleep: nobody would wake any other one up.")

    async def asleep(self, name: str, length: timedelta | float) -> None:
        self.sleep(name, length)

    def out_of_mismatch(self, entry: Entry) -> str:
        return "Put the code right, or give the run another id: no job waits here for a decision."

    def as_raised(self, interrupt: JobInterrupt) -> BaseException:
        if isinstance(interrupt, JobBlocked) and interrupt.reason == "mismatch":
            return JournalMismatch(str(interrupt))
        if isinstance(interrupt, JobBlocked | JobGivenUp):
            return RunBlocked(str(interrupt))
        return LeaseLost(str(interrupt))


def _check_run_id(run_id: str) -> None:
    if not can_name(run_id):
        raise ValueError(f"A run id must be a string of 1 to 200 printable characters, not {run_id!r:.220}.")


def _looks_like_a_job_s(run_id: str) -> bool:
    """Tell whether a database may take this for the id of a job's run: MySQL and MariaDB ignore case and accents.

    They would read its journal together with the job's, and prune it with the job.
    """
    letters = (char for char in unicodedata.normalize("NFKD", run_id) if not unicodedata.combining(char))
    return "".join(letters).casefold().startswith(RUN_OF_JOB)


def _acquire(run_id: str, alias: str, ttl: timedelta, wait: float) -> LockFence:
    _check_run_id(run_id)
    if in_own_transaction(alias):
        raise RuntimeError(
            f"The lock on {run_id!r} was asked for inside atomic(), or with autocommit off, on {alias!r}: nobody else "
            "would see it before the commit. Take it outside."
        )
    key = RunLock.key(run_id)
    give_up_at = time.monotonic() + wait
    while True:
        token = retried(alias, lambda: _try_to_acquire(run_id, key, alias, ttl))
        if token is not None:
            return LockFence(run_id, key, token, alias, ttl)
        if time.monotonic() >= give_up_at:
            owner = RunLock.objects.using(alias).filter(pk=key).values_list("owner", flat=True).first()
            raise RunLocked(
                f"The run {run_id!r} is locked by {owner or 'somebody who has just released it'}. Try again later, or "
                "let `run_lock` wait for it."
            )
        time.sleep(min(POLL * random.uniform(0.5, 1), max(give_up_at - time.monotonic(), 0)))


def _try_to_acquire(run_id: str, key: str, alias: str, ttl: timedelta) -> int | None:
    rows = RunLock.objects.using(alias).filter(pk=key)
    if not rows.exists():
        try:
            with transaction.atomic(using=alias):
                RunLock(run_id=run_id, run_id_hash=key).save(using=alias, force_insert=True)
        except IntegrityError:
            logger.debug("Somebody else has made the lock row of %r.", run_id)
    with transaction.atomic(using=alias):
        free = rows.filter(Q(owner__isnull=True) | Q(expires_at__lt=clock()))
        taken = free.update(
            owner=f"{socket.gethostname()[:60]} thread {threading.get_native_id()}",
            lease_token=F("lease_token") + 1,
            acquired_at=clock(),
            expires_at=clock(offset=ttl),
        )
        return rows.values_list("lease_token", flat=True).get() if taken else None


@contextmanager
def _kept(fence: LockFence) -> Iterator[None]:
    """Renew the lock until the block ends, then release it."""
    ended = threading.Event()
    renewer = threading.Thread(target=_renew, args=(fence, ended), name="gnlqueue-run-lock", daemon=True)
    token = _held.set(_held.get() | {(fence.database, fence.run_id)})
    renewer.start()
    try:
        yield
    finally:
        ended.set()
        renewer.join()
        _held.reset(token)
        _release(fence)


def _release(fence: LockFence) -> None:
    try:
        if not fence.release():
            logger.error("The lock on the run %r was lost before its block ended: it had expired.", fence.run_id)
    except ConnectionProblem as error:
        connections[fence.database].close()
        logger.warning("The lock on the run %r could not be released; it expires by itself: %s", fence.run_id, error)


def _renew(fence: LockFence, ended: threading.Event) -> None:
    while not ended.wait(fence.lease.total_seconds() / RENEWALS):
        try:
            if not fence.hold(starting=False):
                break
        except ConnectionProblem as error:
            connections[fence.database].close()
            logger.warning("The lock on the run %r could not be renewed, trying again: %s", fence.run_id, error)
    connections.close_all()
