"""Times that a run records when it first asks for them: the end of a `sleep`, and what `now` said."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gnlqueue import payloads
from gnlqueue.dialects import read_clock
from gnlqueue.durable.entries import encode_result
from gnlqueue.durable.protocol import Flow
from gnlqueue.exceptions import JobSuspended
from gnlqueue.models import EntryStatus, StepKind

if TYPE_CHECKING:
    from gnlqueue.durable.run import Run


def sleep(run: Run, name: str, length: timedelta, caller: Flow) -> None:
    """Suspend the run until `length` has passed since it first came here."""
    until = _moment(run, StepKind.SLEEP, name, length, caller)
    if not run.is_past(until):
        run.stop(JobSuspended(f"The run {run.run_id!r} sleeps until {until:%Y-%m-%d %H:%M:%S} UTC.", until))


def now(run: Run, caller: Flow) -> datetime:
    """Return the database's time when the run first came here."""
    return _moment(run, StepKind.NOW, "now", timedelta(), caller)


def _moment(run: Run, kind: StepKind, name: str, offset: timedelta, caller: Flow) -> datetime:
    if caller != run.main_flow:
        raise ValueError(f"{kind} belongs in the main flow of the run, not in a thread or an asyncio task.")
    with run.open_steps.entered(caller):
        journal, wanted, entry = run.find(kind, name, caller, run.failures.caught_by(caller))
        if entry is not None:
            return datetime.fromisoformat(payloads.decode(entry.result))
        run.check_may_begin(wanted.key)
        time = read_clock(run.fence.database) + offset
        text = encode_result(time.isoformat())
        run.write(lambda: journal.insert(wanted, EntryStatus.DONE, starting=True, result=text))
        return time
