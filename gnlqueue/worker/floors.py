"""Where claims go on in each queue, in memory that the workers of one supervisor share.

A claim from the head of a queue walks over the dead rows of earlier claims: over all of them, while somebody holds an
old snapshot. So a claim starts at the place where the last one ended, whichever worker made it. Now and then one of
them looks at the whole queue (for jobs of a higher priority, and jobs that came back), while the others go on. All then
go on from where that look ended.

Nobody locks anything. Whoever reads a place while it is written may start elsewhere, or look once more; what stands
before is found by the next look.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from struct import Struct

from gnlqueue.queue.candidates import Floor

SCANS = 1 / 20  # of the time, for looks at a whole queue
SCAN_EVERY = 1.0  # seconds, or sooner

#: Whether there is a floor; its priority, run_at in microseconds and id; when to look at the whole queue (monotonic).
_ENTRY = Struct("qqqqd")
EPOCH, TICK = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class Floors:
    """The place of what was claimed last, by queue; make it before forking."""

    def __init__(self, queue_names: Sequence[str]) -> None:
        self._memory = mmap.mmap(-1, _ENTRY.size * len(queue_names))
        self._offsets = {name: place * _ENTRY.size for place, name in enumerate(queue_names)}

    def take_turn(self, queue_name: str) -> Floor | None:
        """Return where to go on, or `None` for a look at the whole queue, which the others leave to the caller."""
        floor, look_at = self._read(queue_name)
        if floor is not None and time.monotonic() >= look_at:
            self._write(queue_name, floor, time.monotonic() + SCAN_EVERY)  # in case that the caller does not return
            return None
        return floor

    def go_on(self, queue_name: str, began: Floor, ended: Floor) -> None:
        """Note where a claim ended that began at a floor, unless another one got further.

        Nor where a look has ended before that floor meanwhile: what it found may not be all that stands there.
        """
        known, look_at = self._read(queue_name)
        if known is not None and _order(began) <= _order(known) < _order(ended):
            self._write(queue_name, ended, look_at)

    def begin(self, queue_name: str, floor: Floor, looked: float) -> None:
        """Note where a look at the whole queue ended, which took so many seconds."""
        self._write(queue_name, floor, time.monotonic() + min(looked / SCANS, SCAN_EVERY))

    def forget(self, queue_name: str) -> None:
        """Have the next claim look at the whole queue: there was less than was asked for."""
        self._write(queue_name, None, 0.0)

    def _read(self, queue_name: str) -> tuple[Floor | None, float]:
        known, priority, ticks, id, look_at = _ENTRY.unpack_from(self._memory, self._offsets[queue_name])
        return ((priority, EPOCH + ticks * TICK, id) if known else None), look_at

    def _write(self, queue_name: str, floor: Floor | None, look_at: float) -> None:
        priority, run_at, id = floor or (0, EPOCH, 0)
        entry = floor is not None, priority, (run_at - EPOCH) // TICK, id, look_at
        _ENTRY.pack_into(self._memory, self._offsets[queue_name], *entry)


def _order(floor: Floor) -> tuple[int, datetime, int]:
    priority, run_at, id = floor
    return -priority, run_at, id
