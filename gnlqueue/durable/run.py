"""`Run`: one durable execution under a run id."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from asgiref.sync import sync_to_async

from gnlqueue import payloads
from gnlqueue.backoff import seconds
from gnlqueue.conf import settings
from gnlqueue.dialects import read_clock
from gnlqueue.durable import protocol
from gnlqueue.durable.entries import Journal
from gnlqueue.durable.fences import Fence
from gnlqueue.durable.kinds import KINDS, Moment, Now, Sleep, Step
from gnlqueue.durable.options import StepOptions
from gnlqueue.durable.protocol import flow, inside_step
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
from gnlqueue.models import StepNote
from gnlqueue.queue.transactions import in_own_transaction

T = TypeVar("T")

_DEFAULTS = StepOptions()


class Run(Steps):
    """One durable execution. Its code must ask for the same steps in the same order on every attempt.

    An interrupt is a fact of the run: once one is set, every call here raises it again, whatever the code caught.
    """

    def __init__(self, run_id: str, fence: Fence, *, first: bool = False, settling: bool = False) -> None:
        self.run_id = run_id
        self.fence = fence
        self.settling = settling  #: only to find out what became of a step; nothing new begins
        self.interrupt: JobInterrupt | None = None
        self._run = self
        self._options = _DEFAULTS
        self._first = first
        self._loaded: tuple[Journal, Replay] | None = None
        self._lock = threading.RLock()
        self._no_step_open = threading.Condition(self._lock)
        self._open = 0
        self._ended = False
        self._failure: tuple[Step, StepFailed] | None = None  # raised to the handler, and not sealed yet
        self._main_flow = flow()

    # --- what a handler asks, besides its steps ----------------------------------------------------------------------

    def sleep(self, name: str, length: timedelta | float) -> None:
        """Let the run sleep for a length of time, once; no worker is held, and no attempt counts.

        The job is suspended here, and comes back to this line when the time is over.
        """
        self._sleep(name, timedelta(seconds=seconds(length, "the sleep")), flow())

    async def asleep(self, name: str, length: timedelta | float) -> None:
        """Do what `sleep` does, from asynchronous code."""
        await sync_to_async(self._sleep)(name, timedelta(seconds=seconds(length, "the sleep")), flow())

    def now(self) -> datetime:
        """Return the database's time at the first call here, and the same time on every replay."""
        return self._now(flow())

    async def anow(self) -> datetime:
        """Do what `now` does, from asynchronous code."""
        return await sync_to_async(self._now)(flow())

    def effect_key(self, name: str, key: str | None = None) -> str:
        """Return a text that names the effect of a step for ever, to hand to an API as its idempotency key."""
        return self._effect_key(name if key is None else f"{name}[{key}]")

    def check(self) -> None:
        """Raise when this run should stop; call it in long loops, as often as a small query is affordable.

        Raises `JobCancelled` when somebody asked to cancel, `JobPreempted` when the lease is lost.
        """
        self._raise_if_stopped()
        stops = self.fence.why_lost()
        if stops is not None:
            self.stop(stops)

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
        step = self._open_step(KINDS[kind], name, function, args, kwargs, options, flow())
        try:
            return protocol.drive(step.perform())
        finally:
            self._close_step()

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
        step = await sync_to_async(self._open_step)(KINDS[kind], name, function, args, kwargs, options, flow())
        try:
            return await protocol.adrive(step.perform())
        finally:
            self._close_step()

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
        with self._lock:
            self._failure = step, failed

    def stop(self, interrupt: JobInterrupt) -> NoReturn:
        """Set what stops the run, unless something did before, and raise it."""
        with self._lock:
            if self.interrupt is None:
                self.interrupt = interrupt
        raise self.as_raised(self.interrupt)

    def as_raised(self, interrupt: JobInterrupt) -> BaseException:
        """Return what the handler sees of an interrupt."""
        return interrupt

    # --- what the executor asks --------------------------------------------------------------------------------------

    @property
    def has_steps(self) -> bool:
        """Whether the handler made a journal call in this attempt."""
        return self._loaded is not None

    def end(self) -> None:
        """Wait until no step is open any more, and let none begin: the handler has returned or raised."""
        with self._lock:
            self._ended = True
            self._no_step_open.wait_for(lambda: self._open == 0)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _open_step(
        self,
        kind: type[Step],
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        flow_of_caller: object,
    ) -> Step:
        """Find the step's key and what is recorded of it; from here on it is open."""
        self._refuse_where_no_step_can_begin(name)
        with self._lock:
            self._raise_if_stopped()
            journal, replay = self._load()
            key = replay.key(name, options.key, main_flow=flow_of_caller == self._main_flow)
            args_hash = self._hash(key, args, kwargs) if args or kwargs else None
            try:
                entry = replay.find(key, kind.kind, args_hash, match_args=options.match_args)
            except Mismatch as mismatch:
                self._block_on_mismatch(journal, mismatch)
            self._seal_failure()
            self._open += 1
        effect = {options.pass_key_as: self._effect_key(key)} if options.pass_key_as else {}
        return kind(self, journal, key, partial(function, **effect), args, kwargs, args_hash, options, entry)

    def _close_step(self) -> None:
        with self._lock:
            self._open -= 1
            self._no_step_open.notify_all()

    def _refuse_where_no_step_can_begin(self, name: str) -> None:
        outer = inside_step.get()
        if outer is not None:
            raise RuntimeError(
                f"The step {name!r} was begun inside the step {outer!r}: call it after that one instead."
            )
        if in_own_transaction(self.fence.database):
            raise RuntimeError(
                f"The step {name!r} was begun inside atomic() on {self.fence.database!r}, which would roll its record "
                "back with the rest. Begin it outside, or put the writes into the function of an atomic_step."
            )

    def _seal_failure(self) -> None:
        if self._failure is not None:
            (step, failed), self._failure = self._failure, None
            step.seal(failed)

    def _block_on_mismatch(self, journal: Journal, mismatch: Mismatch) -> NoReturn:
        text = (
            f"The code does not fit the journal of {self.run_id!r}: {mismatch}. Put the code right and go on, use what "
            f"was recorded, or fail the job: manage.py gnlqueue resolve {mismatch.entry.id}."
        )
        got = payloads.encode(mismatch.got, "mismatch", limit=settings().MAX_PAYLOAD_BYTES)
        journal.note(mismatch.entry, StepNote.Kind.MISMATCH, f"token {self.fence.token}", text, got)
        self.stop(JobBlocked(text, "mismatch"))

    def _raise_if_stopped(self) -> None:
        if self.interrupt is not None:
            raise self.as_raised(self.interrupt)
        if self._ended:
            raise self.as_raised(JobPreempted(f"The attempt of {self.run_id!r} has ended; nothing begins after it."))

    def _sleep(self, name: str, length: timedelta, flow_of_caller: object) -> None:
        until = self._moment(Sleep, name, length, flow_of_caller)
        if read_clock(self.fence.database) < until:
            self.stop(JobSuspended(f"The run {self.run_id!r} sleeps until {until:%Y-%m-%d %H:%M:%S} UTC.", until))

    def _now(self, flow_of_caller: object) -> datetime:
        return self._moment(Now, "now", timedelta(), flow_of_caller)

    def _moment(self, kind: type[Moment], name: str, offset: timedelta, flow_of_caller: object) -> datetime:
        step = self._open_step(kind, name, read_clock, (), {}, self._options, flow_of_caller)
        try:
            return cast(Moment, step).record_time(offset)
        finally:
            self._close_step()

    def _load(self) -> tuple[Journal, Replay]:
        """Return the run's journal, read at the first call."""
        if self._loaded is None:
            journal = Journal(self.run_id, self.fence, first=self._first)
            self._loaded = journal, Replay(journal.entries.values())
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
        return f"gnlqueue-{hashlib.sha256(f'{self._identity()}:{step_key}'.encode()).hexdigest()[:40]}"

    def _identity(self) -> str:
        """Return what tells this run from all others, also from one of another database with the same id."""
        return self.run_id
