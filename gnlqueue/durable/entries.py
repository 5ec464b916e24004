"""The journal of one run: read once, written under the fence.

Every write must change exactly one row, and hold the fence as the last statement of its transaction, or it is rolled
back. When the acknowledgement of a commit is lost, the entry is read again before anything is concluded.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import count
from types import FunctionType
from typing import Any, NamedTuple

from django.db import IntegrityError, connections, transaction
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from gnlqueue import dialects, payloads
from gnlqueue.conf import settings
from gnlqueue.connection import ConnectionProblem
from gnlqueue.dialects import now as clock
from gnlqueue.durable.fences import Fence
from gnlqueue.durable.keys import key_hash
from gnlqueue.durable.verdicts import Verdicts
from gnlqueue.exceptions import JobInterrupt, JobPreempted, PayloadError
from gnlqueue.models import EntryStatus, RunJournalEntry, StepNote
from gnlqueue.queue.transactions import retried

LONGEST_NOTE = 20_000  # characters kept of evidence


class ResultNotStored(PayloadError):
    """A step's result cannot be stored."""


#: Whether a row was written in the transaction that is open, on PostgreSQL.
_WRITTEN_IN_THIS_TRANSACTION = RawSQL("xmin = pg_current_xact_id()::xid", (), output_field=BooleanField())


class FenceLost(Exception):
    """The fence did not hold, so the transaction is rolled back."""


class Wanted(NamedTuple):
    """A step as the code asks for it: what a replay looks for, and what is recorded of a new one."""

    key: str
    kind: str
    args_hash: str | None = None
    function: str | None = None  #: its dotted name; it may change, and the step is still the same
    instead_of: list[int] | None = None  #: ids of what it may repeat, see `Replay.note_what_it_may_repeat`


def function_name(function: Callable[..., Any] | None) -> str | None:
    """Return the dotted name of a step's function, at most 200 characters of it; for an object, that of its class.

    A method that is written in C has no module: `str.upper` is all there is.
    """
    while isinstance(function, partial):
        function = function.func
    if function is None:
        return None
    # A stand-in, such as a proxy for remote calls, may have an attribute of any name.
    named = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(named, "__module__", None)
    name = f"{module}.{named.__qualname__}" if module else named.__qualname__
    return payloads.scrub(name, LONGEST_NOTE)[:200]


def tells_all(function: Callable[..., Any] | None) -> bool:
    """Tell whether a function's name and arguments say what it does.

    A lambda has no name of its own. A method, a `partial` or an object has more to it than its name: two of one name
    may do different things.
    """
    return isinstance(function, FunctionType) and "<lambda>" not in function.__qualname__


@dataclass(slots=True)
class Entry:
    """One step as the journal has it; `visited` once the code of this attempt has asked for it."""

    id: int
    key: str
    kind: str
    args_hash: str | None
    function: str | None
    instead_of: list[int] | None
    position: int
    status: str
    result: str | None
    error: dict[str, Any] | None
    lease_token: int
    visited: bool = False

    @property
    def sealed(self) -> bool:
        """Whether its failure stays: replay raises it again."""
        return self.status == EntryStatus.FAILED and bool((self.error or {}).get("sealed"))

    @property
    def not_happened(self) -> bool:
        """Whether it is known not to have happened, and may be tried again."""
        return self.status in {EntryStatus.FAILED, EntryStatus.RELEASED} and not self.sealed


#: The columns that it is read from, in the order of its fields.
_COLUMNS = tuple(each.name for each in fields(Entry) if each.name != "visited")


class Journal:
    """What a run has recorded, read when this attempt first asks, and the writes that change it."""

    def __init__(self, run_id: str, fence: Fence) -> None:
        self.run_id = run_id
        self.fence = fence
        self._rows = RunJournalEntry.objects.using(fence.database)
        self.entries = self._read()  #: in the order in which they began; this attempt adds its own at the end
        self._positions = count(max((entry.position for entry in self.entries), default=0) + 1)

    def _read(self) -> list[Entry]:
        # At once, not with iterator(): its server-side cursors do not work behind PgBouncer.
        rows = self._rows.filter(run_id=self.run_id).order_by("position", "id")
        columns = rows.values_list("run_id", *_COLUMNS)
        return [Entry(*values) for run_id, *values in columns if run_id == self.run_id]  # MariaDB finds "Run" for "run"

    # --- writing -----------------------------------------------------------------------------------------------------

    def insert(self, wanted: Wanted, status: EntryStatus, *, starting: bool, **values: Any) -> Entry:
        """Add an entry; with `starting` something is about to begin, which a request to cancel forbids."""
        position = next(self._positions)
        write = partial(self._insert, wanted, position, status, **values)
        id = self._fenced(write, wanted.key, status, starting=starting)
        entry = self._new(id, wanted, position, status)
        self.adopt(entry, status, **values)
        return entry

    def _new(self, id: int, wanted: Wanted, position: int, status: EntryStatus) -> Entry:
        entry = Entry(id, *wanted, position, status, None, None, self.fence.token, visited=True)
        self.entries.append(entry)
        return entry

    def _insert(self, wanted: Wanted, position: int, status: EntryStatus, **values: Any) -> int:
        finished = {} if status == EntryStatus.STARTED else {"finished_at": clock()}
        row = RunJournalEntry(
            run_id=self.run_id,
            position=position,
            **wanted._asdict(),
            key_hash=key_hash(self.run_id, wanted.key),
            status=status,
            lease_token=self.fence.token,
            started_at=clock(),
            **finished,
            **values,
        )
        row.save(using=self.fence.database, force_insert=True)
        return int(row.pk)

    def change(self, entry: Entry, status: EntryStatus, *, starting: bool = False, **values: Any) -> None:
        """Change an entry to `status`, under this run's token, if it still is what this run knows of it."""
        write = partial(self._change, entry, status, **values)
        self._fenced(write, entry.key, status, starting=starting)
        self.adopt(entry, status, **values)

    def _change(self, entry: Entry, status: EntryStatus, *conditions: RawSQL, **values: Any) -> int:
        times = {"started_at": clock()} if status == EntryStatus.STARTED else {"finished_at": clock()}
        known = self._rows.filter(*conditions, pk=entry.id, status=entry.status, lease_token=entry.lease_token)
        if entry.instead_of is not None:  # there may be more than when it first began
            values["instead_of"] = entry.instead_of
        if known.update(status=status, lease_token=self.fence.token, **times, **values) != 1:
            raise FenceLost
        return entry.id

    def adopt(self, entry: Entry, status: EntryStatus, **values: Any) -> None:
        """Take over into an entry what has been committed of it."""
        entry.status = status
        entry.lease_token = self.fence.token
        for name, value in values.items():
            setattr(entry, name, value)

    def note(self, entry_id: int, kind: StepNote.Kind, by: str, why: str, value: Any = None) -> None:
        """Append a note to an entry. Not fenced: a worker that has lost the run has the evidence that matters most."""
        note = StepNote(
            entry_id=entry_id,
            lease_token=self.fence.token,
            kind=kind,
            by=by[:200],
            at=clock(),
            why=payloads.scrub(why, LONGEST_NOTE),
            value=None if value is None else payloads.scrub(str(value), LONGEST_NOTE),
        )
        note.save(using=self.fence.database, force_insert=True)

    @cached_property
    def verdicts(self) -> Verdicts:
        """What humans said before this attempt; read only when a step looks like another one."""
        return Verdicts(self.run_id, self.fence.database)

    def _fenced(self, write: Callable[[], int], key: str, status: EntryStatus, *, starting: bool) -> int:
        """Run a write and the fence in one transaction, again and again until it is known whether they are stored.

        Raises the interrupt that stops the run if the fence does not hold, or the database is away for a whole lease.
        """
        database = self.fence.database
        give_up_at = time.monotonic() + self.fence.lease.total_seconds()
        pause = 0.02
        unheard = False  # whether an earlier try may have been committed without our hearing of it
        while True:
            try:
                return self._try_once(write, key, status, starting=starting, unheard=unheard)
            except ConnectionProblem as error:
                if connections[database].in_atomic_block or dialects.of(database).refuses_value(error):
                    raise
                if time.monotonic() > give_up_at:
                    # An interrupt: a handler that caught an ordinary error here would go on after an unknown outcome.
                    raise JobPreempted(
                        f"The step {key!r} could not be recorded as {status} for a whole lease: {error}"
                    ) from error
                connections[database].close()
                unheard = True
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, 1.0)

    def _try_once(
        self, write: Callable[[], int], key: str, status: EntryStatus, *, starting: bool, unheard: bool
    ) -> int:
        if unheard and (stored := self._stored(key, status)) is not None:
            return stored
        try:
            return retried(self.fence.database, lambda: self._in_transaction(write, starting=starting))
        except (FenceLost, IntegrityError) as error:
            # An earlier try that we heard nothing of may have been committed after we had looked.
            if unheard and (stored := self._stored(key, status)) is not None:
                return stored
            raise self._why_refused(key) from error

    def _in_transaction(self, write: Callable[[], int], *, starting: bool) -> int:
        with transaction.atomic(using=self.fence.database):
            id = write()
            if not self.fence.hold(starting=starting):
                raise FenceLost
        return id

    def _stored(self, key: str, status: EntryStatus) -> int | None:
        """Return the entry's id if it is stored with this status under our token, else `None`."""
        row = self._ours(key)
        return int(row.pk) if row is not None and row.status == status else None

    def _ours(self, key: str) -> RunJournalEntry | None:
        """Return an entry as it is stored, `None` if that is not under our token."""
        rows = self._rows.filter(key_hash=key_hash(self.run_id, key), lease_token=self.fence.token)
        return rows.first()

    def _why_refused(self, key: str) -> JobInterrupt:
        return self.fence.why_lost() or JobPreempted(
            f"Somebody else has changed the step {key!r} of the run {self.run_id!r} meanwhile. Stop here."
        )

    # --- one transaction with the step's own writes ------------------------------------------------------------------

    def insert_here(self, wanted: Wanted) -> Entry:
        """Add a started entry as part of the transaction that is open; it is gone if that rolls back."""
        position = next(self._positions)
        return self._new(self._insert(wanted, position, EntryStatus.STARTED), wanted, position, EntryStatus.STARTED)

    def restart_here(self, entry: Entry) -> Entry:
        """Begin an entry again as part of the transaction that is open."""
        self._change(entry, EntryStatus.STARTED)
        return replace(entry, status=EntryStatus.STARTED, lease_token=self.fence.token)

    def change_here(self, entry: Entry, status: EntryStatus, **values: Any) -> None:
        """Change an entry as part of the transaction in which it was begun, before that is committed.

        Raises `FenceLost` where the server has rolled that transaction back, or it is seen to have been committed.
        """
        connection = connections[self.fence.database]
        conditions = []
        if connection.vendor == "sqlite" and not getattr(connection.connection, "in_transaction", True):
            raise FenceLost
        # Not where `TestCase` makes a savepoint of the transaction: a savepoint has an id of its own.
        if connection.vendor == "postgresql" and not connection.savepoint_ids:
            conditions.append(_WRITTEN_IN_THIS_TRANSACTION)
        self._change(entry, status, *conditions, **values)

    def stored_status(self, key: str, *, wait: bool) -> EntryStatus | None:
        """Return the entry's status under our token, `None` where there is none, or the database is away.

        With `wait`, as after a commit whose answer was lost, it keeps asking for a whole lease.
        """
        deadline = time.monotonic() + self.fence.lease.total_seconds()
        while time.monotonic() < deadline:
            try:
                row = self._ours(key)
                return None if row is None else EntryStatus(row.status)
            except ConnectionProblem:
                connections[self.fence.database].close()
                if not wait:
                    break
                time.sleep(0.05)
        return None


def encode_result(value: Any) -> str:
    """Return a step's result as it is stored.

    Raises `ResultNotStored` where it cannot be.
    """
    try:
        return payloads.encode(value, "the step's result", limit=settings().MAX_PAYLOAD_BYTES)
    except Exception as error:  # a PayloadError, or something that an object in the result raised
        raise ResultNotStored(str(error)) from None


def is_whole(note: StepNote) -> bool:
    """Tell whether a note has kept its whole value: a long one is cut."""
    return len(note.value or "") < LONGEST_NOTE
