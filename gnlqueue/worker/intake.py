"""How many jobs a worker claims, and from which queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC
from functools import partial

from gnlqueue import dialects
from gnlqueue.connection import ConnectionProblem
from gnlqueue.queue import ClaimedJob, claiming, leases, transitions
from gnlqueue.queue.candidates import Floor
from gnlqueue.worker.floors import Floors
from gnlqueue.worker.holdings import Holdings
from gnlqueue.worker.prefetch import Prefetch

LOOK_EVERY = 1.0  # seconds, for claims whose answer was lost


class Intake:
    """Claims for as many slots as are free, and for a little more while tasks are short.

    The queues are served in turn, so that none starves behind another. `lease` is seconds. `floors` may be shared with
    other workers of the same queues.
    """

    def __init__(
        self,
        queue_names: Sequence[str],
        holdings: Holdings,
        floors: Floors,
        *,
        worker_id: str,
        database: str,
        lease: float,
        concurrency: int,
        prefetches: bool,
    ) -> None:
        self._queue_names = deque(queue_names)
        self._holdings = holdings
        self._worker_id = worker_id
        self._database = database
        self._lease = lease
        self._concurrency = concurrency
        self.prefetch = Prefetch(concurrency=concurrency, wanted=prefetches)
        self._unheard_until: float | None = None  # when (monotonic) a claim without an answer is past committing
        self._next_look = 0.0  # for such a claim
        self._floors = floors if dialects.of(database).keeps_dead_rows else None

    def room(self) -> int:
        """Return how many jobs may be claimed now; 0 or less for none.

        Rather many than few, as each claim costs a commit: a quarter of the prefetch is run before more is claimed.
        """
        if self._holdings.has_suspect:
            return 0
        prefetch = self.prefetch.size()
        room = self._concurrency + prefetch - len(self._holdings)
        return room if room >= prefetch // 4 else 0

    def free_slots(self) -> int:
        """Return how many jobs could begin at once."""
        return self._concurrency - len(self._holdings)

    def claim(self, limit: int) -> list[ClaimedJob]:
        """Claim up to `limit` jobs, and hold them."""
        self.release_unheard()
        if not self._holdings:
            self.prefetch.begin()
        batch: list[ClaimedJob] = []
        self._queue_names.rotate(-1)
        for name in self._queue_names:
            try:
                claimed = self._claim_from(name, limit - len(batch))
            except ConnectionProblem:
                self._unheard_until = time.monotonic() + self._lease  # it may have been committed anyway, or be soon
                self._next_look = 0.0
                if not batch:
                    raise
                break  # what we do hold is to be started; the next statement meets the problem again
            for each in claimed:
                self._holdings.add(each)
            batch += claimed
            if len(batch) >= limit or self._holdings.has_suspect:
                break
        return batch

    def _claim_from(self, name: str, limit: int) -> list[ClaimedJob]:
        """Claim from one queue.

        As long as a queue has as many as are asked for, a claim starts where the last one ended; the whole queue is
        looked at from time to time, and whenever a claim gets fewer than it asked for. See `floors`.
        """
        claim = partial(
            claiming.claim_ready,
            name,
            worker_id=self._worker_id,
            lease=self._lease,
            limit=limit,
            alias=self._database,
        )
        if self._floors is None:
            return claim()
        floor = self._floors.take_turn(name)
        claimed = claim(beyond=floor) if floor else []
        looked = None
        if not claimed:
            began = time.monotonic()
            claimed = claim()
            looked = time.monotonic() - began
        if len(claimed) < limit:
            self._floors.forget(name)
        elif looked is not None:
            self._floors.begin(name, _place(claimed[-1]), looked)
        elif floor:
            self._floors.go_on(name, floor, _place(claimed[-1]))
        return claimed

    def release_unheard(self, *, at_once: bool = False) -> None:
        """After a claim whose answer was lost: give back what stands in our name though we never heard of it.

        Before the next claim, then once a second for as long as a lease, and `at_once` when the worker leaves: the
        server may still have been about to commit at the first look, and what a living worker holds is not rescued.
        """
        now = time.monotonic()
        if self._unheard_until is None or (now < self._next_look and not at_once):
            return
        known = {claimed.pair for claimed in self._holdings}
        held = leases.held_by(self._worker_id, alias=self._database)
        unheard = [pair for pair in held if pair not in known]
        transitions.release_pairs(unheard, alias=self._database)
        self._next_look = now + LOOK_EVERY
        if now >= self._unheard_until:
            self._unheard_until = None


def _place(claimed: ClaimedJob) -> Floor:
    return claimed.priority, claimed.run_at.astimezone(UTC), claimed.id  # naive where USE_TZ is off
