"""The queue's upkeep, which every worker does between its claims: promote, rescue, count, prune, each at its pace."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta

from django.db import connections

from gnlqueue import dialects
from gnlqueue.conf import settings
from gnlqueue.metrics import counting, merging
from gnlqueue.models import QueueState, WorkerProcess
from gnlqueue.queue import claiming, pruning
from gnlqueue.worker.console import job_list
from gnlqueue.worker.losses import say_what_waits_for_a_human

logger = logging.getLogger("gnlqueue.worker")

PROMOTE_EVERY = 1.0  # seconds
FLUSH_EVERY = 10.0  # seconds
TIDY_EVERY = 60.0  # seconds
SILENT_FOR_GOOD = timedelta(days=1)  # without a heartbeat; a worker's row is for people, and then tells them nothing
PRUNE_AT_ONCE = 500  # jobs, so that claiming goes on in between
PRUNE_AGAIN = 0.25  # seconds, while there are more
LAST_PRUNES = 20  # at the most, by a worker that has drained its queues and ends
SHORTEST_STANDSTILL = 2.0  # seconds; whoever runs at all looks up more often


class Maintenance:
    """Promotes and rescues once a second, an idle worker at each poll; tidies up and prunes once a minute.

    Pruning goes on as long as there is more. Every ten seconds it writes what finished, for the admin's charts.

    `beat` is seconds between two heartbeats.

    After an outage nothing is rescued for one beat: the owners of leases that ran out meanwhile renew first. The same
    holds after a standstill, such as a suspended machine or a paused container, where owners may have stood still with
    us; and at the start, which may come right after either, unless the worker only drains and would be gone by then.

    An outage shorter than a beat does not count: no lease runs out so soon, and a worker whose connection breaks again
    and again would never rescue anything.
    """

    def __init__(self, queue_names: Sequence[str], *, database: str, beat: float, drain: bool = False) -> None:
        self._queue_names = queue_names
        self._database = database
        self._beat = beat
        self._next_promotion = 0.0
        self._next_flush = time.monotonic() + FLUSH_EVERY
        self._next_tidying = self._next_prune = time.monotonic() + TIDY_EVERY
        self._no_rescue_before = 0.0
        self._was_away = not drain
        self._reached_at = float("-inf"), float("-inf")
        self._looked_up_at = _clocks()

    def note_outage(self) -> None:
        """Note that the database cannot be reached, for however long."""
        self._was_away = True

    def look_up(self) -> None:
        """Note that this process runs, and whether it has stood still. To be called all the time."""
        if _seconds_since(self._looked_up_at) > max(self._beat, SHORTEST_STANDSTILL):
            self._was_away = True
        self._looked_up_at = _clocks()

    def do_what_is_due(self, *, idle: bool) -> None:
        """Do what is due; an idle worker promotes and rescues at each poll, as its claim would."""
        self.look_up()
        now = time.monotonic()
        if self._was_away:  # this is the first time that we are asked again: the database is back
            self._was_away = False
            if _seconds_since(self._reached_at) >= self._beat:
                self._no_rescue_before = now + self._beat
        if idle or now >= self._next_promotion:
            self._next_promotion = now + PROMOTE_EVERY
            claiming.promote(self._queue_names, alias=self._database)
            if now >= self._no_rescue_before:
                self._rescue()
        if now >= self._next_flush:
            self._next_flush = now + FLUSH_EVERY
            counting.finished.flush(self._database)
        if now >= self._next_tidying:
            self._next_tidying = now + TIDY_EVERY
            self._tidy()
        if now >= self._next_prune:
            self._next_prune = now + (PRUNE_AGAIN if self._prune() == PRUNE_AT_ONCE else TIDY_EVERY)
        self._reached_at = _clocks()

    def finish(self, *, drained: bool) -> None:
        """Do what was left for the next time, as there is none; `drained` says that nothing was due any more."""
        counting.finished.flush(self._database)
        if drained:  # a draining worker may never live long enough to prune, however often it is started
            for _ in range(LAST_PRUNES):
                if self._prune() < PRUNE_AT_ONCE:
                    break

    def warn_of_paused(self) -> None:
        """Say which queues are paused: whoever starts a worker expects it to work."""
        with connections[self._database].cursor() as cursor:
            cursor.execute(f"SELECT queue_name FROM {QueueState._meta.db_table} WHERE paused_at IS NOT NULL")
            paused = {name for (name,) in cursor.fetchall()}
        for name in sorted(paused.intersection(self._queue_names)):
            logger.warning("paused     %s: its jobs wait until manage.py gnlqueue resume %s", name, name)

    def _rescue(self) -> None:
        rescued = claiming.rescue(self._queue_names, alias=self._database)
        if rescued:
            ids = [each.job_id for each in rescued]
            logger.error("rescued    %s: the lease ran out, as the worker died or lost contact", job_list(ids))
            say_what_waits_for_a_human(rescued)

    def _tidy(self) -> None:
        long_ago = dialects.of(self._database).now(-SILENT_FOR_GOOD)
        with connections[self._database].cursor() as cursor:
            cursor.execute(f"DELETE FROM {WorkerProcess._meta.db_table} WHERE heartbeat_at < {long_ago}", ())
        merging.tidy(self._database)

    def _prune(self) -> int:
        retention = settings().RETENTION_SECONDS
        if retention is None:
            return 0
        pruned = pruning.prune(timedelta(seconds=retention), limit=PRUNE_AT_ONCE, using=self._database)
        if pruned:
            logger.info("pruned     %d finished jobs", pruned)
        return pruned


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()


def _seconds_since(then: tuple[float, float]) -> float:
    """Return how long ago that was, by the clock that says more.

    The monotonic one may stand still with the machine, and the one on the wall may be set back.
    """
    return max(now - before for now, before in zip(_clocks(), then, strict=True))
