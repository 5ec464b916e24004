"""What this worker holds: the claimed jobs, and their entries in the table that its heartbeat renews."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gnlqueue.queue import ClaimedJob
from gnlqueue.queue.claimed import Pair
from gnlqueue.worker.table import LeaseTable, Stage


class Holdings:
    """The jobs from their claim until their outcome is written or they are given back; the loop's own.

    By id and token: a worker that lost a lease unawares may hold the job again while the first attempt still runs.
    """

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self._jobs: dict[Pair, ClaimedJob] = {}
        self._overdue: set[Pair] = set()
        self._suspects: set[Pair] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(list(self._jobs.values()))

    def add(self, claimed: ClaimedJob) -> None:
        """Hold a job that was just claimed; its lease is renewed from now on."""
        self._jobs[claimed.pair] = claimed
        if claimed.is_suspect:
            self._suspects.add(claimed.pair)
        self.table.hold(claimed)

    def drop(self, jobs: Iterable[ClaimedJob]) -> None:
        """Hold these no more."""
        for claimed in jobs:
            self._jobs.pop(claimed.pair, None)
            self._overdue.discard(claimed.pair)
            self._suspects.discard(claimed.pair)
            self.table.drop(claimed)

    def mark_overdue(self, claimed: ClaimedJob) -> bool:
        """Note a job that is over its timeout and does not end; tell whether that is news."""
        if claimed.pair not in self._jobs or claimed.pair in self._overdue:
            return False
        self._overdue.add(claimed.pair)
        self.table.advance(claimed, Stage.OVERDUE)
        return True

    @property
    def overdue(self) -> list[ClaimedJob]:
        """The jobs that are over their timeout and do not end."""
        return [self._jobs[pair] for pair in self._overdue]

    @property
    def has_suspect(self) -> bool:
        """Whether one of them is a suspect, beside which nothing may run in this process."""
        return bool(self._suspects)
