"""Processes: running a function in a child process, and restoring signals in those that a task forks."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from gnlqueue.exceptions import DatabaseNotReady

logger = logging.getLogger("gnlqueue.worker")

EXIT_FAILED, EXIT_NOT_READY = 1, 3

#: What says that it is no use to go on or to start again; each has a message for whoever started us.
NOT_READY = (DatabaseNotReady, ImproperlyConfigured)

#: Blocked in a new process until it has handlers of its own: until then it has its parent's.
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}


def close_connections_and_pools() -> None:
    """Close what database connections there are, pools included: processes must not share them."""
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        if hasattr(connection, "close_pool"):  # close_all() only puts a connection back into its pool
            connection.close_pool()


def fork(body: Callable[[], int | None], *, closing: int) -> int:
    """Run `body` in a child process, whose exit status it returns; return the child's pid, 0 where there is none.

    `closing` is a file descriptor that stays the parent's. `body` calls `let_signals_in` once it has its handlers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pid = os.fork()
    except OSError as error:  # no memory or no process to spare: later
        let_signals_in()
        logger.error("A process cannot be started, trying again: %s", error)
        return 0
    if pid:
        let_signals_in()
        return pid
    status = EXIT_FAILED
    try:
        signal.set_wakeup_fd(-1)
        os.close(closing)
        status = body() or 0
    except NOT_READY as error:
        logger.error("%s", error)
        status = EXIT_NOT_READY
    except BaseException:
        logger.exception("This process ends because of an error that nothing handled.")
    finally:
        with contextlib.suppress(Exception):
            connections.close_all()
        logging.shutdown()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def let_signals_in() -> None:
    """Receive the signals that were blocked: now there are handlers for them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class _Forking(threading.local):
    """The signals that this thread had blocked before it began to fork."""

    mask: set[int | signal.Signals] = set()


_forking = _Forking()


@cache  # registered twice, the second hook would save what the first one has blocked
def keep_handlers_to_ourselves() -> None:
    """Let a signal end the processes that a task forks, as it ends any process: with our handlers it would not.

    What is ignored stays ignored there: Ctrl-C goes to all processes of a terminal, and a running task may finish.
    """
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_child)


def _before_fork() -> None:
    # A signal that is sent to the child right away must not meet our handlers there.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _begin_child() -> None:
    for number in SIGNALS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    _after_fork()
