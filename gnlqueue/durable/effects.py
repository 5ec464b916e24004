"""The key that names the effect of a step for ever: for somebody else's API, and for people who look it up there."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime


def identity_of_job(run_id: str, enqueued_at: datetime) -> str:
    """Return what tells a job's run from all others, even from one with the same id in another database."""
    return f"{run_id}:{enqueued_at.astimezone(UTC).isoformat()}"


def effect_key(identity: str, step_key: str) -> str:
    """Return the key of a step's effect; `identity` is `identity_of_job`, or outside a job the run id."""
    return f"gnlqueue-{hashlib.sha256(f'{identity}:{step_key}'.encode()).hexdigest()[:40]}"
