"""The key that names the effect of a step for ever, to hand to somebody else's API; also for people who look it up."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime


def identity_of_job(run_id: str, enqueued_at: datetime) -> str:
    """Return what tells a job's run from all others, also from one of another database with the same id."""
    return f"{run_id}:{enqueued_at.astimezone(UTC).isoformat()}"


def effect_key(identity: str, step_key: str) -> str:
    """Return the key of a step's effect; `identity` is `identity_of_job`, outside of a job the run id."""
    return f"gnlqueue-{hashlib.sha256(f'{identity}:{step_key}'.encode()).hexdigest()[:40]}"
