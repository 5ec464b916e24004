"""What the log says of jobs that were lost with their worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gnlqueue.models import JobStatus
from gnlqueue.queue.transitions import LostAttempt

logger = logging.getLogger("gnlqueue.worker")


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
