"""What the log says of jobs that were lost with their worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gnlqueue.models import JobStatus
from gnlqueue.queue.transitions import LostAttempt

logger = logging.getLogger("gnlqueue.worker")

MOST_NAMES = 20


def names(job_ids: Sequence[int]) -> str:
    """Return `job 3`, `jobs 3, 4`, or the first twenty and how many more."""
    shown = ", ".join(map(str, job_ids[:MOST_NAMES]))
    more = f" and {len(job_ids) - MOST_NAMES} more" if len(job_ids) > MOST_NAMES else ""
    return f"job{'s' if len(job_ids) > 1 else ''} {shown}{more}"


def say_what_waits_for_a_human(lost: Sequence[LostAttempt]) -> None:
    """Log a line for each job that will not run again by itself, like that of one that failed."""
    for each in lost:
        if each.status in {JobStatus.DEAD, JobStatus.BLOCKED}:
            logger.error(
                "%-9s  %s  job %d  attempt %d of %s: %s",
                each.status.value,
                each.task_name,
                each.job_id,
                each.number,
                each.max_attempts,
                each.error,
                extra={"job_id": each.job_id, "task_name": each.task_name, "outcome": each.status.value},
            )
