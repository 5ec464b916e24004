"""A consumer in a process of its own: ``python -m tests.queue.consume WORKER`` prints the ids that it completed."""

import json
import sys

import django


def consume(worker_id: str) -> list[int]:
    """Claim and complete until the queue is empty."""
    from gnlqueue import queue
    from gnlqueue.queue.transitions import complete_many

    completed: list[int] = []
    while batch := queue.claim_many(worker_id=worker_id, limit=100):
        lost = complete_many([(job, None) for job in batch])
        assert not lost, f"lost: {lost}"
        completed += [job.id for job in batch]
    return completed


if __name__ == "__main__":
    django.setup()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()  # the word to start, so that all begin at once
    sys.stdout.write(json.dumps(consume(sys.argv[1])))
