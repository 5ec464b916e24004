"""Telling idle workers that there is work. Only a hint: everything works without it, by polling.

PostgreSQL: NOTIFY, after the commit and in a statement of its own, because inside the user's transaction it takes a
lock that serialises all commits. At most one per queue, process and `WINDOW`; a worker that was told looks once more
when the window is over, so that the ones left out are not missed. None is sent for a transaction that the caller ends
by hand, as Django has no hook for its commit. SQLite's workers watch the file, and need no notification.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial

from django.db import Error, connections, transaction

from gnlqueue.queue.new_jobs import NewJob
from gnlqueue.queue.transactions import is_manual

logger = logging.getLogger("gnlqueue")

#: The PostgreSQL channel that workers listen on; the payload is the queue's name.
CHANNEL = "gnlqueue"

#: The payload that wakes the workers of all queues: jobs came back, and whoever gave them back knows them by id only.
ANY_QUEUE = "*"

#: Seconds within which a second notification for the same queue is left out.
WINDOW = 0.01

_last_sent: dict[tuple[str, str], float] = {}


def announce(alias: str, new: Iterable[NewJob]) -> None:
    """Wake the workers of the queues of these jobs, once the surrounding transaction has committed."""
    wake(alias, {each.options.queue_name for each in new if each.options.run_after is None})


def wake(alias: str, queue_names: Iterable[str]) -> None:
    """Wake the workers of these queues, once the surrounding transaction has committed."""
    if connections[alias].vendor != "postgresql" or is_manual(alias):  # nobody says when that one has committed
        return
    for name in queue_names:
        transaction.on_commit(partial(_notify, alias, name), using=alias, robust=True)


def _notify(alias: str, queue_name: str) -> None:
    now = time.monotonic()
    if now - _last_sent.get((alias, queue_name), -WINDOW) < WINDOW:
        return
    _last_sent[alias, queue_name] = now
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, queue_name])
    except Error:
        logger.debug(
            "Could not notify the workers of %s; they will find the job by polling.", queue_name, exc_info=True
        )
