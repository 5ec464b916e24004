"""What a holder has in its hand, and the guard that each of its writes carries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q

from gnlqueue.dialects import Held
from gnlqueue.dialects.base import SUSPECT_CRASHES, ClaimedRow
from gnlqueue.exceptions import GnlqueueError, JobNotFound, LeaseLost
from gnlqueue.models import Job, JobStatus, run_id_of

#: A job's id and the lease token under which it is held.
Pair = tuple[int, int]


class ClaimedJob(NamedTuple):
    """A job as its holder has it: the row's values at the claim. Only this passes as a holder's proof.

    A `Job` read back from the table carries whatever token is current, and would pass the guard from anywhere.
    `database` is the alias that it was claimed on; the holder's verbs use it.
    """

    id: int
    task_name: str
    queue_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int
    attempts: int
    max_attempts: int | None
    crashes: int
    options: dict[str, Any] | None
    lease_token: int
    lease_expires_at: datetime
    worker_id: str
    enqueued_at: datetime
    run_at: datetime
    last_attempted_at: datetime
    unknown_since: datetime | None
    database: str

    @classmethod
    def from_row(cls, row: ClaimedRow, database: str) -> ClaimedJob:
        """Return the value for a row that a claim gave."""
        return cls._make((*row, database))

    @property
    def pair(self) -> Pair:
        """The job's id and lease token."""
        return self.id, self.lease_token

    @property
    def run_id(self) -> str:
        """The id of the job's durable run."""
        return run_id_of(self.id)

    @property
    def is_suspect(self) -> bool:
        """Whether it crashed its worker twice in a row, and so runs with nothing else in its process."""
        return self.crashes >= SUSPECT_CRASHES


def database_of(*claimed: ClaimedJob) -> str:
    """Return the alias of the database on which these jobs were claimed.

    Raises `TypeError` for anything but a `ClaimedJob`.
    """
    for each in claimed:
        if not isinstance(each, ClaimedJob):
            raise TypeError(f"A holder's verb takes the ClaimedJob that claim() gave, not {each!r}.")
    return claimed[0].database


def held(*claimed: ClaimedJob) -> Q:
    """Return the guard: the rows that are in progress under these tokens. Nothing else may write for a holder."""
    return held_pairs([each.pair for each in claimed])


def held_pairs(pairs: Sequence[Pair]) -> Q:
    """Return the guard for holders that are known by (id, lease token) only."""
    return Q(Held(list(pairs)))


def lost(claimed: ClaimedJob) -> GnlqueueError:
    """Return the error for a holder whose guard matched no row, saying what became of the job."""
    row = (
        Job.objects.using(claimed.database)
        .filter(pk=claimed.id)
        .values_list("status", "lease_token", "worker_id", named=True)
        .first()
    )
    if row is None:
        return JobNotFound(f"Job {claimed.id} ({claimed.task_name}) is gone; it was probably pruned.")
    if row.status == JobStatus.IN_PROGRESS and row.lease_token != claimed.lease_token:
        what = f"{row.worker_id} has claimed it since (its token is {row.lease_token})"
    elif row.status == JobStatus.IN_PROGRESS:
        what = "it is held under this very token, so the write was refused for another reason; please report this"
    elif row.status == JobStatus.CANCELLED:
        what = "it has been cancelled"
    elif row.status in {JobStatus.DONE, JobStatus.DEAD, JobStatus.BLOCKED}:
        what = f"it is already {row.status}"
    else:
        what = f"it was released or rescued, and is {row.status}"
    return LeaseLost(
        f"Job {claimed.id} ({claimed.task_name}) is not held under token {claimed.lease_token} any more: {what}. "
        "Nothing was written."
    )
