"""A result that JSON can carry, and the database not: its error is no outcome of the step's function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, DataError, OperationalError, connections

from gnlqueue import FailJob, Happened, JobContext, RunBlocked, StepFailed, durable_run, queue, resolve
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.app.models import Note
from tests.durable.conftest import Ledger, attempt, entries, entry, notes

Play = Callable[..., Job]
#: mysqlclient has a class of its own for what the other drivers call a DataError.
of_each_driver = pytest.mark.parametrize(
    ("alias", "error"),
    [("sqlite", DataError), ("postgresql", DataError), ("mysql", DataError), ("mysql", OperationalError)],
    indirect=["alias"],
)
RESULT = '{"id":"ch_7"}'  # as it would be stored


@contextmanager
def refused(alias: str, error: type[DatabaseError] = DataError) -> Iterator[list[DatabaseError]]:
    """The database refuses to store that result: with an error of its own, in the very statement that stores it."""
    errors: list[DatabaseError] = []

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if RESULT not in (params or ()):
            return execute(sql, params, many, context)
        try:
            if error is OperationalError:
                raise error(1366, "Incorrect string value")  # the driver of the tests calls it a DataError
            if alias == "default":
                return execute("SELECT ZEROBLOB(2000000000)", None, False, context)  # the one size it does not take
            return execute(sql, ["x" * 300 if each == "done" else each for each in params], many, context)
        except error as refusal:
            errors.append(refusal)
            raise

    with connections[alias].execute_wrapper(refuse):
        yield errors


def charging(alias: str, ledger: Ledger, kind: str) -> Callable[[JobContext], Any]:
    """A handler of one step with that result."""

    def charge() -> Any:
        Note.objects.using(alias).create(text="charged")
        return ledger.add({"id": "ch_7"})

    return lambda context: getattr(context, kind)("charge", charge)


@of_each_driver
def test_a_step_is_in_doubt_with_its_result_as_evidence(
    alias: str, play: Play, ledger: Ledger, error: type[DatabaseError]
) -> None:
    job = play(charging(alias, ledger, "step"))
    with refused(alias, error) as errors:
        blocked = attempt(job)
    assert len(errors) == 1
    assert (blocked.status, blocked.blocked_reason, blocked.attempts) == (JobStatus.BLOCKED, "in_doubt", 0)
    assert (entry(job).status, entry(job).result) == (EntryStatus.IN_DOUBT, None)
    (note,) = notes()
    assert (note.entry_id, note.value) == (entry(job).pk, "{'id': 'ch_7'}")
    assert "The database refused the step's result" in note.why

    resolve(entry(job), Happened({"id": "ch_7"}), by="ada", reason="it is in the evidence")
    assert attempt(job).result == {"id": "ch_7"}
    assert (len(ledger), Note.objects.using(alias).count()) == (1, 1)


@of_each_driver
@pytest.mark.parametrize("kind", ["idempotent_step", "atomic_step"])
def test_the_others_fail_for_good(
    alias: str, play: Play, ledger: Ledger, kind: str, error: type[DatabaseError]
) -> None:
    """Once more would bring the same; what an `atomic_step` wrote is rolled back."""
    job = play(charging(alias, ledger, kind), max_attempts=5)
    with refused(alias, error) as errors:
        dead = attempt(job)
    assert len(errors) == 1
    assert (dead.status, dead.attempts) == (JobStatus.DEAD, 1)
    assert "The database refused the step's result" in (dead.last_error or "")
    assert (entry(job).status, entry(job).result) == (EntryStatus.FAILED, None)
    assert attempt(queue.retry(job)).status == JobStatus.DEAD
    assert (len(ledger), Note.objects.using(alias).count()) == (1, kind != "atomic_step")
    assert notes() == []


@pytest.mark.parametrize("kind", ["idempotent_step", "atomic_step"])
def test_a_handler_that_catches_that_failure_may_go_on(alias: str, play: Play, ledger: Ledger, kind: str) -> None:
    charge = charging(alias, ledger, kind)

    def handler(context: JobContext) -> Any:
        with pytest.raises(StepFailed, match="The database refused") as told:
            charge(context)
        return [told.value.final, context.step("tell somebody", lambda: "told")]

    with refused(alias):
        assert attempt(play(handler)).result == [True, "told"]


def test_a_step_of_a_run_outside_a_job_is_in_doubt_too(alias: str, ledger: Ledger) -> None:
    with pytest.raises(RunBlocked), refused(alias), durable_run("import 7") as run:
        run.step("charge", ledger.add, {"id": "ch_7"})
    assert entries().get().status == EntryStatus.IN_DOUBT
    assert [note.value for note in notes()] == ["{'id': 'ch_7'}"]


def test_a_result_of_recover_that_the_database_refuses_leaves_the_doubt(alias: str, play: Play, ledger: Ledger) -> None:
    def charge() -> None:
        ledger.add()
        raise TimeoutError("no answer")

    steps = {"recover": lambda: Happened({"id": "ch_7"})}
    job = play(lambda context: context.using(**steps).step("charge", charge))
    with refused(alias):
        assert attempt(job).status == JobStatus.BLOCKED
    assert [note.value for note in notes()] == ["{'id': 'ch_7'}"]
    resolve(entry(job), FailJob(), by="ada", reason="nobody knows")
    assert (queue.get(job).status, len(ledger)) == (JobStatus.DEAD, 1)
