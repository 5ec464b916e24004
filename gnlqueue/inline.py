"""`GNLQUEUE["INLINE"]`: run jobs in the process that enqueues them, right after the commit, with no worker.

For development and tests. Only what is enqueued here runs: what else waits in the queue is left to workers. So is a
delayed job, one whose attempt failed, one of a paused queue, and one whose transaction is ended by hand.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import transaction

from gnlqueue.conf import settings
from gnlqueue.signals import job_enqueued

_UID = "gnlqueue.inline"


def install() -> None:
    """Listen for new jobs if the setting says so, and stop listening if it doesn't."""
    inline = False
    with suppress(ImproperlyConfigured):  # wrong settings are reported by the system checks, and at first use
        inline = settings().INLINE
    if inline:
        job_enqueued.connect(_run_after_commit, dispatch_uid=_UID)
    else:
        job_enqueued.disconnect(dispatch_uid=_UID)


def _run_after_commit(*, job: Any, **_: Any) -> None:
    from gnlqueue.queue.transactions import is_manual

    alias = job._state.db
    if not is_manual(alias):  # which has no hook for the commit
        transaction.on_commit(partial(_run, (job.pk, job.queue_name, alias)), using=alias)


class _Here(threading.local):
    """The jobs to run, while jobs run in this thread; else `None`."""

    waiting: list[tuple[int, str, str]] | None = None


_here = _Here()


def _run(job: tuple[int, str, str]) -> None:
    if _here.waiting is not None:  # enqueued by a job that runs here: it runs after that one, not inside it
        _here.waiting.append(job)
        return
    _here.waiting = [job]
    try:
        while _here.waiting:
            _run_one(*_here.waiting.pop(0))
    finally:
        _here.waiting = None


def _run_one(id: int, queue_name: str, alias: str) -> None:
    """Run a job, unless it is not ready: a worker may have been faster."""
    from gnlqueue.queue.claiming import claim_one
    from gnlqueue.worker import foreground, identity

    lease = timedelta(seconds=settings().LEASE_SECONDS)
    claimed = claim_one(id, queue_name, worker_id=identity.new_worker_id(), lease=lease, alias=alias)
    if claimed is not None:
        foreground.run_here(claimed, lease)


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "GNLQUEUE":
        install()


setting_changed.connect(_changed, dispatch_uid="gnlqueue.inline.changed")
