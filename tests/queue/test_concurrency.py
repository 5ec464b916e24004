"""Any number of consumers at once: every job exactly once, and no error of the database's locks reaches them."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gnlqueue
from gnlqueue import queue
from gnlqueue.models import Job, JobAttempt, JobStatus
from gnlqueue.queue.transitions import complete_many
from tests.queue.conftest import NOON, after, count
from tests.queue.tasks import poll_gateway

PROCESSES = 8


def test_eight_processes_complete_each_of_5000_jobs_once(alias: str) -> None:
    ids = gnlqueue.enqueue_many(poll_gateway.bind() for _ in range(5000))
    consumers = subprocess.run(
        [sys.executable, "-m", "tests.queue.consume", str(PROCESSES)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )
    assert consumers.returncode == 0, consumers.stderr
    completed = json.loads(consumers.stdout)

    assert sorted(id for each in completed for id in each) == sorted(ids)
    assert count(JobStatus.DONE) == 5000
    assert set(Job.objects.using(alias).values_list("attempts", "lease_token")) == {(1, 1)}
    assert sum(bool(each) for each in completed) > 1  # they did work side by side


def test_eight_claimers_promote_and_rescue_side_by_side(
    alias: str, run_threads: Callable[[int, Callable[[int], Any]], list[Any]]
) -> None:
    """1,000 jobs that were lost, 2,500 that are due and 2,500 that are ready, in one queue."""
    gnlqueue.enqueue_many(poll_gateway.bind() for _ in range(1000))
    assert len(queue.claim_many(worker_id="dead", limit=1000, lease=1, now=NOON)) == 1000
    gnlqueue.enqueue_many(poll_gateway.using(run_after=NOON).bind() for _ in range(2500))
    gnlqueue.enqueue_many(poll_gateway.bind() for _ in range(2500))
    now = after(minutes=2)

    def consume(number: int) -> list[int]:
        completed: list[int] = []
        while batch := queue.claim_many(worker_id=f"w{number}", limit=50, lease=10**6, now=now):
            assert complete_many([(job, None) for job in batch], now=now) == []
            completed += [job.id for job in batch]
        return completed

    everything = Counter(id for ids in run_threads(8, consume) for id in ids)

    assert len(everything) == 6000
    assert set(everything.values()) == {1}
    assert count(JobStatus.DONE) == 6000
    assert JobAttempt.objects.using(alias).count() == 1000  # each lost job was rescued once
