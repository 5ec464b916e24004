"""Who loses a lease writes nothing; who holds the GIL does not lose it."""

import os
import signal
from collections.abc import Callable

import pytest

from gnlqueue.models import JobStatus
from tests.app import tasks
from tests.app.events import open_gate, told
from tests.worker.conftest import row, until_status, until_told
from tests.worker.processes import RunWorker

Run = Callable[..., RunWorker]


def test_worker_that_was_stopped_beyond_its_lease_writes_nothing(alias: str, runworker: Run) -> None:
    job = tasks.wait.using(max_attempts=2).enqueue()
    first = runworker("--lease", "1")
    stopped = until_told("began")["pid"]

    os.kill(stopped, signal.SIGSTOP)
    second = runworker("--lease", "1")
    assert until_told("began", 2)["attempt"] == 2
    open_gate("go")
    taken_over = until_status(job, JobStatus.DONE)
    os.kill(stopped, signal.SIGCONT)
    until_told("ended", pid=stopped)
    line = first.says("lost ")

    assert f"job {job.pk}" in line
    assert "it is done already" in line or "not held under its token" in line
    assert row(job).worker_id == taken_over.worker_id
    assert (row(job).finished_at, row(job).attempts, row(job).lease_token) == (taken_over.finished_at, 2, 2)
    assert " lost  " not in second.log


@pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True)  # it takes its three seconds
def test_task_that_holds_the_gil_for_three_leases_is_not_taken_over(alias: str, runworker: Run) -> None:
    job = tasks.hold_gil.enqueue(3.0)
    runworker("--lease", "1")
    until_told("began")
    runworker("--lease", "1")

    until_status(job, JobStatus.DONE)

    assert [each["what"] for each in told()].count("began") == 1
    assert (row(job).attempts, row(job).lease_token) == (1, 1)
