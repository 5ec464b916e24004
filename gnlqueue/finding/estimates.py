"""About how many jobs match, as the database's statistics tell without reading one of them."""

from __future__ import annotations

from dataclasses import replace

from gnlqueue import dialects
from gnlqueue.finding.criteria import ALWAYS, Criteria
from gnlqueue.finding.plans import FINISHED, plans_for
from gnlqueue.models import Job


def estimate(criteria: Criteria, alias: str) -> int | None:
    """Return about how many jobs match; `None` where nothing tells.

    Statistics are known of what an index serves: of other columns MySQL guesses. What a cut-off leaves out is too
    little to matter.
    """
    whole = replace(criteria, last_id=None, as_of=None, without_task=None)
    if any(plan.asked is not None for plan in plans_for(whole, alias)):
        return None
    if whole.finished != ALWAYS and not whole.statuses:
        whole = replace(whole, statuses=tuple(FINISHED))  # which leads the index
    # Not the rows of the plans: that finished jobs have a time of their end, PostgreSQL would count as one more filter.
    return dialects.estimate(Job.objects.using(alias).filter(whole.condition()))
