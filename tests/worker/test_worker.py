"""`Worker` embedded in a program: ``run_once``, ``run``, ``stop``, and what it does when the database lets it down."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

import gnlqueue
from gnlqueue import queue, signals
from gnlqueue.models import Job, JobStatus, WorkerProcess
from gnlqueue.queue import ClaimedJob, claiming, transitions
from gnlqueue.worker import outcomes, wakeup
from gnlqueue.worker.executor import Ending, Outcome
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.maintenance import Maintenance
from gnlqueue.worker.pace import Pace
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker.conftest import count, drain, fails_once, on_sqlite, row, until_all, until_status, until_told
from tests.worker.processes import until

InThread = Callable[[Worker], Any]


def test_run_once(alias: str) -> None:
    worker = Worker()
    assert worker.run_once() is None
    low, high = tasks.give.enqueue(1), tasks.give.using(priority=5).enqueue(2)

    first = worker.run_once()

    assert first is not None
    assert (first.pk, first.status, first.result, first.worker_id) == (high.pk, JobStatus.DONE, 2, worker.worker_id)
    assert row(low).status == JobStatus.READY
    assert worker.run_once() is not None
    assert worker.run_once() is None


def test_run_once_runs_async_tasks_too(alias: str) -> None:
    tasks.aask_current_context.enqueue()

    job = Worker().run_once()

    assert job is not None
    assert job.result == [job.pk, 1]


def test_ctrl_c_in_run_once_gives_the_job_back(alias: str) -> None:
    job = tasks.raise_keyboard_interrupt.enqueue()

    with pytest.raises(KeyboardInterrupt):
        Worker().run_once()

    assert (row(job).status, row(job).attempts) == (JobStatus.READY, 0)


def test_drain_runs_what_is_due_and_ends(alias: str) -> None:
    due = [tasks.nothing.enqueue(), tasks.work_elsewhere.enqueue(), tasks.fail_first.enqueue()]
    later = tasks.nothing.using(run_after=timedelta(hours=1)).enqueue()

    drain()

    assert [row(job).status for job in due] == [JobStatus.DONE] * 3
    assert row(later).status == JobStatus.SCHEDULED
    assert not WorkerProcess.objects.using(alias).exists()


@on_sqlite
def test_queues(alias: str) -> None:
    here, elsewhere = tasks.nothing.enqueue(), tasks.work_elsewhere.enqueue()
    queue.pause("other")

    drain(queues=["other"])
    assert row(elsewhere).status == JobStatus.READY  # paused
    queue.resume("other")
    drain(queues=["other"])

    assert row(elsewhere).status == JobStatus.DONE
    assert row(here).status == JobStatus.READY
    assert Worker().queues == sorted({"default", "other", *Worker().queues})


@on_sqlite
@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"lease": -1}, {"poll_interval": "often"}, {"queues": ["Not A Queue"]}], ids=str
)
def test_options_that_cannot_be(alias: str, options: Any) -> None:
    with pytest.raises((ValueError, gnlqueue.InvalidTask)):
        Worker(**options)


def test_def_and_async_def_share_the_slots(alias: str, in_thread: InThread) -> None:
    ids = gnlqueue.enqueue_many(task.bind() for task in [tasks.wait, tasks.await_gate] * 3)
    in_thread(Worker(concurrency=4))

    until_told("began", 4)
    assert count(status=JobStatus.IN_PROGRESS) == 4
    assert len(told()) == 4
    open_gate("go")

    until_all(JobStatus.DONE)
    results = Job.objects.using(alias).in_bulk(ids)
    assert {results[id].result for id in ids[1::2]} == {"gnlqueue-asyncio"}  # one event loop for all of them


def test_stop_finishes_what_runs(alias: str, in_thread: InThread) -> None:
    job = tasks.wait.enqueue()
    worker = Worker()
    running = in_thread(worker)
    until_told("began")
    until(lambda: WorkerProcess.objects.using(alias).filter(worker_id=worker.worker_id).exists(), "the worker's row")

    worker.stop()
    open_gate("go")
    running.result(10)

    assert (row(job).status, row(job).attempts) == (JobStatus.DONE, 1)
    assert not WorkerProcess.objects.using(alias).exists()


def test_stop_at_once_releases_what_runs(alias: str, in_thread: InThread) -> None:
    job = tasks.wait.enqueue()
    worker = Worker()
    running = in_thread(worker)
    until_told("began")

    worker.stop(at_once=True)
    running.result(10)

    assert (row(job).status, row(job).attempts) == (JobStatus.READY, 0)
    open_gate("go")
    until_told("ended")  # and what it brought is not written
    assert row(job).status == JobStatus.READY


@on_sqlite
def test_ended_worker_leaves_no_thread_behind(alias: str) -> None:
    before = set(threading.enumerate())
    tasks.nothing.enqueue()
    tasks.aask_current_context.enqueue()

    drain()

    names = ("gnlqueue-1", "gnlqueue-asyncio", "gnlqueue-heartbeat", "gnlqueue-wakeup")
    left = lambda: [t.name for t in set(threading.enumerate()) - before if t.name in names]  # noqa: E731
    until(lambda: not left(), "the end of its threads")


# --- the loop ------------------------------------------------------------------------------------------------------


@on_sqlite
def test_busy_worker_notices_that_its_supervisor_is_gone(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    turn, turns = worker._turn, 0

    def turn_with_news() -> float:
        nonlocal turns
        turns += 1
        assert turns < 100, "it goes on"
        delay = turn()
        worker._inbox.ring()  # as an outcome would
        return delay

    monkeypatch.setattr(worker, "_turn", turn_with_news)

    worker.run(still_wanted=lambda: False)


def test_draining_worker_goes_on_until_a_claim_finds_nothing(alias: str) -> None:
    """A suspect is left out where a claim takes what comes before it, which here is over before anything begins."""
    queue.enqueue("no.such.task")
    suspect = tasks.nothing.enqueue()
    Job.objects.using(alias).filter(pk=suspect.pk).update(crashes=2)

    drain(concurrency=4)

    assert row(suspect).status == JobStatus.DONE


@on_sqlite
def test_draining_worker_prunes_at_its_end(alias: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may never live as long as others wait before they prune for the first time."""
    monkeypatch.setattr("gnlqueue.worker.maintenance.PRUNE_AT_ONCE", 2)
    settings.GNLQUEUE = {**settings.GNLQUEUE, "RETENTION_SECONDS": 3600}
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(5))
    drain()
    Job.objects.using(alias).update(finished_at=timezone.now() - timedelta(hours=2))
    last = tasks.nothing.enqueue()

    drain()

    assert list(Job.objects.using(alias).values_list("pk", flat=True)) == [last.pk]


@on_sqlite
def test_worker_says_at_its_start_which_queues_are_paused(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("other", "elsewhere", "default"):
        queue.pause(name)
    queue.resume("default")

    drain(queues=["default", "other"])

    said = [record.getMessage() for record in caplog.records if "paused" in record.getMessage()]
    assert said == ["paused     other: its jobs wait until manage.py gnlqueue resume other"]


@on_sqlite
def test_draining_worker_does_not_prefetch(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim_ready, limits = claiming.claim_ready, []

    def spy(*args: Any, limit: int, **options: Any) -> Any:
        limits.append(limit)
        return claim_ready(*args, limit=limit, **options)

    monkeypatch.setattr(claiming, "claim_ready", spy)
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(50))

    drain(concurrency=2)

    assert max(limits) == 2


def test_many_short_jobs_are_claimed_and_written_together(
    alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: the commit is what costs."""
    sizes: dict[str, list[int]] = {}

    def count_calls(module: Any, name: str, size: Callable[[Any, Any], int]) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            sizes.setdefault(name, []).append(size(args, result))
            return result

        monkeypatch.setattr(module, name, counted)

    count_calls(claiming, "claim_ready", lambda _, claimed: len(claimed))
    count_calls(transitions, "complete_many", lambda args, _: len(args[0]))
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(600))
    in_thread(Worker(concurrency=1))
    until(lambda: sum(sizes.get("complete_many", [])) == 600, "600 outcomes")

    for name in ("claim_ready", "complete_many"):
        statements = [size for size in sizes[name] if size]
        assert len(statements) <= 60, statements


# --- when the connection breaks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_claim_that_fails(alias: str, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Also where it was committed all the same: what stands in the worker's name goes back, uncounted."""
    job = tasks.tell.enqueue()
    fails_once(monkeypatch, claiming, "claim_ready", when=when)

    drain()

    assert (row(job).status, row(job).attempts) == (JobStatus.DONE, 1)
    assert row(job).lease_token == (1 if when == "before" else 2)
    assert len(told()) == 1


def test_claim_that_fails_after_another_succeeded(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was claimed from the first queue runs, though the second one's claim failed."""
    jobs = [tasks.nothing.enqueue(), tasks.work_elsewhere.enqueue()]
    fails_once(monkeypatch, claiming, "claim_ready", when="before", at=2)

    drain(queues=["default", "other"])

    assert [(row(job).status, row(job).attempts) for job in jobs] == [(JobStatus.DONE, 1)] * 2


@pytest.mark.parametrize("function", ["complete_many", "fail"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_outcome_that_is_not_acknowledged_is_offered_again(
    alias: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str, when: str
) -> None:
    """Every outcome is written, each is reported once, and nothing runs twice."""
    caplog.set_level("INFO", "gnlqueue")
    good = [tasks.tell.enqueue() for _ in range(3)]
    bad = tasks.give_up.enqueue()
    fails_once(monkeypatch, transitions, function, when=when)
    told_of: list[int] = []

    def hear(job: ClaimedJob, **_: Any) -> None:
        told_of.append(job.id)

    signals.job_attempt_failed.connect(hear)
    try:
        drain(concurrency=4)
    finally:
        signals.job_attempt_failed.disconnect(hear)

    assert [(row(job).status, row(job).attempts) for job in good] == [(JobStatus.DONE, 1)] * 3
    assert (row(bad).status, row(bad).attempts) == (JobStatus.DEAD, 1)
    assert len(told()) == 3
    for job in good:
        assert caplog.text.count(f"done       tests.app.tasks.tell  job {job.pk}  ") == 1
    assert caplog.text.count(f"dead       tests.app.tasks.give_up  job {bad.pk}  ") == 1
    assert told_of == [bad.pk]


@on_sqlite
def test_error_that_is_no_outage_is_not_hidden(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.nothing.enqueue()

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(outcomes, "write", broken)

    with pytest.raises(ZeroDivisionError):
        drain()


@on_sqlite
def test_who_is_woken_claims_before_its_upkeep(
    alias: str, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []

    def noting(module: Any, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **kwargs: did.append(name) or function(*args, **kwargs))

    noting(claiming, "claim_ready")
    noting(Maintenance, "do_what_is_due")
    noting(Pace, "pause")
    monkeypatch.setattr(wakeup, "watcher", lambda *_: None)  # its own commits would wake it
    worker = Worker(["default"], poll_interval=60)
    in_thread(worker)
    until(lambda: "pause" in did, "the end of its first turn")
    did.clear()

    worker._wake()

    until(lambda: "do_what_is_due" in did, "upkeep")
    assert did[:2] == ["claim_ready", "do_what_is_due"]


def test_abandoned_job_is_rescued(alias: str, in_thread: InThread) -> None:
    """Of a worker that is gone with its whole machine."""
    job = tasks.give.enqueue(1)
    assert queue.claim(worker_id="gone", lease=0.2) is not None

    in_thread(Worker(poll_interval=0.05, lease=0.6))

    done = until_status(job, JobStatus.DONE)
    assert (done.attempts, done.result) == (2, 1)


class Clocks:
    """The time as the upkeep sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic_now, self.now = time.monotonic(), time.time()
        monkeypatch.setattr("gnlqueue.worker.maintenance.time", self)

    def monotonic(self) -> float:
        return self.monotonic_now

    def time(self) -> float:
        return self.now

    def wait(self, seconds: float, upkeep: Maintenance) -> None:
        """Let time pass under a worker that runs, and looks up every second."""
        for _ in range(round(seconds)):
            self.monotonic_now += 1
            self.now += 1
            upkeep.look_up()


@pytest.mark.parametrize("drain", [False, True])
def test_a_worker_that_has_just_started_lets_owners_renew_first(
    alias: str, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    """The database may have been away until now; but a worker that only drains would be gone before they did."""
    job = tasks.give.enqueue(1)
    long_ago = timezone.now() - timedelta(hours=1)
    assert queue.claim(worker_id="back soon", lease=1, using=alias, now=long_ago) is not None
    clocks = Clocks(monkeypatch)
    upkeep = Maintenance(["default"], database=alias, beat=20, drain=drain)

    upkeep.do_what_is_due(idle=True)
    assert row(job).status == (JobStatus.READY if drain else JobStatus.IN_PROGRESS)

    clocks.wait(20, upkeep)
    upkeep.do_what_is_due(idle=True)
    assert row(job).status == JobStatus.READY


@pytest.fixture
def expired(alias: str) -> Callable[[], Job]:
    """A job whose lease has run out."""

    def claim() -> Job:
        job = tasks.give.enqueue(1)
        long_ago = timezone.now() - timedelta(hours=1)
        assert queue.claim(worker_id="another", lease=1, using=alias, now=long_ago) is not None
        return job

    return claim


@pytest.mark.parametrize("in_a_turn", [False, True])
def test_a_worker_that_stood_still_lets_owners_renew_first(
    alias: str, expired: Callable[[], Job], monkeypatch: pytest.MonkeyPatch, in_a_turn: bool
) -> None:
    """Its machine was suspended, and the monotonic clock with it; or its container was paused. It may be the owner."""
    clocks = Clocks(monkeypatch)
    upkeep = Maintenance(["default"], database=alias, beat=20)
    upkeep.do_what_is_due(idle=True)
    clocks.wait(30, upkeep)
    upkeep.do_what_is_due(idle=True)
    job = expired()

    clocks.now += 3600
    if not in_a_turn:
        upkeep.look_up()
    upkeep.do_what_is_due(idle=True)
    assert row(job).status == JobStatus.IN_PROGRESS
    clocks.wait(19, upkeep)
    upkeep.do_what_is_due(idle=True)
    assert row(job).status == JobStatus.IN_PROGRESS
    clocks.wait(1, upkeep)
    upkeep.do_what_is_due(idle=True)
    assert row(job).status == JobStatus.READY


def kept_up(alias: str, clocks: Clocks) -> Maintenance:
    """Return the upkeep of a worker that has run for longer than a beat."""
    upkeep = Maintenance(["default"], database=alias, beat=20)
    for _ in range(30):
        upkeep.do_what_is_due(idle=True)
        clocks.wait(1, upkeep)
    return upkeep


@pytest.mark.parametrize("away", [1, 60])
def test_a_connection_that_breaks_again_and_again_keeps_no_worker_from_rescuing(
    alias: str, expired: Callable[[], Job], monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    """No lease runs out in the seconds without one; after more than a beat owners renew first."""
    clocks = Clocks(monkeypatch)
    upkeep = kept_up(alias, clocks)
    job = expired()

    upkeep.note_outage()
    clocks.wait(away, upkeep)
    upkeep.do_what_is_due(idle=True)
    assert row(job).status == (JobStatus.READY if away < 20 else JobStatus.IN_PROGRESS)


def test_a_clock_that_is_set_back_hides_no_outage(
    alias: str, expired: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    upkeep = kept_up(alias, clocks)
    job = expired()

    upkeep.note_outage()
    clocks.wait(60, upkeep)
    clocks.now -= 3600
    upkeep.do_what_is_due(idle=True)
    assert row(job).status == JobStatus.IN_PROGRESS


def test_a_worker_whose_receivers_are_slow_has_not_stood_still(
    alias: str, expired: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it believed so after each group that it writes, it would never rescue anything."""
    clocks = Clocks(monkeypatch)
    monkeypatch.setattr("gnlqueue.worker.outbox.LOOK_UP_EVERY", 0)  # for it goes by the true clock

    def be_slow(*_: Any) -> None:
        clocks.monotonic_now += 15
        clocks.now += 15

    worker = Worker(["default"], drain=True, heartbeat=False, lease=60, on_error=be_slow)
    worker._maintenance.do_what_is_due(idle=True)
    job = expired()
    gnlqueue.enqueue_many(tasks.nothing.bind() for _ in range(3))
    claimed = claiming.claim_ready("default", worker_id="w1", lease=60, limit=3, alias=alias)
    worker._outbox.add(Outcome(each, Ending.FAILED, 0.1, error="no answer") for each in claimed)
    worker._outbox.write()
    worker._maintenance.do_what_is_due(idle=True)
    assert row(job).status == JobStatus.READY


@on_sqlite
def test_a_worker_that_can_start_no_thread_leaves_the_jobs_to_others(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would claim again what it has just given back; where nobody is woken, before others look."""
    worker = Worker(["default"], drain=True, heartbeat=False)
    scarce = [True]
    start = worker._pool._start_thread

    def start_if_allowed() -> None:
        if scarce[0]:
            raise RuntimeError("can't start new thread")
        start()

    monkeypatch.setattr(worker._pool, "_start_thread", start_if_allowed)
    monkeypatch.setattr("gnlqueue.worker.loop.PATIENCE", 0.0)
    job = tasks.nothing.enqueue()
    for _ in range(5):
        worker._turn()
    assert (row(job).status, row(job).lease_token) == (JobStatus.READY, 1)
    scarce[0] = False
    worker._pool._start_after = 0.0
    worker.run()
    assert (row(job).status, row(job).lease_token) == (JobStatus.DONE, 2)
