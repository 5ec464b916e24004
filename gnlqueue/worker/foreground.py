"""Running one claimed job in the caller's own thread, as `Worker.run_once` and `INLINE` do."""

from __future__ import annotations

import os
import threading
from contextvars import copy_context
from datetime import timedelta
from typing import Any

from gnlqueue.queue import ClaimedJob, transitions
from gnlqueue.registry import Task
from gnlqueue.worker import executor, outcomes
from gnlqueue.worker.executor import Outcome, Terms
from gnlqueue.worker.holdings import Holdings
from gnlqueue.worker.table import LeaseTable, Stage
from gnlqueue.worker.timeouts import Timeouts


def run(claimed: ClaimedJob, holdings: Holdings, terms: Terms, on_error: outcomes.ErrorHook | None) -> None:
    """Run a job here and now, and write what came of it; Ctrl-C gives it back."""
    holdings.add(claimed)
    try:
        task = executor.prepare(claimed)
        holdings.table.advance(claimed, Stage.BEGUN)
        outcome = task if isinstance(task, Outcome) else _run_limited(claimed, task, terms)
        outcomes.write([outcome], on_error)
    except KeyboardInterrupt:
        transitions.release_many([claimed])
        raise
    finally:
        holdings.drop([claimed])


def run_here(claimed: ClaimedJob, lease: timedelta) -> None:
    """Run a job here and now, for no worker: nobody renews its lease."""
    run(claimed, Holdings(LeaseTable(1)), Terms(Timeouts(), lease, lambda: False), None)


def _run_limited(claimed: ClaimedJob, task: Task[..., Any], terms: Terms) -> Outcome:
    """Run a task in this thread, which a timer interrupts when the task has a timeout."""
    timeout = executor.timeout_of(claimed, task)
    if timeout is None:
        return _run(claimed, task, terms)
    timer = threading.Timer(timeout + 0.01, terms.timeouts.interrupt_overdue)
    timer.daemon = True
    timer.start()
    try:
        return _run(claimed, task, terms)
    finally:
        timer.cancel()


def _run(claimed: ClaimedJob, task: Task[..., Any], terms: Terms) -> Outcome:
    pid = os.getpid()
    outcome = copy_context().run(executor.run_sync, claimed, task, terms)  # the caller keeps its own context
    executor.end_copy(pid, outcome)
    return outcome
