"""The database goes away under a running worker and comes back, as in a restart or a failover."""

import re
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest
from django.utils import timezone

from gnlqueue.models import JobAttempt, JobStatus
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker import proxy
from tests.worker.conftest import row, until_status, until_told
from tests.worker.processes import RunWorker, until

Run = Callable[..., RunWorker]

pytestmark = pytest.mark.parametrize("alias", ["postgresql", "mysql"], indirect=True)


def test_outage_longer_than_a_lease(alias: str, runworker: Run) -> None:
    with proxy.before(alias) as way:
        run = runworker("--lease", "1", "--processes", "2", "--concurrency", "2", **way.environment)
        used_before = [tasks.write_note.enqueue(f"before {number}") for number in range(8)]
        for job in used_before:  # the threads have connections now
            until_status(job, JobStatus.DONE)
        running = tasks.wait.enqueue()
        until_told("began")

        way.cut()
        until(lambda: row(running).lease_expires_at < timezone.now(), "the end of the lease")
        run.says("cannot be reached", 3)
        waiting = [tasks.write_note.using(max_attempts=1).enqueue(f"after {number}") for number in range(8)]
        way.restore()

        # It goes on by itself, and what it holds stays its own.
        until(lambda: row(running).lease_expires_at > timezone.now(), "a renewal")
        for job in waiting:
            assert until_status(job, JobStatus.DONE).attempts == 1
        open_gate("go")
        done = until_status(running, JobStatus.DONE)
        run.says("is back after", 3)

        assert (done.attempts, done.lease_token) == (1, 1)
        assert [each["what"] for each in told()].count("began") == 1
        assert not JobAttempt.objects.using(alias).exists()
        assert "rescued" not in run.log
        assert "restart " not in run.log
        # Two workers and the heartbeat, each says it once.
        said_by = re.findall(r"ERROR \[(\d+)\] The database '\w+' cannot be reached", run.log)
        assert set(Counter(said_by).values()) == {1}, run.log


def test_outcome_waits_for_the_database(alias: str, runworker: Run) -> None:
    """A job that ends while the database is away is done when it is back."""
    with proxy.before(alias) as way:
        run = runworker("--lease", "5", **way.environment)
        job = tasks.wait.enqueue()
        until_told("began")

        way.cut()
        open_gate("go")
        until_told("ended")
        run.says("cannot be reached")
        way.restore()

        assert until_status(job, JobStatus.DONE).lease_token == 1


def test_worker_starts_before_its_database(alias: str, runworker: Run) -> None:
    """The supervisor needs no connection at all."""
    with proxy.before(alias) as way:
        way.cut()
        run = runworker(**way.environment)
        run.says("cannot be reached", 2)
        job = tasks.nothing.enqueue()

        way.restore()

        until_status(job, JobStatus.DONE)


def test_worker_ends_while_its_database_is_away(alias: str, runworker: Run) -> None:
    with proxy.before(alias) as way:
        run = runworker(
            "--lease",
            "2",
            "--shutdown-timeout",
            "0.1",
            GNLQUEUE_TEST_SET='{"gnlqueue.worker.supervisor.HEARTBEAT_PATIENCE": 0.3}',
            **way.environment,
        )
        tasks.wait.enqueue()
        until_told("began")
        way.cut()
        run.says("cannot be reached")

        began = time.monotonic()
        run.signal(signal.SIGTERM)

        assert run.ends() == 0
        assert time.monotonic() - began < 5
        run.says("could not be given back in time; their leases will run out")
