"""`GNLQUEUE["INLINE"]`: run jobs in the process that enqueues them, right after the commit, with no worker.

For development and tests. A delayed job, or one whose attempt failed, still waits for a worker.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import transaction

from gnlqueue.conf import settings
from gnlqueue.signals import job_enqueued

_UID = "gnlqueue.inline"


def install(**_: Any) -> None:
    """Listen for new jobs where the setting says so, and stop listening where it doesn't."""
    inline = False
    with suppress(ImproperlyConfigured):  # wrong settings are reported by the system checks, and at first use
        inline = settings().INLINE
    if inline:
        job_enqueued.connect(_run_after_commit, dispatch_uid=_UID)
    else:
        job_enqueued.disconnect(dispatch_uid=_UID)


def _run_after_commit(*, job: Any, **_: Any) -> None:
    alias = job._state.db
    transaction.on_commit(partial(_run_ready_jobs, job.queue_name, alias), using=alias)


class _Here(threading.local):
    """The queues to look at, while jobs run in this thread; else `None`."""

    waiting: list[tuple[str, str]] | None = None


_here = _Here()


def _run_ready_jobs(queue_name: str, alias: str) -> None:
    from gnlqueue.worker.loop import Worker

    if _here.waiting is not None:  # enqueued by a job that runs here: it comes after that one, not inside of it
        _here.waiting.append((queue_name, alias))
        return
    _here.waiting = [(queue_name, alias)]
    try:
        while _here.waiting:
            name, database = _here.waiting.pop(0)
            worker = Worker([name], database=database, concurrency=1, heartbeat=False)
            while worker.run_once() is not None:
                pass
    finally:
        _here.waiting = None


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "GNLQUEUE":
        install()


setting_changed.connect(_changed, dispatch_uid="gnlqueue.inline.changed")
