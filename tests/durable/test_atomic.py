"""`atomic_step`: its record and its writes are one transaction, whatever happens to it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from django.db.backends.signals import connection_created

from gnlqueue import JobContext, queue, signals
from gnlqueue.dialects import Held
from gnlqueue.durable.fences import JobFence
from gnlqueue.durable.run import Run
from gnlqueue.models import EntryStatus, Job, JobStatus
from gnlqueue.queue import leases
from gnlqueue.worker.loop import Worker
from tests.app.models import Note
from tests.durable.conftest import KINDS, Gate, Ledger, attempt, entries, entry, jobs

Play = Callable[..., Job]
InThread = Callable[..., Future[Any]]

without_sqlite = pytest.mark.parametrize("alias", ["postgresql", "mysql"], indirect=True)


@pytest.fixture
def isolation(alias: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Every connection of the test has this isolation level."""

    def set_level(connection: Any, **kwargs: Any) -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {request.param}")
        elif connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {request.param}")
            connection.isolation_level = request.param.lower()

    connections[alias].close()
    connection_created.connect(set_level)
    yield
    connection_created.disconnect(set_level)
    connections[alias].close()


@without_sqlite
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"], indirect=True)
def test_one_that_takes_three_leases_stalls_nobody_and_is_not_taken_over(
    alias: str, isolation: None, play: Play, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until so many beats have been seen, not for a time."""
    beats: list[set[Any]] = []
    beaten = threading.Condition()
    renew = leases.renew

    def renew_and_tell(*args: Any, **kwargs: Any) -> Any:
        renewed = renew(*args, **kwargs)
        with beaten:
            beats.append(renewed)
            beaten.notify_all()
        return renewed

    monkeypatch.setattr(leases, "renew", renew_and_tell)
    neighbour_ends, finished = Gate(), Finished()
    signals.job_finished.connect(finished)

    def handler(context: JobContext, what: str) -> Any:
        if what == "neighbour":
            return neighbour_ends.wait()

        def take_long() -> str:
            Note.objects.using(alias).create(text="reserved")
            neighbour_ends.until_reached()
            with beaten:
                assert beaten.wait_for(lambda: len(beats) >= 10, timeout=60)  # of which there are three to a lease
            # Claims go on, and nobody rescues this job.
            assert in_thread(others_claim).result(20) == "claimed"
            return "reserved"

        return context.atomic_step("reserve", take_long)

    def others_claim() -> str:
        queue.enqueue("demo", queue_name="other")
        for name in ("default", "other"):
            claimed = queue.claim(name, worker_id="other")
        assert claimed is not None
        return "claimed"

    long = play(handler, "long")
    neighbour = play(handler, "neighbour")
    worker = Worker(["default"], concurrency=2, lease=0.6, poll_interval=0.02)
    running = in_thread(worker.run)
    try:
        neighbour_ends.until_reached()
        finished.until(long)
        done = queue.get(long)
        assert (done.status, done.result, done.attempts, done.crashes) == (JobStatus.DONE, "reserved", 1, 0)
        assert queue.get(neighbour).attempts == 1
    finally:
        neighbour_ends.open()
        finished.until(neighbour)
        worker.stop()
        running.result(30)
        signals.job_finished.disconnect(finished)
    assert Note.objects.using(alias).count() == 1
    assert sum((neighbour.pk, 1) in beat for beat in beats) >= 8


class Finished:
    """The jobs that have ended, as the signal says once that is stored."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._changed = threading.Condition()

    def __call__(self, job_id: int, **_: Any) -> None:
        with self._changed:
            self._ids.add(job_id)
            self._changed.notify_all()

    def until(self, job: Job) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: job.pk in self._ids, timeout=60), f"{job} has not ended"


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
@pytest.mark.parametrize("held", [1, 2, 5])
def test_the_guard_goes_by_the_primary_key_alone(alias: str, held: int) -> None:
    """By an index on the status it would lock, and wait for, what others hold."""
    for _ in range(50):
        queue.enqueue("demo")
    pairs = [each.pair for each in queue.claim_many(worker_id="w1", limit=held)]
    condition, params = Held(pairs).as_sql(None, connections[alias])
    with connections[alias].cursor() as cursor:
        cursor.execute(f"EXPLAIN UPDATE gnlqueue_job SET worker_id = 'w2' WHERE {condition}", params)
        columns = [column[0] for column in cursor.description]
        (plan,) = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    assert (plan["type"], plan["possible_keys"], plan["key"]) == ("range", "PRIMARY", "PRIMARY")


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"], indirect=True)
@without_sqlite
def test_it_works_at_every_isolation_level(alias: str, isolation: None, play: Play) -> None:
    job = play(lambda context: context.atomic_step("reserve", lambda: Note.objects.using(alias).create(text="x").text))
    assert attempt(job).result == "x"
    assert entry(job).status == EntryStatus.DONE


@without_sqlite
@pytest.mark.parametrize("isolation", ["REPEATABLE READ"], indirect=True)
def test_a_heartbeat_that_comes_between_is_no_failure(
    alias: str, isolation: None, play: Play, ledger: Ledger, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = JobFence.lock
    snapshots: list[int] = []

    def beaten_to_it(fence: JobFence) -> bool:
        snapshots.append(Note.objects.using(alias).count())  # from here on the transaction sees the past
        if len(snapshots) == 1:
            in_thread(leases.renew, [fence.claimed.pair], fence.lease, alias=alias).result(30)
        return lock(fence)

    monkeypatch.setattr(JobFence, "lock", beaten_to_it)
    done = attempt(play(lambda context: context.atomic_step("reserve", ledger.add, "reserved")))
    assert (done.status, done.result, len(ledger)) == (JobStatus.DONE, "reserved", 1)
    assert len(snapshots) == (2 if alias == "postgresql" else 1)  # MariaDB's locking reads see the present


@pytest.mark.parametrize("alias", ["mysql"], indirect=True)
def test_a_deadlock_that_the_function_swallows_is_not_recorded_as_done(
    alias: str, play: Play, in_thread: InThread
) -> None:
    """The server has rolled everything back, and Django knows nothing of it."""
    one, other = (Note.objects.using(alias).create(text=text) for text in ("one", "other"))
    rows = Note.objects.using(alias).select_for_update()

    def with_locks(first: Note, second: Note, ready: Gate, *, heavy: bool) -> None:
        with transaction.atomic(alias):
            if heavy:  # the server gives up who has written less
                Note.objects.using(alias).bulk_create([Note(text="weight") for _ in range(200)])
            rows.get(pk=first.pk)
            ready.wait()
            rows.get(pk=second.pk)

    deadlocks: list[DatabaseError] = []

    def reserve(context: JobContext) -> str:
        Note.objects.using(alias).create(text="reserved")
        if context.claimed.lease_token > 1:
            return "reserved"
        ready = Gate()
        rival = in_thread(lambda: with_locks(other, one, ready, heavy=True))
        ready.until_reached()
        rows.get(pk=one.pk)
        ready.open()
        try:
            rows.get(pk=other.pk)
        except DatabaseError as error:
            deadlocks.append(error)
        rival.result(30)
        Note.objects.using(alias).create(text="in another transaction, as it seems")
        return "reserved"

    job = play(lambda context: context.atomic_step("reserve", lambda: reserve(context)))
    failed = attempt(job)
    assert [error.args[0] for error in deadlocks] == [1213]
    assert failed.status == JobStatus.SCHEDULED
    assert "rolled back while its function ran" in (failed.last_error or "")
    assert not entries(job).exists()
    assert Note.objects.using(alias).exclude(text__in=["one", "other", "weight"]).count() == 0
    assert attempt(job).result == "reserved"
    assert Note.objects.using(alias).filter(text="reserved").count() == 1


@pytest.mark.parametrize("swallowed", [False, True])
def test_writes_on_another_alias_are_refused(alias: str, play: Play, swallowed: bool) -> None:
    other = next((each for each in connections if each != alias), None)
    if other is None:
        pytest.skip("there is no other database")
    notes = Note.objects.using(other)

    def write() -> None:
        try:
            notes.create(text="it would survive a rollback")
        except RuntimeError:
            if not swallowed:
                raise

    def read() -> int:
        with transaction.atomic(other):
            both = notes.union(notes.all())
            return notes.count() + len(both)

    job = play(lambda context: [context.atomic_step("read", read), context.atomic_step("write", write)], max_attempts=1)
    ended = attempt(job)
    assert ended.status == (JobStatus.DONE if swallowed else JobStatus.DEAD)
    if not swallowed:
        assert f"writes to {other!r}" in (ended.last_error or "")
    assert notes.count() == 0
    assert entry(job, "read").result == "0"


@pytest.mark.parametrize("kind", [*KINDS, "sleep", "now"])
def test_steps_are_refused_inside_atomic(alias: str, play: Play, ledger: Ledger, kind: str) -> None:
    arguments = {"sleep": ("charge", 60), "now": ()}.get(kind, ("charge", ledger.add))

    def handler(context: JobContext) -> None:
        with transaction.atomic(alias):
            getattr(context, kind)(*arguments)

    job = play(handler, max_attempts=1)
    assert "was called inside atomic()" in (attempt(job).last_error or "")
    assert (len(ledger), entries(job).count()) == (0, 0)


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", KINDS)
def test_steps_inside_steps_are_refused(play: Play, ledger: Ledger, outer: str, inner: str) -> None:
    def handler(context: JobContext) -> None:
        getattr(context, outer)("outer", lambda: getattr(context, inner)("inner", ledger.add))

    job = play(handler, max_attempts=1)
    attempt(job)
    assert (len(ledger), entries(job).filter(key="inner").count()) == (0, 0)
    said = (queue.get(job).last_error or "") + str([each.error for each in entries(job)])
    assert "The step 'inner' was called inside the step 'outer'" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_inside_test_case_s_transaction_is_not_refused(alias: str, play: Play, kind: str) -> None:
    """Django's own mark says whose transaction it is."""
    job = play(lambda context: getattr(context, kind)("charge", lambda: "paid"))
    block = transaction.atomic(alias)
    block._from_testcase = True
    with block:
        assert attempt(job).result == "paid"


@pytest.mark.parametrize("kind", KINDS)
def test_the_commits_that_a_step_costs(alias: str, play: Play, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[str] = []
    connection = connections[alias]
    commit = connection.commit

    def counted() -> None:
        commits.append("COMMIT")
        commit()

    monkeypatch.setattr(connection, "commit", counted)

    def statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if connection.get_autocommit() and not sql.lstrip(" (").startswith(("SELECT", "SHOW", "BEGIN")):
            commits.append(sql)
        return execute(sql, params, many, context)

    def handler(context: JobContext) -> None:
        context.step("warm up", lambda: None)
        commits.clear()
        with connection.execute_wrapper(statement):
            getattr(context, kind)("charge", lambda: None)
        counts.append(list(commits))

    counts: list[list[str]] = []
    assert attempt(play(handler)).status == JobStatus.DONE
    # An atomic_step's one commit is that of the function's own transaction.
    assert [len(each) for each in counts] == [{"step": 2, "idempotent_step": 1, "atomic_step": 1}[kind]]


def test_an_on_commit_hook_that_raises_does_not_undo_the_step(alias: str, play: Play, ledger: Ledger) -> None:
    def hook() -> None:
        raise OSError("no mail")

    def reserve() -> str:
        transaction.on_commit(hook, using=alias)
        Note.objects.using(alias).create(text="reserved")
        return str(ledger.add("reserved"))

    job = play(lambda context: context.atomic_step("reserve", reserve))
    assert attempt(job).result == "reserved"
    assert (len(ledger), Note.objects.using(alias).count()) == (1, 1)


def test_a_function_that_rolls_back_by_itself_is_not_recorded_as_done(alias: str, play: Play) -> None:
    job = play(lambda context: context.atomic_step("reserve", lambda: transaction.set_rollback(True, using=alias)))
    assert attempt(job).status == JobStatus.SCHEDULED
    assert not entries(job).exists()


def test_what_a_savepoint_inside_takes_back_is_not_there(alias: str, play: Play) -> None:
    def reserve() -> str:
        with contextlib.suppress(OSError), transaction.atomic(alias):
            Note.objects.using(alias).create(text="tried")
            raise OSError("no")
        return "went on"

    job = play(lambda context: context.atomic_step("reserve", reserve))
    assert attempt(job).result == "went on"
    assert Note.objects.using(alias).count() == 0


def test_a_late_worker_s_writes_are_rolled_back(alias: str, play: Play) -> None:
    look = Run.check_held

    def lost_right_after(run: Run) -> None:
        look(run)
        jobs().filter(pk=job.pk).update(lease_token=2, worker_id="another")

    job = play(lambda context: context.atomic_step("reserve", lambda: Note.objects.using(alias).create(text="x").text))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "check_held", lost_right_after)
        Worker(["default"], heartbeat=False).run_once()
    assert (Note.objects.using(alias).count(), entries(job).count()) == (0, 0)
    assert (queue.get(job).status, queue.get(job).lease_token) == (JobStatus.IN_PROGRESS, 2)
