"""The table of what becomes of a step, each cell for real.

A row says what happens in the first attempt, a cell what that means for a kind of step: what the first attempt leaves
behind, and what the next one makes of it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from gnlqueue import queue
from gnlqueue.durable.run import Run
from gnlqueue.models import Job, JobStatus
from tests.app.models import Note
from tests.durable import tasks
from tests.durable.conftest import (
    Ledger,
    Mortals,
    attempt,
    commit_fails,
    end_lease,
    entries,
    jobs,
    notes,
)

TABLE = """
what happens                              | step                    | idempotent_step | atomic_step
crash before started commits              | runs                    | runs            | runs
crash after started, before the effect    | in doubt                | runs            | runs
crash after started, after the effect     | in doubt                | runs again      | rolled back, runs again
crash after done commits                  | replayed                | replayed        | replayed
acknowledgement lost, the commit is there | replayed                | replayed        | replayed
acknowledgement lost, the commit is not   | written again           | written again   | rolled back, failed, retried
raises one of safe_errors                 | failed, retried         | failed, retried | rolled back, failed, retried
raises one of final_errors                | failed for good         | failed for good | rolled back, failed for good
raises anything else                      | in doubt                | failed, retried | rolled back, failed, retried
result cannot be stored                   | in doubt, with evidence | failed for good | rolled back, failed for good
lease lost while it runs                  | in doubt, with evidence | overlaps        | rolled back, runs again
"""


class Stage(NamedTuple):
    """Where the first attempt takes place."""

    alias: str
    kind: str
    job: Job
    ledger: Ledger
    mortals: Mortals
    in_thread: Callable[..., Any]


# --- what happens ----------------------------------------------------------------------------------------------------


def crash(point: str) -> Callable[[Stage], None]:
    return lambda stage: stage.mortals.die(stage.job, stage.kind, point)


def lose_acknowledgement(*, stored: bool) -> Callable[[Stage], None]:
    def lose(stage: Stage) -> None:
        with commit_fails(stage.alias, number=commits_until_done(stage), stored=stored):
            attempt(stage.job)

    return lose


def commits_until_done(stage: Stage) -> int:
    """How many commits of a worker until it has recorded the end of its first step; the claim's come first."""
    begins = 1 if stage.kind in {"step", "astep"} else 0
    return claim_commits(stage.alias) + begins + 1


def claim_commits(alias: str) -> int:
    return 1 if alias == "mysql" else 0  # elsewhere a claim is one statement


def function_that(outcome: Any) -> Callable[[Stage], None]:
    """The step's function has its effect, and raises or returns `outcome`."""

    def run(stage: Stage) -> None:
        with effect_then(lambda: raise_or_return(outcome)):
            attempt(stage.job)

    return run


def raise_or_return(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def lose_lease(stage: Stage) -> None:
    def take_over() -> None:
        end_lease(stage.job)
        assert queue.claim(worker_id="another") is not None

    if stage.alias == "default" and stage.kind in {"atomic_step", "aatomic_step"}:
        # From its BEGIN IMMEDIATE on nobody else can write, so the lease is lost right before.
        look = Run.check_held

        def look_too_early(run: Run) -> None:
            look(run)
            take_over()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Run, "check_held", look_too_early)
            attempt(stage.job)
    else:
        with effect_then(lambda: stage.in_thread(take_over).result(30) or "the late result"):
            attempt(stage.job)
    assert queue.get(stage.job).worker_id == "another"
    jobs().update(status=JobStatus.READY, lease_expires_at=None)  # the other one gives up before it gets that far


@contextmanager
def effect_then(ends: Callable[[], Any]) -> Iterator[None]:
    effect = tasks.effect

    def replaced(ledger: str, alias: str) -> Any:
        effect(ledger, alias)
        return ends()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "effect", replaced)
        yield


WHAT_HAPPENS: dict[str, Callable[[Stage], None]] = {
    "crash before started commits": crash("before started commits"),
    "crash after started, before the effect": crash("after started commits"),
    "crash after started, after the effect": crash("after the effect"),
    "crash after done commits": crash("after done commits"),
    "acknowledgement lost, the commit is there": lose_acknowledgement(stored=True),
    "acknowledgement lost, the commit is not": lose_acknowledgement(stored=False),
    "raises one of safe_errors": function_that(tasks.Refused("no route")),
    "raises one of final_errors": function_that(tasks.Declined("no money")),
    "raises anything else": function_that(OSError("timed out")),
    "result cannot be stored": function_that(object),
    "lease lost while it runs": lose_lease,
}

# --- what it means ---------------------------------------------------------------------------------------------------


class Means(NamedTuple):
    """How a step stands after the next attempt, and what became of the first one's writes to the database."""

    job: JobStatus
    entry: str
    calls_again: bool  # whether the next attempt calls the function
    called: bool | None = True  # whether the first one did; None where either is possible
    rolled_back: bool = False
    fails: bool = False  # the handler is told so by StepFailed
    evidence: bool = False  # what the function returned is kept for whoever decides


DONE, DEAD, BLOCKED = JobStatus.DONE, JobStatus.DEAD, JobStatus.BLOCKED

MEANS = {
    "runs": Means(DONE, "done", calls_again=True, called=False),
    "runs again": Means(DONE, "done", calls_again=True),
    "overlaps": Means(DONE, "done", calls_again=True),
    "rolled back, runs again": Means(DONE, "done", calls_again=True, rolled_back=True),
    "replayed": Means(DONE, "done", calls_again=False),
    "written again": Means(DONE, "done", calls_again=False),
    "failed, retried": Means(DONE, "done", calls_again=True, fails=True),
    "rolled back, failed, retried": Means(DONE, "done", calls_again=True, rolled_back=True, fails=True),
    "failed for good": Means(DEAD, "failed", calls_again=False, fails=True),
    "rolled back, failed for good": Means(DEAD, "failed", calls_again=False, rolled_back=True, fails=True),
    "in doubt": Means(BLOCKED, "in_doubt", calls_again=False, called=None),
    "in doubt, with evidence": Means(BLOCKED, "in_doubt", calls_again=False, evidence=True),
}

CELLS = [
    pytest.param(what, kind, cell, id=f"{kind} / {what}: {cell}")
    for titles, *rows in [[re.split(r" +[|] +", line.strip()) for line in TABLE.strip().splitlines()]]
    for what, *cells in rows
    for kind, cell in zip(titles[1:], cells, strict=True)
]


@pytest.mark.parametrize(("what", "kind", "cell"), CELLS)
def test_cell(
    what: str,
    kind: str,
    cell: str,
    alias: str,
    ledger: Ledger,
    mortals: Mortals,
    in_thread: Callable[..., Any],
) -> None:
    job = tasks.one_step.enqueue(kind, str(ledger.path))
    check(what, MEANS[cell], Stage(alias, kind, job, ledger, mortals, in_thread))


@pytest.mark.parametrize(("what", "kind", "cell"), CELLS)
def test_cell_in_asynchronous_code(
    what: str,
    kind: str,
    cell: str,
    alias: str,
    ledger: Ledger,
    mortals: Mortals,
    in_thread: Callable[..., Any],
) -> None:
    job = tasks.aone_step.enqueue(f"a{kind}", str(ledger.path))
    check(what, MEANS[cell], Stage(alias, f"a{kind}", job, ledger, mortals, in_thread))


def check(what: str, means: Means, stage: Stage) -> None:
    """Let it happen, and see whether it means that."""
    alias, job, ledger = stage.alias, stage.job, stage.ledger
    WHAT_HAPPENS[what](stage)
    called = len(ledger)
    assert means.called in (None, bool(called))
    assert rows(alias) == (0 if means.rolled_back else called)
    told = (queue.get(job).last_error or "").startswith("gnlqueue.exceptions.StepFailed: The step 'effect' failed with")
    assert told == means.fails

    next_attempt(job)
    assert (len(ledger), rows(alias)) == (
        called + means.calls_again,
        (0 if means.rolled_back else called) + means.calls_again,
    )
    assert (queue.get(job).status, entries(job).get().status) == (means.job, means.entry)
    assert bool(notes("evidence")) == means.evidence
    if means.job is DONE:
        assert queue.get(job).result == "the result"


def rows(alias: str) -> int:
    """How many effects the database holds."""
    return Note.objects.using(alias).count()


def next_attempt(job: Job) -> None:
    """Let the job run once more; one that waits for a human does not, and one that is dead is retried first."""
    status = queue.get(job).status
    if status == BLOCKED:
        assert queue.claim(worker_id="w2") is None
        return
    if status == DEAD:
        queue.retry(job)
    attempt(job)
