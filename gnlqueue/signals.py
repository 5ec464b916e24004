"""Signals, all sent with `sender=Job`. Nothing is computed for a signal without receivers.

================== ==================================== ================================================== ============
signal             arguments                            when                                               transaction
================== ==================================== ================================================== ============
job_enqueued       job                                  in the process that enqueues, after the INSERT     the caller's
job_started        job (a ClaimedJob)                   in the worker, right before the task is called     none
job_attempt_failed job (a ClaimedJob), error            in the worker, once the failure is stored          none
job_finished       job_id, task_name, status, database  once done, dead or cancelled is stored             none
job_blocked        job_id, task_name, reason            once blocked is stored                             none
job_resolved       job_id, entry                        once a human's answer is stored                    the caller's
================== ==================================== ================================================== ============

`job_attempt_failed`, `job_finished` and `job_blocked` come from the worker that ran the attempt. Where no attempt ended
the job, `job_finished` or `job_blocked` is sent after the commit by the process that did: the one that cancelled it
while it waited, failed it with `resolve`, took it over from a dead worker, or gave it back after somebody had asked to
cancel it; not in a transaction that is ended by hand. A consumer of your own sends none for the jobs that it ends,
except for one that it gives back so.

A receiver runs in the sender's thread and holds it up. What it raises is logged, never passed on: a receiver must not
be able to lose a job.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("gnlqueue")

job_enqueued = Signal()
job_started = Signal()
job_attempt_failed = Signal()
job_finished = Signal()
job_blocked = Signal()
job_resolved = Signal()


def send(signal: Signal, **arguments: Any) -> None:
    """Send `signal` with `sender=Job`, and log what a receiver raises."""
    if not signal.receivers:
        return
    from gnlqueue.models import Job  # late: this module must be importable before the app registry is ready

    for receiver, answer in signal.send_robust(sender=Job, **arguments):
        if isinstance(answer, Exception):
            logger.error("The signal receiver %r raised; its signal is lost.", receiver, exc_info=answer)
