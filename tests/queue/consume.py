"""Consumers in processes of their own: ``python -m tests.queue.consume 8`` prints the ids that each completed."""

import json
import multiprocessing
import sys
from typing import Any

import django


def consume(worker_id: str, all_are_there: Any) -> list[int]:
    """Claim and complete until the queue is empty."""
    from gnlqueue import queue
    from gnlqueue.queue.transitions import complete_many

    all_are_there.wait()  # so that they begin at once
    completed: list[int] = []
    while batch := queue.claim_many(worker_id=worker_id, limit=100):
        lost = complete_many([(job, None) for job in batch])
        assert not lost, f"lost: {lost}"
        completed += [job.id for job in batch]
    return completed


def consume_side_by_side(processes: int) -> list[list[int]]:
    """Run so many consumers, and return what each has completed."""
    forks = multiprocessing.get_context("fork")  # eight interpreters that start would take longer than their work
    with forks.Manager() as manager, forks.Pool(processes) as pool:
        barrier = manager.Barrier(processes)
        return pool.starmap(consume, [(f"w{number}", barrier) for number in range(processes)], chunksize=1)


if __name__ == "__main__":
    django.setup()
    sys.stdout.write(json.dumps(consume_side_by_side(int(sys.argv[1]))))
