"""`Run`: one durable execution under a run id."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar, cast

from gnlqueue import payloads
from gnlqueue.backoff import seconds
from gnlqueue.conf import settings
from gnlqueue.dialects import read_clock
from gnlqueue.durable import protocol
from gnlqueue.durable.base import Step
from gnlqueue.durable.effects import effect_key
from gnlqueue.durable.entries import NOTHING_INSTEAD, Entry, Journal
from gnlqueue.durable.failures import Failure, Failures
from gnlqueue.durable.fences import Fence
from gnlqueue.durable.kinds import KINDS, Moment, Now, Sleep
from gnlqueue.durable.options import StepOptions
from gnlqueue.durable.protocol import Flow, flow, inside_step
from gnlqueue.durable.replay import Mismatch, Replay
from gnlqueue.durable.steps import Steps
from gnlqueue.exceptions import (
    JobBlocked,
    JobGivenUp,
    JobInterrupt,
    JobPreempted,
    JobSuspended,
    PayloadError,
    StepFailed,
)
from gnlqueue.models import EntryStatus, StepKind, StepNote
from gnlqueue.queue.transactions import in_own_transaction

T = TypeVar("T")

_DEFAULTS = StepOptions()

MOST_NAMED = 20  # steps that one message names


class Run(Steps):
    """One durable execution. Its code must ask for the same steps in the same order on every attempt.

    An interrupt is a fact of the run: once one is set, every call here raises it again, whatever the code caught.
    """

    def __init__(self, run_id: str, fence: Fence, *, settling: bool = False) -> None:
        self.run_id = run_id
        self.fence = fence
        self.settling = settling  #: only to find out what became of a step; nothing new begins
        self.interrupt: JobInterrupt | None = None
        self._run = self
        self._options = _DEFAULTS
        self._loaded: tuple[Journal, Replay] | None = None
        self._lock = threading.RLock()  # one step at a time finds its place in the journal
        self._guard = threading.RLock()  # of what is open, and of the end; never held while the database is asked
        self._closed: threading.Condition | None = None  # made by who waits for a step of another thread
        self._open: list[Flow] = []  # of each open step, the flow of control that it belongs to
        self._ended = False
        self._latest: datetime | None = None  # what the database's clock said last
        self._main_flow = flow()
        self._failures = Failures(self._main_flow)

    # --- what a handler asks, besides its steps ----------------------------------------------------------------------

    def sleep(self, name: str, length: timedelta | float) -> None:
        """Let the run sleep for a length of time, once; no worker is held, and no attempt counts.

        The job is suspended here, and comes back to this line when the time is over.
        """
        protocol.refuse_event_loop("sleep")
        self._sleep(name, timedelta(seconds=seconds(length, "the sleep")), flow())

    async def asleep(self, name: str, length: timedelta | float) -> None:
        """Do what `sleep` does, from asynchronous code."""
        await protocol.wait_for(self._sleep, name, timedelta(seconds=seconds(length, "the sleep")), flow())

    def now(self) -> datetime:
        """Return the database's time at the first call here, and the same time on every replay."""
        protocol.refuse_event_loop("now")
        return self._now(flow())

    async def anow(self) -> datetime:
        """Do what `now` does, from asynchronous code."""
        return await protocol.wait_for(self._now, flow())

    def effect_key(self, name: str, key: str | None = None) -> str:
        """Return a text that names the effect of a step for ever, to hand to an API as its idempotency key."""
        return self._effect_key(name if key is None else f"{name}[{key}]")

    def check(self) -> None:
        """Raise when this run should stop; call it in long loops, as often as a small query is affordable.

        Raises `JobCancelled` when somebody asked to cancel, `JobPreempted` when the lease is lost.
        """
        protocol.refuse_event_loop("check")
        self._check()

    async def acheck(self) -> None:
        """Do what `check` does, from asynchronous code."""
        await protocol.wait_for(self._check)

    # --- what steps ask ----------------------------------------------------------------------------------------------

    def run_step(
        self,
        kind: str,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        """Do one step in this thread, and return its result."""
        _refuse_coroutines(name, function, "astep or aidempotent_step")
        protocol.refuse_event_loop(kind)
        caller = flow()
        caught = self._failures.caught_by(caller)
        step = self._open_step(KINDS[kind], name, function, args, kwargs, options, caller, caught)
        try:
            return protocol.drive(step.perform())
        except StepFailed as failed:
            self._failures.note_reached(caller, failed)
            raise
        finally:
            self._close_step(caller)

    async def arun_step(
        self,
        kind: str,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        """Do one step on this event loop, and return its result."""
        if kind == StepKind.ATOMIC:
            _refuse_coroutines(name, function, "a plain def, as one transaction lives in one thread")
        caller = flow()
        caught = self._failures.caught_by(caller)  # here, where the frames of the handler are
        step, cancelled = await protocol.to_its_end(
            self._open_step, KINDS[kind], name, function, args, kwargs, options, caller, caught
        )
        try:
            if cancelled is not None:
                raise cancelled
            return await protocol.adrive(step.perform())
        except StepFailed as failed:
            self._failures.note_reached(caller, failed)
            raise
        finally:
            self._close_step(caller)

    def begin_only_if_wanted(self, key: str) -> None:
        """Stop where no step may begin, though the run is held."""
        self._raise_if_stopped()
        if self.settling:
            self.stop(JobGivenUp(f"Its attempts are used up; the step {key!r} does not begin. Retry to go on."))

    def write(self, write: Callable[[], T]) -> T:
        """Do a fenced write; where the fence is lost, that stops the run."""
        try:
            return write()
        except JobInterrupt as stops:
            self.stop(stops)

    def note_failure(self, step: Step, failed: StepFailed) -> None:
        """Remember a failure that the handler is about to see; if it goes on after it, the failure is sealed."""
        self._failures.note(step, failed)

    def stop(self, interrupt: JobInterrupt) -> NoReturn:
        """Set what stops the run, unless something did before, and raise it."""
        with self._guard:
            if self.interrupt is None:
                self.interrupt = interrupt
        raise self.as_raised(self.interrupt)

    def as_raised(self, interrupt: JobInterrupt) -> BaseException:
        """Return what the handler sees of an interrupt."""
        return interrupt

    def out_of_mismatch(self, entry: Entry) -> str:
        """Return what can be done where the code does not fit an entry."""
        recorded = " use what was recorded," if entry.status in {EntryStatus.DONE, EntryStatus.FAILED} else ""
        return f"Put the code right and go on,{recorded} or fail the job: manage.py gnlqueue resolve {entry.id}."

    def check_journal(self, recorded: list[Entry]) -> None:
        """Stop where what is recorded under this run's id cannot be this run's."""

    # --- what the executor asks --------------------------------------------------------------------------------------

    @property
    def has_steps(self) -> bool:
        """Whether the handler made a journal call in this attempt."""
        return self._loaded is not None

    def end(self) -> None:
        """Wait until no step is open any more, and let none begin: the handler has returned or raised."""
        with self._guard:
            self._ended = True
            self._failures.forget()
            # The main flow is the handler's own, so that its steps have ended with it.
            if any(each != self._main_flow for each in self._open):
                self._closed = threading.Condition(self._guard)
                self._closed.wait_for(lambda: all(each == self._main_flow for each in self._open))

    def look_back(self) -> None:
        """Stop where the handler has returned though its code has left out what it must not; after `end`.

        A step whose outcome is unknown must not be passed over. And one that has a key is found by it alone: renamed it
        looks like a new one, and only now is it seen that nobody asks for the old one.
        """
        if self.interrupt is not None or self._loaded is None:
            return
        journal, replay = self._loaded
        for entry in replay.left_open():
            self._block_in_doubt(journal, entry)
        if (renamed := replay.renamed()) and (seen := journal.seen_to_repeat()):
            renamed = [(entry, again) for entry, again in renamed if entry.lease_token not in seen]
        if renamed:
            self._block_on_renamed(journal, renamed)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _open_step(
        self,
        kind: type[Step],
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        caller: Flow,
        caught: list[Failure],
    ) -> Step:
        """Find the step's key and what is recorded of it; from here on it is open."""
        self._refuse_where_no_step_can_begin(name)
        with self._guard:
            self._raise_if_stopped()
            self._open.append(caller)
        try:
            with self._lock:
                self._raise_if_stopped()
                journal, replay = self._load()
                key = replay.key(name, options.key, main_flow=caller == self._main_flow)
                args_hash = self._hash(key, args, kwargs) if args or kwargs else None
                try:
                    entry = replay.find(key, kind.kind, args_hash, match_args=options.match_args)
                except Mismatch as mismatch:
                    self._block_on_mismatch(journal, mismatch)
                self._failures.seal(caught)
        except BaseException:
            self._close_step(caller)
            raise
        effect = {options.pass_key_as: self._effect_key(key)} if options.pass_key_as else {}
        return kind(self, journal, key, caller, function, args, kwargs, args_hash, options, entry, effect)

    def _close_step(self, caller: Flow) -> None:
        with self._guard:
            self._open.remove(caller)
            if self._closed is not None:
                self._closed.notify_all()

    def _refuse_where_no_step_can_begin(self, name: str) -> None:
        run_id, outer = inside_step.get() or (None, None)
        if run_id == self.run_id:
            raise RuntimeError(
                f"The step {name!r} was begun inside the step {outer!r}: call it after that one instead."
            )
        if in_own_transaction(self.fence.database):
            raise RuntimeError(
                f"The step {name!r} was begun inside atomic(), or with autocommit off, on {self.fence.database!r}, "
                "which would roll its record back with the rest. Begin it outside, or put the writes into the function "
                "of an atomic_step."
            )

    def _block_on_mismatch(self, journal: Journal, mismatch: Mismatch) -> NoReturn:
        text = (
            f"The code does not fit the journal of {self.run_id!r}: {mismatch}. {self.out_of_mismatch(mismatch.entry)}"
        )
        got = payloads.encode(mismatch.got, "mismatch", limit=settings().MAX_PAYLOAD_BYTES)
        self._block_for_mismatch(journal, mismatch.entry, text, got)

    def _block_in_doubt(self, journal: Journal, entry: Entry) -> NoReturn:
        if entry.status != EntryStatus.IN_DOUBT:
            self.write(lambda: journal.change(entry, EntryStatus.IN_DOUBT))
        text = (
            f"The code no longer asks for the step {entry.key!r} of {self.run_id!r}, and nobody knows whether it "
            f"happened. Find out, and say so: manage.py gnlqueue resolve {entry.id}."
        )
        self.stop(JobBlocked(text, "in_doubt"))

    def _block_on_renamed(self, journal: Journal, renamed: list[tuple[Entry, str]]) -> None:
        first, _ = renamed[0]
        named = ", ".join(f"{entry.key!r} (it did {again!r} instead)" for entry, again in renamed[:MOST_NAMED])
        more = f", and {len(renamed) - MOST_NAMED} more" if len(renamed) > MOST_NAMED else ""
        text = (
            f"The code of {self.run_id!r} no longer asks for what was recorded: {named}{more}. Under another "
            "name or key this has perhaps happened twice. Put the code right and go on, go on without, or fail the "
            f"job: manage.py gnlqueue resolve {first.id}."
        )
        self._block_for_mismatch(journal, first, text, NOTHING_INSTEAD)

    def _block_for_mismatch(self, journal: Journal, entry: Entry, text: str, got: str) -> NoReturn:
        if (stops := self.fence.why_lost()) is not None:  # the run is somebody else's, and so is the question
            self.stop(stops)
        journal.note(entry, StepNote.Kind.MISMATCH, f"token {self.fence.token}", text, got)
        self.stop(JobBlocked(text, "mismatch"))

    def _check(self) -> None:
        self._raise_if_stopped()
        stops = self.fence.why_lost()
        if stops is not None:
            self.stop(stops)

    def _raise_if_stopped(self) -> None:
        if self.interrupt is not None:
            raise self.as_raised(self.interrupt)
        if self._ended:
            raise self.as_raised(JobPreempted(f"The attempt of {self.run_id!r} has ended; nothing begins after it."))

    def _sleep(self, name: str, length: timedelta, caller: Flow) -> None:
        until = self._moment(Sleep, name, length, caller)
        if self._latest is None or self._latest < until:  # a replay of many sleeps asks for the time once
            self._latest = read_clock(self.fence.database)
        if self._latest < until:
            self.stop(JobSuspended(f"The run {self.run_id!r} sleeps until {until:%Y-%m-%d %H:%M:%S} UTC.", until))

    def _now(self, caller: Flow) -> datetime:
        return self._moment(Now, "now", timedelta(), caller)

    def _moment(self, kind: type[Moment], name: str, offset: timedelta, caller: Flow) -> datetime:
        if caller != self._main_flow:
            raise ValueError(f"{kind.kind} belongs in the main flow of the run, not in a thread or an asyncio task.")
        caught = self._failures.caught_by(caller)
        step = self._open_step(kind, name, read_clock, (), {}, self._options, caller, caught)
        try:
            return cast(Moment, step).record_time(offset)
        finally:
            self._close_step(caller)

    def _load(self) -> tuple[Journal, Replay]:
        """Return the run's journal, read at the first call."""
        if self._loaded is None:
            journal = Journal(self.run_id, self.fence)
            self.check_journal(journal.recorded)
            self._loaded = journal, Replay(journal.recorded)
        return self._loaded

    def _hash(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        what, limit = f"the arguments of the step {key!r}", settings().MAX_PAYLOAD_BYTES
        try:
            return payloads.digest([list(args), kwargs], what, limit=limit)
        except PayloadError as error:
            raise PayloadError(
                f"{error} Or close over the value, lambda: …, which is not compared on replay."
            ) from None

    def _effect_key(self, step_key: str) -> str:
        return effect_key(self._identity(), step_key)

    def _identity(self) -> str:
        """Return what tells this run from all others, also from one of another database with the same id."""
        return self.run_id


def _refuse_coroutines(name: str, function: Callable[..., Any], instead: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"The function of the step {name!r} is async def; use {instead}.")
