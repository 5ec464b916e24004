"""Keeping alive what workers hold, and giving back what they held when they are gone.

Every third of a lease a beat renews exactly the (id, token) pairs that the workers publish, in one statement. In a
process of its own (`run_heartbeat_process`) it keeps beating while a task holds its worker's GIL; a `Worker` that runs
embedded in somebody's program beats from a thread (`HeartbeatThread`).
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from gnlqueue.connection import ConnectionProblem, Outage, dedicated, require_tables
from gnlqueue.exceptions import DatabaseNotReady
from gnlqueue.queue import crashes, leases, transitions
from gnlqueue.queue.claimed import Pair
from gnlqueue.worker import identity
from gnlqueue.worker.console import job_list
from gnlqueue.worker.forking import SIGNALS, let_signals_in
from gnlqueue.worker.losses import say_what_waits_for_a_human
from gnlqueue.worker.table import GONE, LeaseTable, Owner, Stage

logger = logging.getLogger("gnlqueue.worker")

BEATS_PER_LEASE = 3
#: Seconds between two looks at the workers of a supervisor that was killed.
ORPHAN_WATCH = 0.2
#: Seconds until what could not be given back is offered again: often a lock is only the dead worker's own, for as long
#: as the server has not noticed that it is gone.
OFFER_AGAIN = 0.5


@dataclass(frozen=True)
class Heartbeat:
    """One beat over some workers' tables. `lease` is seconds; `health_file` is touched after each beat that worked."""

    database: str
    lease: float
    tables: Sequence[LeaseTable]
    health_file: Path | None = None
    _gone: dict[str, float] = field(default_factory=dict, init=False)  # worker id -> until when to look again

    @property
    def interval(self) -> float:
        """Seconds between two beats."""
        return self.lease / BEATS_PER_LEASE

    def beat(self) -> None:
        """Renew what living workers hold.

        What is not renewed was just finished, or is lost: its worker learns that from the guard, at its next write.
        """
        alive = [table for table in self.tables if table.owner is Owner.ALIVE]
        # A supervisor that was stopped does not note who has died. (Without one no pid is given: the worker is here.)
        alive = [table for table in alive if not table.pid or _lives(table.pid)]
        published = [held.pair for table in alive for held in table]
        leases.renew(published, timedelta(seconds=self.lease), alias=self.database)
        ids = [table.worker_id for table in alive]
        identity.note_beat(ids, self.database)
        if self.health_file is not None:
            try:
                self.health_file.touch()
            except OSError as error:  # no reason to let leases run out
                logger.error("The health file cannot be touched: %s", error)

    def give_back(self) -> bool:
        """Give back what was held by workers that are gone, and empty their tables.

        Return whether something is left, because somebody has locked it.
        """
        for table in self.tables:
            if table.owner in GONE:
                self._give_back(table)
        for worker_id, until in list(self._gone.items()):
            if time.monotonic() >= until:
                del self._gone[worker_id]  # and this is the last look
            self._release_late_claims(worker_id)
        return any(table.owner in GONE for table in self.tables)

    def _release_late_claims(self, worker_id: str) -> None:
        """Give back what a worker that is gone claimed last: the server may commit that after all else went back."""
        late = leases.held_by(worker_id, alias=self.database)
        if transitions.release_pairs(late, alias=self.database, skip_locked=True):
            _say_given_back(worker_id, set(late), [], [], [], late)

    def _give_back(self, table: LeaseTable) -> None:
        """Give back what can be without waiting for a row.

        What somebody has locked is left for later, and the table with it: it says how far the job had come.
        """
        worker_id = table.worker_id
        at = {stage: [each.pair for each in table if each.stage is stage] for stage in Stage}
        overdue = at[Stage.OVERDUE]
        begun, ended = (at[Stage.BEGUN], at[Stage.ENDED]) if table.owner is Owner.CRASHED else ([], [])
        held = set(leases.held_by(worker_id, alias=self.database))  # also what it has not published yet
        rest = sorted(held.difference(overdue, begun, ended))
        transitions.release_pairs(rest, alias=self.database, skip_locked=True)
        lost = crashes.end_crashed(worker_id, begun, ended, alias=self.database)
        lost += crashes.end_overdue(overdue, alias=self.database)
        left = set(leases.held_by(worker_id, alias=self.database))
        _say_given_back(worker_id, held - left, begun, ended, overdue, rest)
        say_what_waits_for_a_human(lost)
        if not left:
            self._gone[worker_id] = time.monotonic() + self.interval
            identity.forget(worker_id, self.database)
            table.clear()


def _say_given_back(
    worker_id: str, gone: set[Pair], begun: list[Pair], ended: list[Pair], overdue: list[Pair], rest: list[Pair]
) -> None:
    """Log what became of the jobs that are `gone`: one line for all that fared alike."""
    counts = "the attempt counts" if len(begun or ended) == 1 else "nobody knows which did it, no attempt counts"
    died = "which died before it had written what came of it"
    for level, pairs, text in (
        (logging.ERROR, begun, f"rescued    %s, begun by %s, which died; {counts}"),
        (logging.ERROR, ended, f"rescued    %s, run by %s, {died}; {'no attempt counts' if begun else counts}"),
        (logging.ERROR, overdue, "failed     %s, over the timeout; %s was ended because of it"),
        (logging.WARNING, rest, "released   %s, held by %s, which ended; no attempt counted"),
    ):
        ids = [id for id, token in pairs if (id, token) in gone]
        if ids:
            logger.log(level, text, job_list(ids), worker_id)


class HeartbeatThread(threading.Thread):
    """Beats for one worker in its own process. Its first beat comes a third of a lease after the start."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        super().__init__(name="gnlqueue-heartbeat", daemon=True)
        self._heartbeat = heartbeat
        self._stopped = threading.Event()

    def run(self) -> None:
        """Beat until stopped."""
        interval = self._heartbeat.interval
        outage = Outage(self._heartbeat.database, interval)
        wait = interval
        while not self._stopped.wait(wait):
            try:
                with dedicated(self._heartbeat.database, interval):
                    while not self._stopped.is_set():
                        self._heartbeat.beat()
                        outage.over()
                        self._stopped.wait(interval)
            except ConnectionProblem as error:
                wait = outage.pause(error)
            except Exception:
                logger.exception("A heartbeat failed; the next one comes at its time.")
                wait = interval

    def stop(self) -> None:
        """End the thread; waits for a beat that is under way."""
        self._stopped.set()
        self.join()


def run_heartbeat_process(heartbeat: Heartbeat, wakes: int) -> None:
    """Beat until no worker is left whose leases it keeps.

    `wakes` is the reading end of a pipe: the supervisor writes a byte when a worker has ended, and closes it when all
    have. It also closes when the supervisor is killed. Then the heartbeat sees for itself which workers still live:
    they finish what they run, and need their leases until then.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # last to go: the supervisor says when
    let_signals_in()
    outage = Outage(heartbeat.database, heartbeat.interval)
    supervised, next_beat = True, time.monotonic()
    while True:
        try:
            with dedicated(heartbeat.database, heartbeat.interval) as connection:
                require_tables(connection)
                while supervised or any(table.owner is not Owner.NONE for table in heartbeat.tables):
                    if not supervised:
                        _notice_deaths(heartbeat.tables)
                    if time.monotonic() >= next_beat:  # first: the living have leases to lose
                        heartbeat.beat()
                        next_beat = time.monotonic() + heartbeat.interval
                    pause = OFFER_AGAIN if heartbeat.give_back() else heartbeat.interval
                    outage.over()
                    pause = min(pause, next_beat - time.monotonic())
                    supervised = _wait(wakes, pause, supervised=supervised)
                return
        except ConnectionProblem as error:
            supervised = _wait(wakes, outage.pause(error), supervised=supervised)
            if not supervised:
                _notice_deaths(heartbeat.tables)
                if not any(_needs_us(table) for table in heartbeat.tables):
                    return
        except DatabaseNotReady:  # the workers say so, and end; unless somebody migrates just now
            supervised = _wait(wakes, heartbeat.interval, supervised=supervised)
            if not supervised:
                return


def _wait(wakes: int, seconds: float, *, supervised: bool) -> bool:
    """Wait for a word from the supervisor, or until the next beat is due; `False` once it closed the pipe."""
    if not supervised:
        time.sleep(max(min(seconds, ORPHAN_WATCH), 0))
        return False
    readable, _, _ = select.select([wakes], [], [], max(seconds, 0))
    return not readable or os.read(wakes, 4096) != b""


def _needs_us(table: LeaseTable) -> bool:
    return table.owner in {Owner.ALIVE, Owner.STOPPED} or any(table)


def _notice_deaths(tables: Sequence[LeaseTable]) -> None:
    for table in tables:
        if table.owner in {Owner.ALIVE, Owner.STOPPED} and not _lives(table.pid):
            table.end()


def _lives(pid: int) -> bool:
    """Tell whether a process lives that is not a child of ours; one that nobody has waited for yet does not."""
    if not pid:  # the supervisor died before it could note it
        return False
    try:
        os.kill(pid, 0)
        if not hasattr(os, "pidfd_open"):
            return True
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # a sandbox does not let us look closer
        return True
    try:
        ended, _, _ = select.select([watch], [], [], 0)
        return not ended
    finally:
        os.close(watch)
