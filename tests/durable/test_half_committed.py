"""An `atomic_step` whose function commits behind our back: what it did until then is in doubt, and never done twice."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

import gnlqueue
from gnlqueue import Happened, JobContext, NotHappened
from gnlqueue.answers import FailJob
from gnlqueue.models import EntryStatus, Job, JobStatus
from tests.app.models import Note
from tests.conftest import ALIASES
from tests.durable import tasks
from tests.durable.conftest import Ledger, Mortals, attempt, entries, entry, jobs, notes, now_do
from tests.durable.tasks import AT_ONCE, UNSEEN_COMMITS, commit_unseen

Play = Callable[..., Job]

every_way = pytest.mark.parametrize(
    ("alias", "way"),
    [(name, way) for name, alias in ALIASES.items() for way in UNSEEN_COMMITS[alias]],
    indirect=["alias"],
)


@pytest.fixture
def commit(alias: str) -> Iterator[Callable[[], None]]:
    """Commits in a way that is not refused."""
    if alias == "mysql":
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE PROCEDURE commits() COMMIT")
    yield lambda: commit_unseen(alias, UNSEEN_COMMITS[alias][0])
    if alias == "mysql":
        with connections[alias].cursor() as cursor:
            cursor.execute("DROP PROCEDURE commits")


def resolve(job: Any, answer: Any) -> None:
    """Let a human say what became of the step."""
    gnlqueue.resolve(entry(job), answer, by="ada", reason="looked")


@every_way
@pytest.mark.parametrize("answer", [Happened("seen"), NotHappened()], ids=["happened", "not happened"])
def test_a_crash_after_it_leaves_the_step_in_doubt(
    alias: str, commit: Any, mortals: Mortals, ledger: Ledger, way: str, answer: Any
) -> None:
    job = tasks.half_committed.using(max_attempts=3).enqueue(str(ledger.path), way)
    mortals.die(job, "atomic_step", "during the effect")
    assert entry(job).status == EntryStatus.STARTED
    blocked = attempt(job)
    assert (blocked.status, blocked.blocked_reason, len(ledger)) == (JobStatus.BLOCKED, "in_doubt", 1)
    assert entry(job).status == EntryStatus.IN_DOUBT
    resolve(job, answer)
    done = attempt(job)
    again = answer == NotHappened()
    if again and alias != "mysql":  # it commits in the middle again, and that is noticed
        assert (done.status, len(ledger)) == (JobStatus.BLOCKED, 2)
    else:
        assert (done.status, done.result) == (JobStatus.DONE, "the result" if again else "seen")
    assert len(ledger) == Note.objects.using(alias).count() == 1 + again


def test_also_where_that_was_the_last_attempt(alias: str, commit: Any, mortals: Mortals, ledger: Ledger) -> None:
    job = tasks.half_committed.using(max_attempts=1).enqueue(str(ledger.path), UNSEEN_COMMITS[alias][0])
    mortals.die(job, "atomic_step", "during the effect")
    assert attempt(job).status == JobStatus.BLOCKED
    assert (entry(job).status, len(ledger)) == (EntryStatus.IN_DOUBT, 1)


@pytest.mark.parametrize(
    "options", [{}, {"safe_errors": OSError, "max_attempts": 3}, {"final_errors": OSError}], ids=repr
)
def test_what_it_raises_after_that_proves_nothing(
    alias: str, commit: Any, play: Play, ledger: Ledger, options: Any
) -> None:
    def reserve() -> None:
        Note.objects.using(alias).create(text="before")
        ledger.add()
        commit()
        Note.objects.using(alias).create(text="after")
        raise OSError("no route")

    steps = {**options, "how_to_check": "count the notes"}
    job = play(lambda context: context.using(**steps).atomic_step("reserve", reserve))
    blocked = attempt(job)
    assert (blocked.status, blocked.attempts, len(ledger)) == (JobStatus.BLOCKED, 0, 1)
    assert "ended the transaction that it ran in" in (blocked.last_error or "")
    doubtful = entry(job)
    assert (doubtful.status, doubtful.error["message"]) == (EntryStatus.IN_DOUBT, "no route")
    assert doubtful.error["how_to_check"] == "count the notes"
    resolve(job, Happened(7))
    assert (attempt(job).result, len(ledger)) == (7, 1)


def test_it_is_noticed_where_the_function_returns_and_the_database_can_tell(
    alias: str, commit: Any, play: Play, ledger: Ledger
) -> None:
    def reserve() -> str:
        Note.objects.using(alias).create(text="before")
        commit()
        return str(ledger.add("reserved"))

    job = play(lambda context: context.atomic_step("reserve", reserve))
    ended = attempt(job)
    if alias == "mysql":  # all of it is stored, and so is its result: nothing is in doubt
        assert (ended.status, entry(job).status) == (JobStatus.DONE, EntryStatus.DONE)
    else:
        assert (ended.status, entry(job).status) == (JobStatus.BLOCKED, EntryStatus.IN_DOUBT)
        assert [(note.value, "ended the transaction" in note.why) for note in notes()] == [('"reserved"', True)]
        resolve(job, Happened("reserved"))
        ended = attempt(job)
    assert (ended.result, len(ledger), Note.objects.using(alias).count()) == ("reserved", 1, 1)


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)
def test_what_is_rolled_back_after_it_is_not_taken_for_done(alias: str, commit: Any, play: Play) -> None:
    def reserve() -> None:
        Note.objects.using(alias).create(text="before")
        commit()
        Note.objects.using(alias).create(text="after")
        connections[alias].connection.cursor().execute("ROLLBACK" if alias == "postgresql" else "SELECT 1")

    job = play(lambda context: context.atomic_step("reserve", reserve))
    assert (attempt(job).status, entry(job).status) == (JobStatus.BLOCKED, EntryStatus.IN_DOUBT)


@pytest.mark.parametrize("answer", [Happened("found"), NotHappened(), OSError()], ids=repr)
def test_recover_is_asked(alias: str, commit: Any, play: Play, ledger: Ledger, answer: Any) -> None:
    def reserve() -> str:
        if not ledger.add(len(ledger)):
            Note.objects.using(alias).create(text="before")
            commit()
            raise OSError("no route")
        return "the second time"

    def recover() -> Any:
        if isinstance(answer, OSError):
            raise answer
        return answer

    job = play(lambda context: context.using(recover=recover).atomic_step("reserve", reserve))
    ended = attempt(job)
    if answer == NotHappened():
        assert (ended.status, entry(job).status) == (JobStatus.SCHEDULED, EntryStatus.FAILED)
        ended = attempt(job)
    expected = {Happened("found"): "found", NotHappened(): "the second time"}
    result = expected.get(answer) if not isinstance(answer, OSError) else None
    assert (ended.status, ended.result) == (JobStatus.DONE if result else JobStatus.BLOCKED, result)


@pytest.mark.parametrize(("on_doubt", "status"), [("rerun", JobStatus.DONE), ("fail", JobStatus.DEAD)])
def test_on_doubt_counts(alias: str, commit: Any, play: Play, ledger: Ledger, on_doubt: Any, status: JobStatus) -> None:
    def reserve() -> None:
        if not ledger.add(len(ledger)):
            commit()
            raise OSError("no route")

    steps = {"on_doubt": on_doubt, "max_attempts": 2, "backoff": AT_ONCE}
    job = play(lambda context: context.using(**steps).atomic_step("reserve", reserve))
    assert attempt(job).status == status
    assert len(ledger) == (2 if on_doubt == "rerun" else 1)
    assert entry(job).status == (EntryStatus.DONE if on_doubt == "rerun" else EntryStatus.IN_DOUBT)


def test_the_failure_is_sealed_where_a_human_or_recover_says_that_it_did_not_happen(
    alias: str, commit: Any, play: Play, ledger: Ledger
) -> None:
    def reserve() -> None:
        commit()
        raise OSError(ledger.add("no route"))

    def handler(context: JobContext) -> str:
        steps = context.using(recover=lambda: NotHappened())
        with pytest.raises(gnlqueue.StepFailed, match="no route"):
            steps.atomic_step("reserve", reserve)
        context.step("tell", ledger.add)
        if context.attempt == 1:
            raise OSError("crash")
        return "the same branch"

    job = play(handler)
    attempt(job)
    assert (attempt(job).result, len(ledger)) == ("the same branch", 2)


@pytest.mark.parametrize("left", ["nothing", "another step"])
def test_it_is_in_doubt_also_where_the_code_no_longer_asks_for_it(
    alias: str, commit: Any, play: Play, left: str
) -> None:
    """The attempt ended before anybody looked."""

    def reserve() -> None:
        commit()
        raise gnlqueue.JobTimedOut("too long")

    job = play(lambda context: context.using(key="1").atomic_step("reserve", reserve))
    assert attempt(job).status == JobStatus.SCHEDULED
    assert entry(job).status == EntryStatus.STARTED
    now_do(lambda context: None if left == "nothing" else context.atomic_step("other", lambda: None))
    assert attempt(job).status == JobStatus.BLOCKED
    assert entry(job, "reserve[1]").status == EntryStatus.IN_DOUBT
    gnlqueue.resolve(entry(job, "reserve[1]"), FailJob(), by="ada", reason="no idea")
    assert jobs().get(pk=job.pk).status == JobStatus.DEAD


def test_a_failure_is_looked_at_once_and_otherwise_costs_nothing(alias: str, play: Play) -> None:
    sent: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        sent.append(f"{sql.split()[0]} {'journal' if 'runjournalentry' in sql else ''}".strip())
        return execute(sql, params, many, context)

    def fail() -> None:
        sent.clear()
        raise OSError("no")

    def handler(context: JobContext) -> None:
        with connections[alias].execute_wrapper(note):
            context.atomic_step("reserve", fail)

    assert attempt(play(handler)).status == JobStatus.SCHEDULED
    assert sent == ["SELECT journal"]
    assert not entries().exists()
