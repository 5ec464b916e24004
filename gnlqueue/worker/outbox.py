"""What a worker's loop has still to tell the database: outcomes to write, jobs to give back. `inbox` is its other end.

All of it stays here until the database has taken it: what could not be written while it was away is offered again. If
it goes on refusing outcomes, it is offered them without their results and the texts of errors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from gnlqueue.queue import ClaimedJob, transitions
from gnlqueue.worker import outcomes
from gnlqueue.worker.console import job_list, length
from gnlqueue.worker.executor import Outcome
from gnlqueue.worker.holdings import Holdings
from gnlqueue.worker.prefetch import Prefetch

logger = logging.getLogger("gnlqueue.worker")

LOOK_UP_EVERY = 0.5  # seconds, while outcomes are written
SLOW = 5.0  # seconds to write outcomes, in which the loop does nothing else
MOST_REFUSALS = 5  # of outcomes in a row, until they are stored without such values (one may break the connection)


class Outbox:
    """Takes jobs out of `holdings` once they are written or given back, and tells `prefetch` how long they ran.

    `look_up` is called while they are written: `on_error` and the receivers of our signals may take their time.
    """

    def __init__(
        self,
        holdings: Holdings,
        prefetch: Prefetch,
        on_error: outcomes.ErrorHook | None,
        look_up: Callable[[], None],
    ) -> None:
        self._holdings = holdings
        self._prefetch = prefetch
        self._on_error = on_error
        self._look_up = look_up
        self._unwritten: list[Outcome] = []
        self._unreleased: list[ClaimedJob] = []
        self._refusals = 0  # in a row, on a connection that was just made

    def add(self, ended: Iterable[Outcome]) -> None:
        """Take these to be written next."""
        self._unwritten += ended

    def write(self) -> None:
        """Write the outcomes. Raises what a broken connection raises, and keeps those that are not written yet."""
        if not self._unwritten:
            return
        if self._refusals >= MOST_REFUSALS:
            logger.error(
                "The database refuses to store what came of %d jobs; trying without results and error texts.",
                len(self._unwritten),
            )
            self._unwritten = [outcomes.without_values(outcome) for outcome in self._unwritten]
        written: list[Outcome] = []
        began = looks_up_at = time.monotonic()

        def note(outcome: Outcome) -> None:
            nonlocal looks_up_at
            written.append(outcome)
            if time.monotonic() >= looks_up_at:
                looks_up_at = time.monotonic() + LOOK_UP_EVERY
                self._look_up()

        self._refusals += 1
        try:
            outcomes.write(self._unwritten, self._on_error, note)
            self._refusals = 0
            if (took := time.monotonic() - began) >= SLOW:
                logger.warning(
                    "slow       %s to write what came of %s; nothing was claimed meanwhile. Did a long transaction "
                    "lock their rows, or are signal receivers slow?",
                    length(took),
                    job_list([outcome.claimed.id for outcome in written]),
                )
        finally:
            self._prefetch.note([outcome.seconds for outcome in written if outcome.seconds])  # some never ran
            self._holdings.drop(outcome.claimed for outcome in written)
            if len(written) == len(self._unwritten):
                self._unwritten = []
            else:
                done = {outcome.claimed.pair for outcome in written}
                self._unwritten = [outcome for outcome in self._unwritten if outcome.claimed.pair not in done]

    def give_back_later(self, jobs: Iterable[ClaimedJob]) -> None:
        """Take jobs to be released with the next ones: the database is away."""
        self._unreleased += jobs

    def give_back(self, jobs: Iterable[ClaimedJob]) -> None:
        """Release jobs, with those that could not be released before. Raises and keeps them as `write` does."""
        self._unreleased += jobs
        if not self._unreleased:
            return
        transitions.release_many(self._unreleased)
        self._holdings.drop(self._unreleased)
        self._unreleased = []
