"""`Run`: one durable execution under a run id."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar

from gnlqueue import payloads
from gnlqueue.conf import settings
from gnlqueue.dialects import read_clock
from gnlqueue.durable import blocking, moments, protocol
from gnlqueue.durable.base import Step
from gnlqueue.durable.effects import effect_key
from gnlqueue.durable.entries import Entry, Journal, Wanted, function_name, tells_all
from gnlqueue.durable.failures import Failure, Failures
from gnlqueue.durable.fences import Fence
from gnlqueue.durable.keys import is_keyed, keyed
from gnlqueue.durable.kinds import KINDS
from gnlqueue.durable.open_steps import OpenSteps
from gnlqueue.durable.options import StepOptions
from gnlqueue.durable.protocol import Flow, flow, inside_step
from gnlqueue.durable.replay import Mismatch, Replay
from gnlqueue.durable.steps import Asked, Steps
from gnlqueue.exceptions import (
    JobGivenUp,
    JobInterrupt,
    JobPreempted,
    PayloadError,
    StepFailed,
)
from gnlqueue.lengths import seconds
from gnlqueue.models import OUTCOME_RECORDED, StepKind
from gnlqueue.queue.transactions import in_own_transaction

T = TypeVar("T")

_DEFAULTS = StepOptions()


class Place(NamedTuple):
    """Where a step stands in the journal; `entry` is what the journal has of it, `None` where it is new."""

    journal: Journal
    wanted: Wanted
    entry: Entry | None


class Run(Steps):
    """One durable execution. Its code must ask for the same steps in the same order on every attempt.

    An interrupt is a fact of the run: once one is set, every call here raises it again, whatever the code caught.
    """

    #: Whether several pieces of code share the run, so that none of them asks for all of its steps.
    is_shared = False

    def __init__(self, run_id: str, fence: Fence, *, settling: bool = False) -> None:
        self.run_id = run_id
        self.fence = fence
        self.settling = settling  #: it runs only to find out what became of a step; nothing new begins
        self.interrupt: JobInterrupt | None = None
        self._options = _DEFAULTS
        self._loaded: tuple[Journal, Replay] | None = None
        self._lock = threading.RLock()  # one step at a time finds its place in the journal
        self._interrupting = threading.Lock()  # the first interrupt counts
        self._latest: datetime | None = None  # what the database's clock said last
        self.main_flow = flow()
        self.open_steps = OpenSteps()
        self.failures = Failures(self.main_flow)

    @property
    def _run(self) -> Run:
        return self  # not an attribute: in such a circle it would outlive its job, until the next collection of garbage

    # --- what a handler asks, besides its steps ----------------------------------------------------------------------

    def sleep(self, name: str, length: timedelta | float) -> None:
        """Let the run sleep for a length of time, once; no worker is held, and no attempt counts.

        The job is suspended here, and comes back to this line when the time is over.
        """
        protocol.refuse_event_loop("sleep")
        moments.sleep(self, name, timedelta(seconds=seconds(length, "the sleep")), flow())

    async def asleep(self, name: str, length: timedelta | float) -> None:
        """Do what `sleep` does, from asynchronous code."""
        await protocol.wait_for(moments.sleep, self, name, timedelta(seconds=seconds(length, "the sleep")), flow())

    def now(self) -> datetime:
        """Return the database's time at the first call here, and the same time on every replay."""
        protocol.refuse_event_loop("now")
        return moments.now(self, flow())

    async def anow(self) -> datetime:
        """Do what `now` does, from asynchronous code."""
        return await protocol.wait_for(moments.now, self, flow())

    def effect_key(self, name: str, key: str | None = None) -> str:
        """Return a text that names the effect of a step for ever, to pass to an API as its idempotency key.

        `key` is the step's, if it has one. The second step of one name is `"name#2"`.
        """
        return self._effect_key(name if key is None else keyed(name, key))

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

    def run_step(self, asked: Asked) -> Any:
        """Do one step in this thread, and return its result."""
        _refuse_coroutines(asked, "astep or aidempotent_step")
        protocol.refuse_event_loop(asked.kind)
        caller = flow()
        caught = self.failures.caught_by(caller)
        with self.open_steps.entered(caller):
            step = self._find_step(asked, caller, caught)
            try:
                return protocol.drive(step.perform())
            except StepFailed as failed:
                self.failures.note_reached(caller, failed)
                raise

    async def arun_step(self, asked: Asked) -> Any:
        """Do one step on this event loop, and return its result."""
        if asked.kind == StepKind.ATOMIC:
            _refuse_coroutines(asked, "a plain def, as one transaction lives in one thread")
        caller = flow()
        caught = self.failures.caught_by(caller)  # here, where the frames of the handler are
        with self.open_steps.entered(caller):
            step = await protocol.wait_for(self._find_step, asked, caller, caught)
            try:
                return await protocol.adrive(step.perform())
            except StepFailed as failed:
                self.failures.note_reached(caller, failed)
                raise

    def find(
        self,
        kind: str,
        name: str,
        caller: Flow,
        caught: list[Failure],
        options: StepOptions = _DEFAULTS,
        function: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Place:
        """Return where a step that was entered stands in the journal, and seal what its caller has `caught`.

        Blocks the run where something else was recorded there.
        """
        self._refuse_where_no_step_can_begin(name)
        with self._lock:
            self._raise_if_stopped()
            journal, replay = self._load()
            main_flow = caller == self.main_flow
            key = replay.key(name, options.key, main_flow=main_flow)
            args_hash = _hash(key, args, kwargs or {}) if args or kwargs else None
            wanted = Wanted(key, kind, args_hash, function_name(function))
            try:
                entry = replay.find(wanted, match_args=options.match_args)
                if (entry is None or entry.not_happened) and not self.is_shared:
                    sure = main_flow or tells_all(function)
                    renamed = blocking.find_renamed(
                        self, journal, replay, wanted, entry, match_args=options.match_args, sure=sure
                    )
                    entry = renamed or entry
                    if renamed is None:
                        wanted = replay.note_what_it_may_repeat(wanted, entry)
            except Mismatch as mismatch:
                blocking.on_mismatch(self, journal, mismatch)
            self.failures.seal(caught)
        return Place(journal, wanted, entry)

    def is_past(self, time: datetime) -> bool:
        """Tell whether this time has passed, by the database's clock."""
        if self._latest is None or self._latest < time:  # a replay of many sleeps asks once
            self._latest = read_clock(self.fence.database)
        return self._latest >= time

    def check_may_begin(self, key: str) -> None:
        """Stop where no step may begin although the run is held."""
        self._raise_if_stopped()
        if self.settling:
            self.stop(JobGivenUp(f"Its attempts are used up, so the step {key!r} does not begin. Retry to go on."))

    def check_held(self) -> None:
        """Stop where the run is lost or cancelled; costs no commit."""
        stops = self.fence.why_lost()
        if stops is not None:
            self.stop(stops)

    def write(self, write: Callable[[], T]) -> T:
        """Do a fenced write; where the fence is lost, that stops the run."""
        try:
            return write()
        except JobInterrupt as stops:
            self.stop(stops)

    def stop(self, interrupt: JobInterrupt) -> NoReturn:
        """Set what stops the run, unless something did before, and raise it."""
        with self._interrupting:
            if self.interrupt is None:
                self.interrupt = interrupt
        raise self.as_raised(self.interrupt)

    def as_raised(self, interrupt: JobInterrupt) -> BaseException:
        """Return what the handler sees of an interrupt."""
        return interrupt

    def out_of_mismatch(self, entry: Entry) -> str:
        """Return what the message says can be done where the code does not fit an entry."""
        recorded = " use what was recorded," if entry.status in OUTCOME_RECORDED else ""
        return f"Put the code right and go on,{recorded} or fail the job: manage.py gnlqueue resolve {entry.id}."

    def check_journal(self, recorded: list[Entry]) -> None:
        """Stop where what is recorded under this run's id cannot be this run's."""

    # --- what the executor asks --------------------------------------------------------------------------------------

    @property
    def has_steps(self) -> bool:
        """Whether the handler made a journal call in this attempt."""
        return self._loaded is not None

    def end(self) -> None:
        """Let no step begin any more, and wait until none is open: the handler has returned or raised."""
        self.open_steps.close()
        self.failures.forget()
        self.open_steps.wait(self.main_flow)

    def look_back(self) -> None:
        """Stop where the handler has returned, but its code has left out what it must not leave out; after `end`.

        A step whose outcome is unknown must not be passed over. And a keyed step is found by its key alone: under
        another name or key it looks like a new step, and only now is it certain that nobody asks for the old one.
        """
        if self.interrupt is not None or self._loaded is None:
            return
        journal, replay = self._loaded
        for entry in replay.left_in_doubt():
            if not self.is_shared or not is_keyed(entry.key):  # a keyed one waits for the code that it belongs to
                blocking.on_left_in_doubt(self, journal, entry)
        if not self.is_shared:
            blocking.on_repetitions(self, journal, replay)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _find_step(self, asked: Asked, caller: Flow, caught: list[Failure]) -> Step:
        kind, name, function, args, kwargs, options = asked
        journal, wanted, entry = self.find(kind, name, caller, caught, options, function, args, kwargs)
        return KINDS[kind](
            run=self,
            journal=journal,
            wanted=wanted,
            entry=entry,
            caller=caller,
            function=function,
            args=args,
            kwargs=kwargs,
            effect={options.pass_key_as: self._effect_key(wanted.key)} if options.pass_key_as else {},
            options=options,
        )

    def _refuse_where_no_step_can_begin(self, name: str) -> None:
        run_id, outer = inside_step.get() or (None, None)
        if run_id == self.run_id:
            raise RuntimeError(
                f"The step {name!r} was called inside the step {outer!r}: call it after that one instead."
            )
        if in_own_transaction(self.fence.database):
            raise RuntimeError(
                f"The step {name!r} was called inside atomic(), or with autocommit off, on {self.fence.database!r}, "
                "which would roll its record back with the rest. Call it outside, or put the writes into the function "
                "of an atomic_step."
            )

    def _check(self) -> None:
        self._raise_if_stopped()
        self.check_held()

    def _raise_if_stopped(self) -> None:
        if self.interrupt is not None:
            raise self.as_raised(self.interrupt)
        if self.open_steps.closed:
            raise self.as_raised(JobPreempted(f"The attempt of {self.run_id!r} has ended; nothing begins after it."))

    def _load(self) -> tuple[Journal, Replay]:
        """Return the run's journal, read at the first call."""
        if self._loaded is None:
            journal = Journal(self.run_id, self.fence)
            self.check_journal(journal.entries)
            self._loaded = journal, Replay(journal.entries)
        return self._loaded

    def _effect_key(self, step_key: str) -> str:
        return effect_key(self._identity(), step_key)

    def _identity(self) -> str:
        """Return what tells this run from all others, even from one with the same id in another database."""
        return self.run_id


def _refuse_coroutines(asked: Asked, instead: str) -> None:
    if inspect.iscoroutinefunction(asked.function):
        raise TypeError(f"The function of the step {asked.name!r} is async def; use {instead}.")


def _hash(key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    what, limit = f"the arguments of the step {key!r}", settings().MAX_PAYLOAD_BYTES
    try:
        return payloads.digest([list(args), kwargs], what, limit=limit)
    except PayloadError as error:
        raise PayloadError(f"{error} Or close over the value, lambda: …, which is not compared on replay.") from None
