"""Writing what came of jobs, in groups: the commit is what costs.

A group is written as one; if the database refuses one of its values, each outcome is written by itself, and one that
is refused even so is recorded without its result. Whatever else goes wrong with one is a failure of that job. Only a
broken connection is raised to the caller, who keeps the outcomes and offers them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar, cast

from django.db import DatabaseError

from gnlqueue import dialects, signals
from gnlqueue.backoff import DEFAULT, Backoff
from gnlqueue.conf import settings
from gnlqueue.connection import ConnectionProblem
from gnlqueue.durable.context import with_open_step
from gnlqueue.exceptions import JobBlocked, JobNotFound, JobSuspended, LeaseLost
from gnlqueue.metrics import counting
from gnlqueue.models import JobStatus
from gnlqueue.queue import ClaimedJob, transitions
from gnlqueue.queue.attempts import Failure, backoff_of, failure_of, max_attempts, without_text
from gnlqueue.worker.console import length, together
from gnlqueue.worker.executor import Ending, Outcome

logger = logging.getLogger("gnlqueue.worker")

#: How a job of an unknown task comes back while a deploy rolls on.
UNKNOWN_TASK_BACKOFF = Backoff(base=5, factor=2, cap=300)

#: Why the text of an error is left out.
REFUSED = "that the database refused"

T = TypeVar("T")

ErrorHook = Callable[[ClaimedJob, BaseException | str], None]


def write(
    outcomes: Sequence[Outcome],
    on_error: ErrorHook | None = None,
    written: Callable[[Outcome], None] = lambda _: None,
) -> None:
    """Write the outcomes, each under its guard, log a line for each, and send the signals.

    `written` is called with each that needs no more writing. Raises what a broken connection raises; the others are
    then to be offered again, which is safe also where the first time did succeed.
    """
    outcomes = _without_open_steps(outcomes)
    _write_done([outcome for outcome in outcomes if outcome.ending is Ending.DONE], written)
    for outcome in outcomes:
        if outcome.ending is not Ending.DONE:
            _write_one(outcome, on_error)
            written(outcome)


def _without_open_steps(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Block jobs whose handler returned without any step, though an earlier attempt was caught in one.

    Runs that have steps in this attempt look back themselves.
    """
    again = [each for each in outcomes if each.ending is Ending.DONE and each.claimed.lease_token > 1]
    caught = with_open_step([outcome.claimed for outcome in again if not outcome.has_steps])
    if not caught:
        return outcomes
    return [_blocked(outcome) if outcome.claimed.run_id in caught else outcome for outcome in outcomes]


def _blocked(outcome: Outcome) -> Outcome:
    text = (
        f"The task returned without asking for a step of {outcome.claimed.run_id!r} whose outcome nobody knows. Find "
        "out, and say so: manage.py gnlqueue blocked."
    )
    return outcome._replace(ending=Ending.BLOCKED, error=JobBlocked(text, "in_doubt"), result=None)


def _write_done(done: list[Outcome], written: Callable[[Outcome], None]) -> None:
    try:
        lost = transitions.complete_many([(outcome.claimed, outcome.result) for outcome in done])
    except Exception as error:  # also what encoding raises: a result may have changed since its task returned
        if _is_outage(error, done[0].claimed):
            raise
        if len(done) > 1:
            for outcome in done:
                _write_done([outcome], written)
        elif done[0].result is not None:
            logger.warning("job %s is done, but its result was refused: %s", done[0].claimed.id, error)
            _write_done([done[0]._replace(result=None)], written)
        else:
            raise
        return
    gone = {claimed.pair for claimed in lost}
    like = _empty_record(logging.INFO)
    with together():
        for outcome in done:
            if gone and outcome.claimed.pair in gone:
                _report_lost(outcome, "the job is not held under its token any more")
            else:
                _report(outcome, logging.INFO, "done", "", like)
                counting.finished.note(outcome.claimed, outcome.seconds, succeeded=True)
                _send_finished(outcome.claimed, JobStatus.DONE)
            written(outcome)


def _is_outage(error: Exception, claimed: ClaimedJob) -> bool:
    """Tell whether the connection is broken; mysqlclient has the same class for a value that the database refuses."""
    return isinstance(error, ConnectionProblem) and not dialects.of(claimed.database).refuses_value(error)


def without_values(outcome: Outcome) -> Outcome:
    """Return an outcome without what a database may refuse: its result, and the text of its error."""
    if outcome.error is None:
        return outcome._replace(result=None)
    return outcome._replace(result=None, failure=without_text(outcome.error, REFUSED))


def _write_one(outcome: Outcome, on_error: ErrorHook | None) -> None:
    claimed = outcome.claimed
    try:
        if outcome.ending is Ending.CANCELLED:
            transitions.confirm_cancel(claimed)
            _report_cancelled(outcome)
        elif outcome.ending is Ending.UNKNOWN_TASK:
            _write_unknown(outcome)
        elif outcome.ending is Ending.FAILED:
            _write_failed(outcome, on_error)
        elif outcome.ending is Ending.BLOCKED:
            _write_blocked(outcome)
        elif outcome.ending is Ending.SUSPENDED:
            _write_suspended(outcome)
        else:
            _write_preempted(outcome, on_error)
    except (LeaseLost, JobNotFound) as error:
        _report_lost(outcome, str(error))
    except Exception as error:
        if _is_outage(error, claimed):
            raise
        # Raised, it would end every worker that runs the job, and cost its neighbours their attempts.
        logger.exception("job %d (%s): what came of it could not be recorded", claimed.id, claimed.task_name)
        text = f"What came of it could not be recorded: {failure_of(error).reason}"
        with suppress(LeaseLost, JobNotFound):  # recorded, and what raised came after that
            delay = DEFAULT.delay(claimed.attempts)  # for its own may be what is wrong
            _write_failed(Outcome(claimed, Ending.FAILED, outcome.seconds, error=text, after=delay), on_error)


def _write_failed(outcome: Outcome, on_error: ErrorHook | None) -> None:
    claimed, error = outcome.claimed, outcome.error or "failed"
    delay = backoff_of(claimed).delay(claimed.attempts) if outcome.after is None else outcome.after
    kept = outcome.failure or failure_of(error)
    job = _store(claimed, error, kept, partial(transitions.fail, claimed, after=delay, final=outcome.final))
    counting.finished.note(claimed, outcome.seconds, succeeded=False)
    number = f"attempt {claimed.attempts} of {max_attempts(claimed)}"
    if outcome.why:
        number += f", {outcome.why}"
    if job.status == JobStatus.SCHEDULED:
        _report(outcome, logging.WARNING, "failed", f"{number}, next in {length(delay)}: {job.last_error}")
    else:
        _report_end(outcome, JobStatus(job.status), f"{number}: {job.last_error}")
    signals.send(signals.job_attempt_failed, job=claimed, error=error)
    if on_error is not None:
        try:
            on_error(claimed, error)
        except Exception:
            logger.exception("on_error raised; the job's failure is recorded all the same.")


def _write_suspended(outcome: Outcome) -> None:
    status = transitions.suspend(outcome.claimed, cast(JobSuspended, outcome.error).until)
    if status == JobStatus.CANCELLED:
        _report_cancelled(outcome)
    else:
        _report(outcome, logging.INFO, "asleep", str(outcome.error))


def _write_preempted(outcome: Outcome, on_error: ErrorHook | None) -> None:
    """Report that the lease is lost; the guard decides whether it is.

    A run also stops when a step could not be stored for a whole lease, or a task raises `JobPreempted` itself. If the
    job is held all the same, the attempt has failed: nobody would renew the lease or rescue the job of a live worker.
    """
    try:
        _write_failed(outcome, on_error)
    except (LeaseLost, JobNotFound):
        _report_lost(outcome, str(outcome.error))


def _write_blocked(outcome: Outcome) -> None:
    claimed, blocked = outcome.claimed, cast(JobBlocked, outcome.error)
    kept = outcome.failure or Failure(str(blocked))
    status = _store(claimed, blocked, kept, lambda each: transitions.block(claimed, blocked.reason, each.reason))
    if status == JobStatus.BLOCKED:
        _report(outcome, logging.ERROR, "blocked", str(blocked))
        signals.send(signals.job_blocked, job_id=claimed.id, task_name=claimed.task_name, reason=blocked.reason)
    elif status == JobStatus.CANCELLED:
        _report(outcome, logging.ERROR, "cancelled", f"as was asked for; its doubt remains. {blocked}")
        _send_finished(claimed, JobStatus.CANCELLED)
    else:
        _report(outcome, logging.INFO, "ready", "what it was blocked for has been resolved meanwhile")


def _store(claimed: ClaimedJob, error: BaseException | str, kept: Failure, store: Callable[[Failure], T]) -> T:
    """Store what is kept of an error, without its text if the database refuses that: stored it must be."""
    try:
        return store(kept)
    except DatabaseError as refused:
        if _is_outage(refused, claimed):
            raise
        logger.warning("job %s: the database refused the text of its error: %s", claimed.id, refused)
        return store(without_text(error, REFUSED))


def _write_unknown(outcome: Outcome) -> None:
    claimed = outcome.claimed
    grace = timedelta(seconds=settings().UNKNOWN_TASK_GRACE_SECONDS)
    waited = 0.0
    if claimed.unknown_since is not None:
        waited = (claimed.last_attempted_at - claimed.unknown_since).total_seconds()
    delay = UNKNOWN_TASK_BACKOFF.delay(1 + int(waited / UNKNOWN_TASK_BACKOFF.base).bit_length())
    status = transitions.postpone_unknown(claimed, delay=delay, grace=grace)
    if status == JobStatus.CANCELLED:
        _report_cancelled(outcome)
    elif status in {JobStatus.DEAD, JobStatus.BLOCKED}:
        _report_end(outcome, status, f"no worker has known this task for {length(grace)}")
    else:
        hint = "no tasks.py of this process registers it; is the deploy complete? (If it was renamed: aliases=.)"
        _report(outcome, logging.ERROR, "unknown", f"{hint} Next in {length(delay)}, uncounted")


def _report_cancelled(outcome: Outcome) -> None:
    _report(outcome, logging.WARNING, "cancelled", "")
    _send_finished(outcome.claimed, JobStatus.CANCELLED)


def _report_end(outcome: Outcome, status: JobStatus, why: str) -> None:
    """Say that the job is dead or cancelled, or blocked as one of its steps is in doubt."""
    claimed = outcome.claimed
    _report(outcome, logging.ERROR, status, why)
    if status == JobStatus.BLOCKED:
        signals.send(signals.job_blocked, job_id=claimed.id, task_name=claimed.task_name, reason="in_doubt")
    else:
        _send_finished(claimed, status)


def _report(outcome: Outcome, level: int, word: str, rest: str, like: logging.LogRecord | None = None) -> None:
    """Log the job's line; `like` is a record that was made for others like it."""
    if not logger.isEnabledFor(level):
        return
    claimed = outcome.claimed
    waited = (claimed.last_attempted_at - claimed.run_at).total_seconds()
    took = f"{length(outcome.seconds)}, waited {length(waited)}{'  ' if rest else ''}{rest}"
    error = outcome.error if level >= logging.WARNING and isinstance(outcome.error, BaseException) else None
    record = logging.LogRecord.__new__(logging.LogRecord)
    record.__dict__.update((like or _empty_record(level)).__dict__)
    record.__dict__.update(
        msg=f"{word:<9}  {claimed.task_name}  job {claimed.id}  {took}",
        exc_info=(type(error), error, error.__traceback__) if error is not None and error.__traceback__ else None,
        exc_text=outcome.failure.error.rstrip() if error is not None and outcome.failure is not None else None,
        job_id=claimed.id,
        task_name=claimed.task_name,
        queue_name=claimed.queue_name,
        attempt=claimed.attempts,
        outcome=word,
        duration=outcome.seconds,
        wait=waited,
    )
    logger.handle(record)


def _empty_record(level: int) -> logging.LogRecord:
    """Return an empty record; `logger.log` would look for its caller, which is half of what a line costs."""
    return logging.LogRecord(logger.name, level, __file__, 0, "", None, None)


def _report_lost(outcome: Outcome, why: str) -> None:
    claimed = outcome.claimed
    logger.error(
        "lost       %s  job %d  %s; what this attempt did is not recorded. %s",
        claimed.task_name,
        claimed.id,
        length(outcome.seconds),
        why,
    )


def _send_finished(claimed: ClaimedJob, status: JobStatus) -> None:
    if signals.job_finished.receivers:
        signals.send(
            signals.job_finished,
            job_id=claimed.id,
            task_name=claimed.task_name,
            status=status,
            database=claimed.database,
        )
