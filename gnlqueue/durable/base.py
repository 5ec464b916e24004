"""What the kinds of step share: replay, trying again, and storing what came of it. See `kinds` for what differs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.db import DatabaseError

from gnlqueue import payloads
from gnlqueue.answers import Happened
from gnlqueue.durable.entries import LONGEST_NOTE, Entry, Journal, ResultNotStored, Wanted, encode_result
from gnlqueue.durable.options import StepOptions
from gnlqueue.durable.protocol import CallFunction, Flow, Pause, Protocol, Reply
from gnlqueue.exceptions import JobInterrupt, StepFailed, dotted
from gnlqueue.models import EntryStatus, StepKind, StepNote

if TYPE_CHECKING:
    from gnlqueue.durable.run import Run

logger = logging.getLogger("gnlqueue")


class TryAgain(Exception):
    """Asks to begin the step once more in this attempt of the job, after a pause (seconds)."""

    def __init__(self, pause: float) -> None:
        self.pause = pause


@dataclass(kw_only=True, eq=False, repr=False)
class Step:
    """One step that the code asked for."""

    kind: ClassVar[StepKind]

    run: Run
    journal: Journal
    wanted: Wanted
    entry: Entry | None  #: what the journal has of it, `None` where it is new
    caller: Flow
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    effect: dict[str, str]  #: its effect key, as the argument that `pass_key_as` names
    options: StepOptions
    tries: int = field(default=0, init=False)

    @property
    def key(self) -> str:
        """What names the step in its run."""
        return self.wanted.key

    def perform(self) -> Protocol:
        """Replay the step, or do it; return its result."""
        entry = self.entry
        if entry is not None and entry.status == EntryStatus.DONE:
            return payloads.decode(entry.result)
        if entry is not None and entry.sealed:
            raise self.failed(cast(dict[str, Any], entry.error))
        recovered = yield from self.settle()
        if recovered is not None:
            return recovered.result
        self.refuse_wrong_arguments()
        while True:
            self.run.check_may_begin(self.key)
            self.tries += 1
            try:
                return (yield from self.attempt())
            except TryAgain as again:
                pause = again.pause
            yield Pause(pause)

    def settle(self) -> Generator[CallFunction | Pause, Reply, Happened | None]:
        """Settle what an earlier attempt left open; return its result where it is known to have happened."""
        return None
        yield  # a generator, as those of the other kinds ask questions

    def attempt(self) -> Protocol:
        """Begin the step, call its function and store what came of it."""
        raise NotImplementedError

    def call(self) -> CallFunction:
        """Return the request to call the step's function."""
        return CallFunction(self.function, self.args, {**self.effect, **self.kwargs}, (self.run.run_id, self.key))

    def question(self, function: Callable[..., Any]) -> CallFunction:
        """Return the request to call a function with the step's arguments."""
        return CallFunction(function, self.args, self.kwargs, (self.run.run_id, self.key))

    def refuse_wrong_arguments(self) -> None:
        """Raise `TypeError` where the function cannot be called: once it has been, nobody knows what it has done."""
        if not callable(self.function):
            raise TypeError(
                f"The step {self.key!r} got {shown(self.function):.200} to call: pass the function itself, and its "
                "arguments after it."
            )
        if hasattr(self.function, "__signature__"):  # what it claims to take, which need not be true
            return
        try:
            # Its own signature: a decorator may take other arguments than the function that it wraps.
            signature = inspect.signature(self.function, follow_wrapped=False)
        except (TypeError, ValueError):
            return  # some functions written in C have none
        try:
            signature.bind(*self.args, **{**self.effect, **self.kwargs})
        except TypeError as error:
            passed = f" (pass_key_as passes the effect key as {self.options.pass_key_as!r})" if self.effect else ""
            raise TypeError(
                f"The arguments of the step {self.key!r} do not fit its function, which was not called: "
                f"{error}{passed}. Pass them after the function, as it takes them."
            ) from None

    # --- storing -----------------------------------------------------------------------------------------------------

    def record(self, status: EntryStatus, *, evidence: str, starting: bool = False, **values: Any) -> None:
        """Store the step's outcome; where the fence is lost, keep what it brought back as evidence and stop."""
        try:
            if self.entry is None:
                self.entry = self.journal.insert(self.wanted, status, starting=starting, **values)
            else:
                self.journal.change(self.entry, status, starting=starting, **values)
        except JobInterrupt as stops:
            if self.entry is not None:
                self.note(f"A worker that no longer held the run came back from this step. {stops}", evidence)
            self.run.stop(stops)

    def note(self, why: str, value: str) -> None:
        """Keep evidence for whoever has to decide; the run stops, whether or not it can be stored."""
        by = f"token {self.run.fence.token}"
        try:
            self.journal.note(cast(Entry, self.entry).id, StepNote.Kind.EVIDENCE, by, why, value)
        except DatabaseError:
            logger.exception("Evidence about the step %r of %r is lost: %s %s", self.key, self.run.run_id, why, value)

    def store_result(self, value: Any) -> Any:
        """Store what the function returned, and return what a replay will.

        Raises `ResultNotStored` where JSON or the database cannot carry it.
        """
        text = encode_result(value)
        try:
            self.record(EntryStatus.DONE, evidence=text, result=text, error=None)
        except DatabaseError as error:  # a full disk, a character set that cannot carry it
            raise ResultNotStored(f"The database refused the step's result: {error}") from error
        return payloads.decode(text)

    def store_failure(self, error: BaseException, *, sealed: bool) -> StepFailed:
        """Store that the step is known not to have happened; if `sealed`, every replay raises it again."""
        described = {**described_error(error), "sealed": sealed, "final": sealed}
        self.record(EntryStatus.FAILED, evidence=shown(error), error=described)
        return self.failed(described)

    def seal(self, failed: StepFailed) -> None:
        """Store that a failure stays: the handler caught it and went on, so a replay must take the same branch."""
        described = {"classes": list(failed.classes), "message": failed.message, "sealed": True}
        self.record(EntryStatus.FAILED, evidence=failed.message, error=described)

    def failed(self, described: dict[str, Any]) -> StepFailed:
        """Return the error that the handler sees, made from what is stored of it."""
        return StepFailed(self.key, described["classes"], described["message"], final=bool(described.get("final")))

    def after_error(self, error: BaseException) -> StepFailed:
        """Return what the handler sees of an error after which the step did not happen, or may be repeated.

        Raises `TryAgain` where this attempt of the job tries the step once more.
        """
        if isinstance(error, (*self.options.final_errors, ResultNotStored)):
            return self.store_failure(error, sealed=True)
        if not isinstance(error, (Exception, *self.options.safe_errors)):
            raise error  # an interrupt, a cancelled asyncio task: not an answer of the function
        again = self.tries < self.options.max_attempts
        failed = self.note_failure(error)
        if again:
            raise TryAgain(self.options.backoff.delay(self.tries).total_seconds())
        self.run.failures.note(self, failed)
        return failed

    def note_failure(self, error: BaseException) -> StepFailed:
        """Remember a failure that another attempt may repair; written only if the handler goes on after it."""
        return self.failed(described_error(error))


def described_error(error: BaseException) -> dict[str, Any]:
    """Return what is stored of an error."""
    return {
        "classes": [dotted(kind) for kind in type(error).__mro__ if kind is not object],
        "message": payloads.scrub(_text(error, str), LONGEST_NOTE),
    }


def shown(value: object) -> str:
    """Return the value as evidence shows it."""
    return _text(value, repr)


def _text(value: object, convert: Callable[[object], str]) -> str:
    try:
        return convert(value)
    except Exception as error:  # the object's own code, which must not keep us from recording what happened
        return f"<{dotted(type(value))}, whose {convert.__name__}() raised {dotted(type(error))}>"
