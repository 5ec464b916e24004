"""The three kinds of step, and what each outcome means for them.

========================================  ==============  ===================  ==================
what happens                              `AtMostOnce`    `AtLeastOnce`        `ExactlyOnce`
========================================  ==============  ===================  ==================
crash before its start is stored          runs            runs                 runs
crash after that                          in doubt        runs again           rolled back, again
crash after its end is stored             replayed        replayed             replayed
raises one of `safe_errors`               failed, again   failed, again        rolled back, again
raises one of `final_errors`              failed          failed               failed
raises anything else                      in doubt        again                rolled back, again
result cannot be stored                   in doubt        failed               failed
lease lost while it runs                  evidence        nothing is recorded  rolled back
========================================  ==============  ===================  ==================

If the function of an `atomic_step` ends the transaction itself, the step is treated as a `step`: what the function did
until then is stored, so that a crash or an exception after it leaves the step in doubt.

Each kind performs a step as a generator that asks its driver for calls and pauses (see `protocol`). `failed` means
known not to have happened, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, NoReturn, cast

from django.db import DatabaseError

from gnlqueue import dialects
from gnlqueue.answers import Happened, NotHappened, Unknown
from gnlqueue.durable import atomic, protocol
from gnlqueue.durable.base import Step, TryAgain, described_error, shown
from gnlqueue.durable.entries import Entry, ResultNotStored
from gnlqueue.durable.protocol import CallFunction, Pause, Protocol, Reply
from gnlqueue.exceptions import JobBlocked, JobGivenUp, StepFailed
from gnlqueue.models import EntryStatus, StepKind
from gnlqueue.queue.transactions import FIRST_PAUSE, TRIES

logger = logging.getLogger("gnlqueue")


class AtLeastOnce(Step):
    """An `idempotent_step`: nothing is stored before the call, only its result after it."""

    kind = StepKind.IDEMPOTENT

    def attempt(self) -> Protocol:
        self.run.check_held()
        reply = yield self.call()
        error = reply.error
        if error is None:
            try:
                return self.store_result(reply.value)
            except ResultNotStored as unstorable:
                error = unstorable
        raise self.after_error(error) from error


class MayBeInDoubt(Step):
    """A step whose start may be stored without its end, so that nobody knows whether it happened."""

    def settle(self) -> Generator[CallFunction | Pause, Reply, Happened | None]:
        entry = self.entry
        if entry is not None and entry.status == EntryStatus.IN_DOUBT:
            self.block("a human has not decided yet")
        if entry is None or entry.status != EntryStatus.STARTED:
            return None
        answer = yield from self._recover()
        if isinstance(answer, Happened):
            return self._store_recovered(answer)
        if not isinstance(answer, NotHappened) and self.options.on_doubt != "rerun":
            self.block("its attempt ended in the middle")
        if self.run.settling:
            self.run.write(lambda: self.journal.change(entry, EntryStatus.RELEASED))
        return None

    def note_failure(self, error: BaseException) -> StepFailed:
        if self.entry is not None and self.entry.status == EntryStatus.STARTED:
            return self.store_failure(error, sealed=False)  # at once: a started entry would look like a crash
        return super().note_failure(error)

    def doubt(self, error: BaseException, why: str) -> Protocol:
        """Settle what became of a step whose function ended with something that proves nothing about its effect."""
        answer = yield from self._recover()
        ends_the_attempt = not isinstance(error, Exception)  # a timeout, a cancelled asyncio task
        if isinstance(answer, Happened):
            recovered = self._store_recovered(answer)
            if ends_the_attempt:
                raise error
            return recovered.result
        if not isinstance(answer, NotHappened) and self.options.on_doubt != "rerun":
            self.block(why, error)
        if ends_the_attempt:
            self.store_failure(error, sealed=False)
            raise error
        raise self.after_error(error) from error

    def _recover(self) -> Generator[CallFunction | Pause, Reply, object]:
        """Ask the step's `recover`; anything but a clear answer counts as `Unknown()`."""
        if self.options.recover is None:
            return Unknown()
        reply = yield self.question(self.options.recover)
        if reply.error is not None:
            logger.error("recover of %r raised this; the outcome stays unknown.", self.key, exc_info=reply.error)
            return Unknown()
        if not isinstance(reply.value, Happened | NotHappened | Unknown):
            logger.error("recover of %r returned %r, which is not an answer.", self.key, reply.value)
            return Unknown()
        return reply.value

    def _store_recovered(self, answer: Happened) -> Happened:
        try:
            return Happened(self.store_result(answer.result))
        except ResultNotStored as error:
            self.note(f"recover: {error}", shown(answer.result))
            self.block("the result that recover returned cannot be stored", error)

    def block(self, why: str, error: BaseException | None = None) -> NoReturn:
        """Store that the step is in doubt, and stop the run: it waits for a human, or fails if `on_doubt` says so."""
        entry = cast(Entry, self.entry)
        if entry.status != EntryStatus.IN_DOUBT:
            described = {**(described_error(error) if error else {}), "how_to_check": self.options.how_to_check}
            self.record(EntryStatus.IN_DOUBT, evidence=why, error=described)
        text = f"Nobody knows whether the step {self.key!r} of {self.run.run_id!r} happened: {why}."
        if self.options.on_doubt == "fail":
            self.run.stop(JobGivenUp(text))
        self.run.stop(JobBlocked(f"{text} Find out, and say so: manage.py gnlqueue resolve {entry.id}.", "in_doubt"))


class ExactlyOnce(MayBeInDoubt):
    """An `atomic_step`: its record and its writes are one transaction."""

    kind = StepKind.ATOMIC

    def attempt(self) -> Protocol:
        self.run.check_held()
        try:
            self.entry, result = atomic.run(self.journal, self.wanted, self.entry, self._function)
        except atomic.HalfCommitted as half:
            self.entry = half.entry
            if half.result:
                self.note(f"It returned; {half}", half.result)
            raised = "" if half.error is half else f"; then {shown(half.error)} was raised"
            return (yield from self.doubt(half.error, f"{half}{raised}"))
        except atomic.RolledBack as rolled_back:
            self.run.check_held()
            raise self.after_error(rolled_back) from rolled_back
        except BaseException as error:
            if not self._begun and self._lost_a_race(error):
                raise TryAgain(FIRST_PAUSE * 2**self._races) from error
            raise self.after_error(error) from error
        return result

    _begun = False
    _races = 0

    def _lost_a_race(self, error: BaseException) -> bool:
        """Tell whether a heartbeat got in first, so that beginning again does not count as another try."""
        transient = isinstance(error, DatabaseError) and dialects.of(self.journal.fence.database).is_transient(error)
        if not transient or self._races == TRIES:
            return False
        self._races += 1
        self.tries -= 1
        return True

    def _function(self) -> Any:
        self._begun = True
        reply = protocol.call(self.call())
        if reply.error is not None:
            raise reply.error
        return reply.value


class AtMostOnce(MayBeInDoubt):
    """A `step`: its start is stored before the call, so that a crash after that is noticed."""

    kind = StepKind.STEP

    def attempt(self) -> Protocol:
        self.run.write(self._store_start)
        reply = yield self.call()
        error = reply.error
        if error is None:
            try:
                return self.store_result(reply.value)
            except ResultNotStored as unstorable:
                self.note(str(unstorable), shown(reply.value))
                self.block("its result cannot be stored", unstorable)
        if not reply.called:  # so nothing happened
            self.store_failure(error, sealed=False)
            raise error
        if isinstance(error, (*self.options.safe_errors, *self.options.final_errors)):
            raise self.after_error(error) from error
        return (yield from self.doubt(error, f"it raised {shown(error)}"))

    def _store_start(self) -> None:
        if self.entry is None:
            self.entry = self.journal.insert(self.wanted, EntryStatus.STARTED, starting=True)
        else:
            self.journal.change(self.entry, EntryStatus.STARTED, starting=True, error=None)


KINDS: dict[str, type[Step]] = {each.kind: each for each in (AtMostOnce, AtLeastOnce, ExactlyOnce)}
