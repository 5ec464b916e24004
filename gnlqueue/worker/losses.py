"""What the log says of jobs that were lost with their worker."""

from __future__ import annotations

from collections.abc import Sequence

MOST_NAMES = 20


def names(job_ids: Sequence[int]) -> str:
    """Return `job 3`, `jobs 3, 4`, or the first twenty and how many more."""
    shown = ", ".join(map(str, job_ids[:MOST_NAMES]))
    more = f" and {len(job_ids) - MOST_NAMES} more" if len(job_ids) > MOST_NAMES else ""
    return f"job{'s' if len(job_ids) > 1 else ''} {shown}{more}"
