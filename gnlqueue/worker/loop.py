"""`Worker`: one process's claim loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from django.db import connections

from gnlqueue import dialects, queue
from gnlqueue.conf import settings
from gnlqueue.connection import ConnectionProblem, Outage, dedicated, require_tables
from gnlqueue.exceptions import DatabaseNotReady, GnlqueueError
from gnlqueue.lengths import seconds
from gnlqueue.models import Job
from gnlqueue.queue import ClaimedJob, claiming, crashes, transitions
from gnlqueue.queue.attempts import max_attempts
from gnlqueue.queue.transactions import alias_of
from gnlqueue.worker import executor, foreground, identity, outcomes, wakeup
from gnlqueue.worker.connections import close_broken_connections
from gnlqueue.worker.console import job_list
from gnlqueue.worker.executor import Outcome, Terms
from gnlqueue.worker.floors import Floors
from gnlqueue.worker.heartbeat import BEATS_PER_LEASE, Heartbeat, HeartbeatThread
from gnlqueue.worker.holdings import Holdings
from gnlqueue.worker.inbox import Inbox
from gnlqueue.worker.intake import Intake
from gnlqueue.worker.maintenance import Maintenance
from gnlqueue.worker.outbox import Outbox
from gnlqueue.worker.pace import Pace
from gnlqueue.worker.pool import Pool
from gnlqueue.worker.prefetch import MAX_PREFETCH, PATIENCE
from gnlqueue.worker.suspects import Suspects
from gnlqueue.worker.table import LeaseTable, Owner
from gnlqueue.worker.timeouts import Timeouts

logger = logging.getLogger("gnlqueue.worker")

GROUP_DELAY = 0.005  # seconds that an outcome waits for others while more are running
GROUPS = 4  # in which the outcomes of what is held are written
LET_BEGIN = 0.001  # seconds that the loop leaves the interpreter to what it has just started
LONGEST_NAP = 1.0  # seconds between two looks at whether the supervisor still lives
POLLS_TO_LONGEST = 32  # max_poll_interval, in poll intervals


@contextmanager
def _running(thread: HeartbeatThread | wakeup.Watcher | None) -> Iterator[None]:
    """Let a thread run beside this block, if there is one."""
    if thread is None:
        yield
        return
    thread.start()
    try:
        yield
    finally:
        thread.stop()


class Worker:
    """Claim jobs, run them, write what came of them.

    1. Claims only as many jobs as there are free slots, and a few more while tasks are short.
    2. Runs `def` tasks in threads and `async def` tasks on one event loop, `concurrency` of them at once.
    3. Writes outcomes in groups; a slot is free only when its outcome is written.
    4. Keeps its leases alive with a heartbeat (a thread here, another process under `runworker`).
    5. Promotes, rescues and prunes in between.
    6. Waits for a wakeup, a due job or the next poll, and polls less and less often while there is nothing to do.

    Lengths of time are timedeltas or seconds; `None` stands for the default.

    - `queues` are served in turn: by default every queue that a registered task names, and `default`.
    - `database` is an alias (default: that of the setting `DATABASE`, else the router's).
    - `lease` is how long a job stays the worker's without a heartbeat (default: the setting `LEASE_SECONDS`).
    - `heartbeat=False` renews no lease: a job that runs longer may be taken over.
    - `poll_interval` is the first pause of an idle worker, `max_poll_interval` (default: 32 times that) the longest.
      `backoff=False` has it poll at `poll_interval` all the time.
    - `worker_id` is the prefix of the id under which it claims (default: the host's name); the rest makes it unique.
    - `on_error(claimed, error)` is called after a failure is recorded.
    - `drain=True` stops it once nothing is due.
    - `shutdown_timeout` is how long running jobs may go on after `stop()` (default: `SHUTDOWN_TIMEOUT_SECONDS`).
    - `table` and `floors` are a supervisor's. The table carries the worker's whole id, and its heartbeat process sees
      in it what the worker holds; without one a thread beats. The floors say where claims go on.

    Raises `ValueError` for a number out of range, `InvalidTask` for an invalid queue name, `TypeError` for `queues`
    that are a text.
    """

    def __init__(
        self,
        queues: Sequence[str] | None = None,
        *,
        database: str | None = None,
        concurrency: int = 4,
        lease: timedelta | float | None = None,
        poll_interval: timedelta | float = 0.2,
        max_poll_interval: timedelta | float | None = None,
        backoff: bool = True,
        heartbeat: bool = True,
        worker_id: str | None = None,
        on_error: outcomes.ErrorHook | None = None,
        drain: bool = False,
        shutdown_timeout: timedelta | float | None = None,
        table: LeaseTable | None = None,
        floors: Floors | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency!r}.")
        self.queues = identity.served_queues(queues)
        self.database = alias_of(database)
        self.concurrency = concurrency
        self.lease = seconds(settings().LEASE_SECONDS if lease is None else lease, "lease")
        self.poll_interval = seconds(poll_interval, "poll_interval")
        longest = self.poll_interval * POLLS_TO_LONGEST if max_poll_interval is None else max_poll_interval
        self.max_poll_interval = seconds(longest, "max_poll_interval") if backoff else self.poll_interval
        self.heartbeat = heartbeat
        self.worker_id = identity.new_worker_id(worker_id) if table is None else table.worker_id
        self.drain = drain
        self.shutdown_timeout = seconds(
            settings().SHUTDOWN_TIMEOUT_SECONDS if shutdown_timeout is None else shutdown_timeout, "shutdown_timeout"
        )
        self._on_error = on_error
        self._supervised = table is not None
        self._table = table or LeaseTable(self.concurrency + MAX_PREFETCH)
        if not self._supervised:
            self._table.assign(self.worker_id)
        self._holdings = Holdings(self._table)
        self._timeouts = Timeouts()
        self._terms = Terms(self._timeouts, timedelta(seconds=self.lease), lambda: self._stop_by is not None)
        self._inbox = Inbox()
        self._pool = Pool(concurrency, self._table, self._terms, self._inbox.put)
        self._intake = Intake(
            self.queues,
            self._holdings,
            floors or Floors(self.queues),
            worker_id=self.worker_id,
            database=self.database,
            lease=self.lease,
            concurrency=concurrency,
            prefetches=not drain,
        )
        self._beat = self.lease / BEATS_PER_LEASE
        self._maintenance = Maintenance(self.queues, database=self.database, beat=self._beat, drain=drain)
        self._outbox = Outbox(self._holdings, self._intake.prefetch, on_error, self._maintenance.look_up)
        self._pace = Pace(self.poll_interval, self.max_poll_interval)
        self._still_wanted: Callable[[], bool] = lambda: True
        self._suspects = Suspects(self._holdings, self._pool.put)
        self._woken = False
        self._was_idle = True  # at the last look there was nothing to do
        self._is_drained = False
        self._stop_by: float | None = None
        self._ask_again_at = 0.0

    # --- one job -----------------------------------------------------------------------------------------------------

    def run_once(self) -> Job | None:
        """Claim and run at most one job in this thread; return it as it then is, or `None` where there is none."""
        claim = partial(queue.claim, worker_id=self.worker_id, lease=self.lease, using=self.database)
        claimed = next(filter(None, map(claim, self.queues)), None)
        if claimed is None:
            return None
        self._table.owner = Owner.ALIVE
        with _running(self._heartbeat_thread()):
            foreground.run(claimed, self._holdings, self._terms, self._on_error)
        return queue.get(claimed)

    def _heartbeat_thread(self) -> HeartbeatThread | None:
        """Return what beats for this worker; `None` where a supervisor's heartbeat process does, or nobody shall."""
        if self._supervised or not self.heartbeat:
            return None
        return HeartbeatThread(Heartbeat(self.database, self.lease, [self._table]))

    # --- the loop ----------------------------------------------------------------------------------------------------

    def stop(self, *, at_once: bool = False) -> None:
        """Stop claiming, finish what runs within the shutdown timeout, give back the rest. Safe in a signal handler."""
        stop_by = time.monotonic() + (0 if at_once else self.shutdown_timeout)
        self._stop_by = stop_by if self._stop_by is None else min(stop_by, self._stop_by)
        self._inbox.ring()

    def run(self, still_wanted: Callable[[], bool] = lambda: True) -> None:
        """Work until `stop()`, until `still_wanted` says no (asked at least once a second), or until all is drained.

        Waits for a database that cannot be reached for as long as it takes.

        Raises `DatabaseNotReady` where the queue's tables are missing.
        """
        self._still_wanted = still_wanted
        if not self._supervised:
            self._table.owner = Owner.ALIVE
        with _running(self._heartbeat_thread()), _running(wakeup.watcher(self.database, self.queues, self._wake)):
            try:
                self._work()
            finally:
                self._pool.end()
        self._leave()

    def _work(self) -> None:
        """Take turn after turn on a connection of the loop's own, and on a new one when that breaks."""
        outage = Outage(self.database, self._beat)
        reached = False
        while not self._finished():
            try:
                with dedicated(self.database, self._beat) as connection:
                    require_tables(connection)
                    identity.register(self.worker_id, self.queues, self.concurrency, self.database, lease=self.lease)
                    if not reached:
                        self._maintenance.warn_of_paused()
                    reached = True
                    while not self._finished():
                        delay = self._turn()
                        outage.over()
                        self._wait(delay)
                    self._outbox.write()
                    self._maintenance.finish(drained=self._is_drained)
            except ConnectionProblem as error:
                if not reached and dialects.of(self.database).is_hopeless(error):
                    raise self._not_ready(error) from error
                self._note_outage()
                self._wait(outage.pause(error))

    def _not_ready(self, error: BaseException) -> DatabaseNotReady:
        return DatabaseNotReady(
            f"The database {self.database!r} cannot be used: {error}. Does the directory of "
            f"{connections[self.database].settings_dict['NAME']} exist, and may this user write there?"
        )

    def _note_outage(self) -> None:
        """Prepare for a database that is away: what runs goes on, and what has not begun does not wait for long."""
        self._maintenance.note_outage()
        self._pool.note_outage()
        # What waits may be somebody else's by the time its turn comes; while stopping, nothing is to begin.
        patience = PATIENCE if self._stop_by is None else 0.0
        self._outbox.give_back_later(self._take_back_unbegun(patience))
        self._end_overdue()

    def _turn(self) -> float:
        """Write what is finished, then claim and start what fits; return how long to wait for news (seconds)."""
        self._outbox.write()
        close_broken_connections(other_than=self.database)  # those that receivers of our signals use
        self._end_overdue()
        if self._stop_by is not None:
            self._outbox.give_back(self._take_back_unbegun())
            return 0.0 if self._finished() else self._stop_by - time.monotonic()
        self._suspects.start_if_alone()
        if not self.drain:  # it ends before what is put off comes again
            self._suspects.put_off_if_late()
        late = self._pool.take_back(PATIENCE)
        if late:
            self._intake.prefetch.pause()  # or this worker would claim them again at once
        self._outbox.give_back(late)
        # When woken, claim before the upkeep; but a draining worker must promote first, to know that nothing is due.
        woken = self._pace.is_woken and not self.drain
        if not woken:
            self._maintenance.do_what_is_due(idle=not self._holdings and (self.drain or self._was_idle))
        room = self._pool.places_of(self._intake.room())
        claimed = []
        if room > 0:
            self._pace.note_look()
            claimed = self._intake.claim(room)
        else:
            self._intake.release_unheard()  # as a claim does
        if self._stop_by is not None:  # meanwhile
            self._outbox.give_back(claimed)
            return 0.0
        self._start(claimed)
        if woken:
            self._maintenance.do_what_is_due(idle=False)
        self._was_idle = not self._holdings
        if not claimed:
            return self._pause(room)
        self._pace.reset()
        if self._intake.room() <= 0:
            return PATIENCE
        return 0.0 if len(claimed) == room else LET_BEGIN  # there may be more all the same, such as a suspect

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start(self, batch: list[ClaimedJob]) -> None:
        """Start what was claimed; what cannot begin now and must not wait goes back."""
        free = self._intake.free_slots() + len(batch)
        back, ready = [], []
        try:
            prepared = [executor.prepare(claimed) for claimed in batch]
        except ConnectionProblem:
            self._outbox.give_back_later(batch)
            raise
        for place, (claimed, task) in enumerate(zip(batch, prepared, strict=True)):
            if isinstance(task, Outcome):
                self._outbox.add([task])
            elif place >= free and claimed.attempts >= max_attempts(claimed):
                back.append(claimed)  # if this machine died now, it would be dead without ever having begun
            elif claimed.is_suspect:
                self._suspects.add(claimed, task)
            else:
                ready.append((claimed, task))
        self._pool.put(ready)
        if back:
            self._intake.prefetch.pause()
            self._outbox.give_back(back)
        self._suspects.start_if_alone()
        self._outbox.write()

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Note that there may be new jobs; from the watcher's thread."""
        self._woken = True
        self._inbox.ring()

    def _wait(self, delay: float) -> None:
        """Wait for news, and gather the outcomes that come in together."""
        ends = time.monotonic() + delay
        while True:
            self._stop_if_unwanted()
            self._maintenance.look_up()
            left = self._timeouts.seconds_left()
            nap = min(ends - time.monotonic(), LONGEST_NAP if left is None else min(left, LONGEST_NAP))
            if self._inbox.wait(nap):
                break
            if time.monotonic() >= ends or nap == left:  # the latter: somebody is to be interrupted
                break
        # A lone outcome is written at once. One of many waits for others, but not so long that the threads have nothing
        # left to run while these are written and the next are claimed.
        if 0 < len(self._inbox) < (group := len(self._holdings) // GROUPS):
            self._inbox.wait(min(GROUP_DELAY, ends - time.monotonic()), outcomes=group)
        self._outbox.add(self._inbox.take())
        if self._woken:
            self._woken = False
            self._pace.wake()

    def _stop_if_unwanted(self) -> None:
        """Ask once a second, however busy the worker is, whether the supervisor still lives."""
        now = time.monotonic()
        if self._stop_by is not None or now < self._ask_again_at:
            return
        self._ask_again_at = now + LONGEST_NAP
        if not self._still_wanted():
            logger.warning("stopping   the supervisor is gone")
            self.stop()

    def _pause(self, room: int) -> float:
        """Return how long to wait when nothing was claimed."""
        if self.drain and not self._holdings and room > 0:
            self._is_drained = True
            self.stop()
            return 0.0
        if room <= 0:
            return PATIENCE  # an outcome wakes us earlier
        return self._pace.pause(partial(claiming.seconds_until_due, self.queues, alias=self.database))

    # --- ending ------------------------------------------------------------------------------------------------------

    @property
    def has_overdue(self) -> bool:
        """Whether the worker ended because of a job that is over its timeout and could not be interrupted."""
        return bool(self._holdings.overdue)

    def _finished(self) -> bool:
        """Tell whether the worker stops, and has nothing left to wait for or no more time."""
        if self._stop_by is None:
            return False
        return len(self._holdings) == len(self._holdings.overdue) or time.monotonic() >= self._stop_by

    def _take_back_unbegun(self, older_than: float = 0.0) -> list[ClaimedJob]:
        """Return what has waited for `older_than` seconds, and a suspect in any case; none of it will begin."""
        return self._pool.take_back(older_than) + self._suspects.take_back()

    def _end_overdue(self) -> None:
        """Stop attempts that are over their time; for one that cannot be stopped, end this process."""
        for claimed in self._timeouts.interrupt_overdue():
            if self._holdings.mark_overdue(claimed):
                logger.error(
                    "overdue    %s  job %d does not end; this worker ends because of it", claimed.task_name, claimed.id
                )
        if self._holdings.overdue and self._stop_by is None:
            self.stop()

    def _leave(self) -> None:
        """Give back what still runs: embedded here, else by the heartbeat process once this process has ended."""
        overdue = {claimed.pair for claimed in self._holdings.overdue}
        unfinished = [claimed for claimed in self._holdings if claimed.pair not in overdue]
        if unfinished:
            logger.warning(
                "stopping   without %s, which did not finish in time", job_list([each.id for each in unfinished])
            )
        if self._supervised:
            return
        try:
            self._intake.release_unheard(at_once=True)
            crashes.end_overdue(list(overdue), alias=self.database)
            transitions.release_many(unfinished)
            identity.forget(self.worker_id, self.database)
        except (*ConnectionProblem, GnlqueueError) as error:
            logger.error("What this worker held could not be given back; its leases will run out. %s", error)
        self._holdings.drop(self._holdings)
        connections.close_all()
