"""How far a job has come, as its holder says."""

from __future__ import annotations

from typing import Any

from gnlqueue import payloads
from gnlqueue.conf import settings
from gnlqueue.models import Job
from gnlqueue.queue.claimed import ClaimedJob, database_of, held
from gnlqueue.queue.transactions import retried


def set_progress(claimed: ClaimedJob, value: Any) -> bool:
    """Store how far the job has come, and tell whether it was held, and nobody had asked to cancel it.

    Raises `PayloadError` when JSON cannot carry the value.
    """
    alias = database_of(claimed)
    carried = payloads.decode(payloads.encode(value, "progress", limit=settings().MAX_PAYLOAD_BYTES))
    rows = Job.objects.using(alias).filter(held(claimed), cancel_requested_at__isnull=True)
    return retried(alias, lambda: rows.update(progress=carried)) == 1
