"""`GNLQUEUE["INLINE"]`: run jobs in the process that enqueues them, right after the commit, with no worker.

For development and tests. A delayed job, or one whose attempt failed, still waits for a worker.
"""

from __future__ import annotations

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


def _run_ready_jobs(queue_name: str, alias: str) -> None:
    from gnlqueue.worker.loop import Worker

    worker = Worker([queue_name], database=alias, concurrency=1, heartbeat=False)
    while worker.run_once() is not None:
        pass


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "GNLQUEUE":
        install()


setting_changed.connect(_changed, dispatch_uid="gnlqueue.inline.changed")
