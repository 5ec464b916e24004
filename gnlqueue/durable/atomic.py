"""The transaction of an `atomic_step`: its record and its writes are committed together, or not at all.

INSERT the entry → the function → UPDATE it to done → the fence, as the last statement, so that the job's row is locked
only for a moment. Both UPDATEs must change exactly one row: if one changes none, the server has rolled the transaction
back, as MariaDB does on a deadlock, and the function swallowed the error. Above READ COMMITTED the job's row is locked
first as well, because a heartbeat in between would make the fence fail at the end.

A function may end the transaction behind our back, see `statements`. Then what it did until then is committed, with the
record that the step began, but not that it ended: this attempt finds that, or the next one does, and the step is in
doubt. Whether the transaction is still ours is checked where that costs no round trip: SQLite's driver tells, and on
PostgreSQL the entry's UPDATE does. MySQL and MariaDB do not tell: there a step whose function returns is done, and what
the server rolled back after such a commit is not noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.db import DatabaseError, connections, transaction

from gnlqueue import dialects, payloads
from gnlqueue.durable.entries import Entry, FenceLost, Journal, ResultNotStored, Wanted, encode_result
from gnlqueue.durable.statements import only_what_rolls_back
from gnlqueue.exceptions import GnlqueueError, JobInterrupt
from gnlqueue.models import EntryStatus

logger = logging.getLogger("gnlqueue")


class RolledBack(GnlqueueError):
    """The database rolled the transaction back while the function ran, or the fence was lost: nothing was stored."""


class HalfCommitted(GnlqueueError):
    """The function ended the transaction itself: the record says that the step began, but not what came of it.

    `error` is what was raised after that, if anything, or this exception; `result` is the stored form of what the
    function returned, "" if it did not return.
    """

    def __init__(self, entry: Entry, error: BaseException, result: str) -> None:
        super().__init__(
            "its function ended the transaction that it ran in, for example by a COMMIT in a stored procedure, so what "
            "it had done by then is stored"
        )
        self.entry = entry
        self.error = self if isinstance(error, FenceLost) else error
        self.result = result


def run(journal: Journal, wanted: Wanted, known: Entry | None, function: Callable[[], Any]) -> tuple[Entry, Any]:
    """Run `function` in the transaction that records it, and return the entry and the result.

    `known` is the entry of an earlier attempt that failed. Raises what the function raises, after everything was rolled
    back; `RolledBack`; and `HalfCommitted`.
    """
    using = journal.fence.database
    connection = connections[using]
    dialect = dialects.of(using)
    entry: Entry | None = None
    text = ""
    try:
        with dialect.write_transaction(connection), transaction.atomic(using=using, durable=True):
            if not dialect.is_read_committed(connection) and not journal.fence.lock():
                raise FenceLost
            entry = journal.insert_here(wanted) if known is None else journal.restart_here(known)
            with only_what_rolls_back(using):
                value = function()
            text = encode_result(value)
            _store_result(journal, entry, text)
            _hold(journal)
    except BaseException as error:
        if isinstance(error, JobInterrupt):
            raise
        # A commit whose answer was lost looks like a failure, and so does a hook that raised after it: the row tells.
        # That is worth waiting for only if the function returned; if not, the next attempt looks again.
        status = None if entry is None else journal.stored_status(wanted.key, wait=bool(text))
        if entry is not None and status == EntryStatus.STARTED:
            raise HalfCommitted(entry, error, text) from error
        if isinstance(error, FenceLost):
            raise RolledBack(
                f"The transaction of the atomic step {wanted.key!r} was rolled back while its function ran; nothing of "
                "it was stored."
            ) from None
        if entry is None or not text or status != EntryStatus.DONE:
            raise
        logger.error("The atomic step %r was committed; after that, this was raised.", wanted.key, exc_info=error)
    done = known or entry
    journal.adopt(done, EntryStatus.DONE, result=text, error=None)
    return done, payloads.decode(text)


def _store_result(journal: Journal, entry: Entry, text: str) -> None:
    try:
        journal.change_here(entry, EntryStatus.DONE, result=text, error=None)
    except DatabaseError as error:
        # Any other error is about the transaction: lost, rolled back, or unusable after what the function swallowed.
        if not dialects.of(journal.fence.database).refuses_value(error):
            raise
        raise ResultNotStored(f"The database refused the step's result: {error}") from error


def _hold(journal: Journal) -> None:
    if not journal.fence.hold(starting=False):
        raise FenceLost
