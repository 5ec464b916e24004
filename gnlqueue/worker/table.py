"""What a worker holds, published in shared memory.

A heartbeat that lives in the worker falls silent while a task holds the GIL. So the worker publishes the (id, token)
pairs that it holds here, and another process renews them. The memory outlives a crash of either side: a new heartbeat
process goes on where the old one was, and what a dead worker held is known at once.

One writer per field: the worker writes the entries, the supervisor the state of the whole, the heartbeat reads. Each
field is 8 aligned bytes, which are stored at once. An entry's `generation` changes whenever the worker uses it for
another job, so that nobody takes the id of one job and the token of another for a pair.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from gnlqueue.queue.claimed import ClaimedJob, Pair


class Owner(IntEnum):
    """What the supervisor knows of the worker."""

    NONE = 0
    ALIVE = 1
    STOPPED = 2  #: by SIGSTOP: its leases are not renewed
    CRASHED = 3  #: what had begun counts as an attempt, and as a crash
    ENDED = 4  #: at its own will: nothing counts


class Stage(IntEnum):
    """How far a held job has come."""

    FREE = 0
    HELD = 1  #: claimed, not begun
    BEGUN = 2
    OVERDUE = 3  #: over its timeout, and cannot be interrupted


class Held(NamedTuple):
    """One entry as the heartbeat reads it."""

    pair: Pair
    stage: Stage


_HEADER = struct.Struct("=qq100s12x")  # owner, pid, worker id
_STAGE, _ID, _TOKEN, _GENERATION = range(0, 32, 8)
_ENTRY_SIZE = 32


class LeaseTable:
    """A fixed number of entries in anonymous shared memory; make it before forking."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._memory = mmap.mmap(-1, _HEADER.size + capacity * _ENTRY_SIZE)
        self._places: dict[int, int] = {}  # job id -> place; the worker's own
        self._free = list(range(capacity - 1, -1, -1))

    # The supervisor's side.

    def assign(self, worker_id: str) -> None:
        """Empty the table for a new worker."""
        self._memory[:] = bytes(len(self._memory))
        _HEADER.pack_into(self._memory, 0, Owner.NONE, 0, worker_id.encode()[:100])
        self._places.clear()
        self._free = list(range(self.capacity - 1, -1, -1))

    @property
    def owner(self) -> Owner:
        """What the supervisor knows of the worker."""
        return Owner(_read_int(self._memory, 0))

    @owner.setter
    def owner(self, owner: Owner) -> None:
        struct.pack_into("=q", self._memory, 0, owner)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return _read_int(self._memory, 8)

    @pid.setter
    def pid(self, pid: int) -> None:
        struct.pack_into("=q", self._memory, 8, pid)

    @property
    def worker_id(self) -> str:
        """The id under which the worker claims."""
        return str(_HEADER.unpack_from(self._memory, 0)[2].rstrip(b"\0").decode())

    # The worker's side.

    def hold(self, claimed: ClaimedJob) -> None:
        """Publish a job that has just been claimed."""
        place = self._free.pop()
        self._places[claimed.id] = place
        self._write(place, _ID, claimed.id)
        self._write(place, _TOKEN, claimed.lease_token)
        self._write(place, _GENERATION, self._read(place, _GENERATION) + 1)
        self._write(place, _STAGE, Stage.HELD)  # last: only now does anybody look at the entry

    def advance(self, claimed: ClaimedJob, stage: Stage) -> None:
        """Say how far a held job has come."""
        place = self._places.get(claimed.id)
        if place is not None:
            self._write(place, _STAGE, stage)

    def drop(self, claimed: ClaimedJob) -> None:
        """Take back a job whose outcome is written, or which was given back."""
        place = self._places.pop(claimed.id, None)
        if place is not None:
            self._write(place, _STAGE, Stage.FREE)
            self._free.append(place)

    def pairs(self) -> set[Pair]:
        """Return the (id, token) pairs that are held."""
        return {held.pair for held in self}

    # The heartbeat's side.

    def __iter__(self) -> Iterator[Held]:
        """Read what is held. An entry that changes meanwhile is left for the next beat."""
        for place in range(self.capacity):
            stage = self._read(place, _STAGE)
            if stage == Stage.FREE:
                continue
            generation = self._read(place, _GENERATION)
            pair = self._read(place, _ID), self._read(place, _TOKEN)
            if self._read(place, _GENERATION) == generation and self._read(place, _STAGE) != Stage.FREE:
                yield Held(pair, Stage(stage))

    def clear(self) -> None:
        """Forget everything, once the jobs of a worker that is gone were given back."""
        self._memory[:] = bytes(len(self._memory))

    def _at(self, place: int, field: int) -> int:
        return _HEADER.size + place * _ENTRY_SIZE + field

    def _read(self, place: int, field: int) -> int:
        return _read_int(self._memory, self._at(place, field))

    def _write(self, place: int, field: int, value: int) -> None:
        struct.pack_into("=q", self._memory, self._at(place, field), value)


def _read_int(memory: mmap.mmap, at: int) -> int:
    return int(struct.unpack_from("=q", memory, at)[0])
