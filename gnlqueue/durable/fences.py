"""Who may write into a run's journal. Each journal write and its fence are one transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from gnlqueue.dialects import now as clock
from gnlqueue.exceptions import JobCancelled, JobInterrupt, JobPreempted
from gnlqueue.models import Job, JobStatus, RunLock
from gnlqueue.queue import ClaimedJob, leases


class Fence(Protocol):
    """The right to write, under `token`, on the database `database`; `lease` is how long a write extends it."""

    token: int
    database: str
    lease: timedelta

    def hold(self, *, starting: bool) -> bool:
        """Extend the right as part of the caller's transaction; `False` where it is lost.

        With `starting` something new is about to begin, which a request to cancel forbids.
        """

    def lock(self) -> bool:
        """Lock the row of the right until the caller's transaction ends; `False` where it is lost."""

    def why_lost(self) -> JobInterrupt | None:
        """Return what stops the run; `None` where nothing does."""


class JobFence:
    """The lease of a claimed job."""

    def __init__(self, claimed: ClaimedJob, lease: timedelta) -> None:
        self.claimed = claimed
        self.token = claimed.lease_token
        self.database = claimed.database
        self.lease = lease

    def hold(self, *, starting: bool) -> bool:
        return leases.keep(self.claimed, self.lease, unless_cancelled=starting)

    def lock(self) -> bool:
        # By its primary key alone: an UPDATE may scan a small table, and lock the gaps for new jobs too.
        row = Job.objects.using(self.database).select_for_update().filter(pk=self.claimed.id)
        return row.values_list("status", "lease_token").first() == (JobStatus.IN_PROGRESS, self.token)

    def why_lost(self) -> JobInterrupt | None:
        rows = Job.objects.using(self.database).filter(pk=self.claimed.id)
        row = rows.values_list("status", "lease_token", "cancel_requested_at", named=True).first()
        if row is None:
            return JobPreempted(f"Job {self.claimed.id} is gone; it was probably pruned. Stop here.")
        if row.status != JobStatus.IN_PROGRESS or row.lease_token != self.token:
            return JobPreempted(f"Job {self.claimed.id} is not held under token {self.token} any more. Stop here.")
        if row.cancel_requested_at is not None:
            at = f"{row.cancel_requested_at:%H:%M:%S} UTC"
            return JobCancelled(f"Somebody asked to cancel job {self.claimed.id} at {at}.")
        return None


class LockFence:
    """The run lock of a run outside a job."""

    def __init__(self, run_id: str, run_id_hash: str, token: int, database: str, lease: timedelta) -> None:
        self.run_id = run_id
        self.token = token
        self.database = database
        self.lease = lease
        self._row = RunLock.objects.using(database).filter(pk=run_id_hash, lease_token=token, owner__isnull=False)

    def hold(self, *, starting: bool) -> bool:
        return self._row.update(expires_at=clock(offset=self.lease)) == 1

    def lock(self) -> bool:
        return self._row.select_for_update().values_list("pk").first() is not None

    def release(self) -> bool:
        """Release the lock; `False` where it was lost before."""
        return self._row.update(owner=None, expires_at=None) == 1

    def why_lost(self) -> JobInterrupt | None:
        if self._row.exists():
            return None
        return JobPreempted(f"The lock on the run {self.run_id!r} was lost: somebody else has taken it since.")
