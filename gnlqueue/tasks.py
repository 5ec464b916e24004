"""Our own background jobs; workers find them here as they find those of any app."""

from __future__ import annotations

from typing import Any

from gnlqueue.durable.context import JobContext
from gnlqueue.registry import task


@task(name="gnlqueue.run_operator_action", takes_context=True, max_attempts=20)
def run_operator_action(context: JobContext, action_id: int) -> dict[str, Any]:
    """Do what an operator asked for to many jobs; an attempt goes on where the last one ended.

    Where jobs may have left the filter without being counted, the result has the two times, too, as `uncounted`.
    """
    from gnlqueue import bulk  # late: few workers ever need it

    action = bulk.run(action_id, using=context.claimed.database, go_on=context.check)
    result: dict[str, Any] = {"changed": action.done, "skipped": action.skipped}
    if span := bulk.uncounted(action.where):
        result["uncounted"] = [time.isoformat() for time in span]
    return result
