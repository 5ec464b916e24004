"""How many jobs a worker claims, and from which queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from gnlqueue import dialects
from gnlqueue.connection import ConnectionProblem
from gnlqueue.queue import ClaimedJob, claiming, leases, transitions
from gnlqueue.queue.candidates import Floor
from gnlqueue.worker.holdings import Holdings
from gnlqueue.worker.prefetch import Prefetch

SCANS = 1 / 20  # of the time, for claims that look at a whole queue
SCAN_EVERY = 1.0  # seconds, at the least
LOOK_EVERY = 1.0  # seconds, for claims whose answer was lost


class Intake:
    """Claims for as many slots as are free, and for a little more while tasks are short.

    The queues are served in turn, so that none starves behind another. `lease` is seconds.
    """

    def __init__(
        self,
        queue_names: Sequence[str],
        holdings: Holdings,
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
        self._has_floors = dialects.of(database).keeps_dead_rows
        self._floors: dict[str, tuple[Floor, float]] = {}  # by queue: what was claimed last; when to look before it

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

        As long as a queue has as many as are asked for, a claim starts where the last one ended, and does not walk over
        the dead rows of earlier claims. The whole queue is looked at from time to time (jobs of a higher priority,
        jobs that came back), and whenever a claim gets fewer than it asked for.
        """
        claim = partial(
            claiming.claim_ready,
            name,
            worker_id=self._worker_id,
            lease=self._lease,
            limit=limit,
            alias=self._database,
        )
        claimed: list[ClaimedJob] = []
        began = time.monotonic()
        floor, until = self._floors.pop(name, (None, 0.0))
        if floor is not None and began < until:
            claimed = claim(beyond=floor)
        if not claimed:
            claimed = claim()
            ended = time.monotonic()
            until = ended + min((ended - began) / SCANS, SCAN_EVERY)
        if len(claimed) == limit and self._has_floors:
            last = claimed[-1]
            self._floors[name] = (last.priority, last.run_at, last.id), until
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
