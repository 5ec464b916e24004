"""What a worker holds, published in shared memory.

A heartbeat that lives in the worker falls silent while a task holds the GIL. So the worker publishes the (id, token)
pairs that it holds here, and another process renews them. The memory outlives a crash of either side: a new heartbeat
process goes on where the old one was, and what a dead worker held is known at once.

One writer per field: the worker writes the entries and its farewell, the supervisor the state of the whole, the
heartbeat reads. Each field is 8 aligned bytes, which are stored at once. An entry's `generation` changes whenever the
worker uses it for another job, so that nobody takes the id of one job and the token of another for a pair.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from gnlqueue.queue.claimed import ClaimedJob, Pair


class Owner(IntEnum):
    """What the supervisor knows of the worker."""

    NONE = 0
    ALIVE = 1
    STOPPED = 2  #: by SIGSTOP: its leases are not renewed
    CRASHED = 3  #: what had begun is to blame
    ENDED = 4  #: of its own will: nothing is to blame


#: Of a worker that is gone, and whose jobs have yet to be given back.
GONE = {Owner.CRASHED, Owner.ENDED}


class Farewell(IntEnum):
    """How the worker says that it ends: its process may end with any status by what a task or a library does."""

    NONE = 0  #: it has not said anything: if it is gone, it crashed
    DONE = 1
    OVERDUE = 2  #: because of a job that is over its timeout
    NOT_READY = 3  #: the database cannot be worked with


class Stage(IntEnum):
    """How far a held job has come."""

    FREE = 0
    HELD = 1  #: claimed, not begun
    BEGUN = 2
    ENDED = 3  #: its task has run, and its outcome is not written yet
    OVERDUE = 4  #: over its timeout, and cannot be interrupted


class HeldJob(NamedTuple):
    """One entry as the heartbeat reads it."""

    pair: Pair
    stage: Stage


_WORKER_ID = slice(16, 116)  # in bytes; before it stand the owner and the pid
_OWNER, _PID, _FAREWELL, _ENTRIES = 0, 1, 15, 16  # in cells of 8 bytes, and so are these:
_STAGE, _ID, _TOKEN, _GENERATION, _ENTRY_SIZE = range(5)


class LeaseTable:
    """A fixed number of entries in anonymous shared memory; make it before forking."""

    def __init__(self, capacity: int) -> None:
        self._memory = mmap.mmap(-1, (_ENTRIES + capacity * _ENTRY_SIZE) * 8)
        self._cells = memoryview(self._memory).cast("q")
        self._places: dict[Pair, int] = {}  # -> the first cell of its entry; the worker's own
        self._free: list[int] = []
        self._free_all()

    # The supervisor's side.

    def assign(self, worker_id: str) -> None:
        """Empty the table for a new worker."""
        self.clear()
        name = worker_id.encode()[: _WORKER_ID.stop - _WORKER_ID.start]
        self._memory[_WORKER_ID.start : _WORKER_ID.start + len(name)] = name
        self._free_all()

    @property
    def owner(self) -> Owner:
        """What the supervisor knows of the worker."""
        return Owner(self._cells[_OWNER])

    @owner.setter
    def owner(self, owner: Owner) -> None:
        self._cells[_OWNER] = owner

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._cells[_PID]

    @pid.setter
    def pid(self, pid: int) -> None:
        self._cells[_PID] = pid

    def end(self) -> None:
        """Note that the worker is gone: of its own will if it has said farewell."""
        self.owner = Owner.CRASHED if self.farewell is Farewell.NONE else Owner.ENDED

    @property
    def worker_id(self) -> str:
        """The id under which the worker claims."""
        return self._memory[_WORKER_ID].rstrip(b"\0").decode()

    # The worker's side.

    @property
    def farewell(self) -> Farewell:
        """How the worker said that it ends."""
        return Farewell(self._cells[_FAREWELL])

    @farewell.setter
    def farewell(self, farewell: Farewell) -> None:
        self._cells[_FAREWELL] = farewell

    def hold(self, claimed: ClaimedJob) -> None:
        """Publish a job that has just been claimed."""
        place = self._free.pop()
        self._places[claimed.pair] = place
        cells = self._cells
        cells[place + _ID] = claimed.id
        cells[place + _TOKEN] = claimed.lease_token
        cells[place + _GENERATION] += 1
        cells[place + _STAGE] = Stage.HELD  # last: only now does anybody look at the entry

    def advance(self, claimed: ClaimedJob, stage: Stage) -> None:
        """Say how far a held job has come, in whatever thread; it never goes back."""
        place = self._places.get(claimed.pair)
        if place is not None and self._cells[place + _STAGE] < stage:
            self._cells[place + _STAGE] = stage

    def drop(self, claimed: ClaimedJob) -> None:
        """Take back a job whose outcome is written, or which was given back."""
        place = self._places.pop(claimed.pair, None)
        if place is not None:
            self._cells[place + _STAGE] = Stage.FREE
            self._free.append(place)

    def _free_all(self) -> None:
        self._places.clear()
        self._free = list(range(_ENTRIES, len(self._cells), _ENTRY_SIZE))[::-1]

    # The heartbeat's side.

    def __iter__(self) -> Iterator[HeldJob]:
        """Read what is held. An entry that changes meanwhile is left for the next beat."""
        cells = self._cells
        for place in range(_ENTRIES, len(cells), _ENTRY_SIZE):
            stage = cells[place + _STAGE]
            if stage == Stage.FREE:
                continue
            generation = cells[place + _GENERATION]
            pair = cells[place + _ID], cells[place + _TOKEN]
            if cells[place + _GENERATION] == generation and cells[place + _STAGE] != Stage.FREE:
                yield HeldJob(pair, Stage(stage))

    def clear(self) -> None:
        """Forget everything, once the jobs of a worker that is gone were given back."""
        after_owner = (_OWNER + 1) * 8
        self._memory[after_owner:] = bytes(len(self._memory) - after_owner)
        self.owner = Owner.NONE  # last: from now on the supervisor may give the table to a new worker
