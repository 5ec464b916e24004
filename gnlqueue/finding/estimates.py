"""About how many jobs match, as the database's statistics tell without reading one of them."""

from __future__ import annotations

from dataclasses import replace

from django.db import connections

from gnlqueue import dialects
from gnlqueue.finding.criteria import ALWAYS, Criteria
from gnlqueue.finding.plans import plans_for
from gnlqueue.models import FINISHED, Job


def estimate(criteria: Criteria, alias: str) -> int | None:
    """Return about how many jobs match; `None` where nothing tells.

    Statistics are known of what an index serves: of other columns MySQL guesses. What a cut-off leaves out is too
    little to matter.
    """
    whole = replace(criteria, last_id=None, as_of=None, without_task=None)
    if whole.enqueued != ALWAYS:  # no index serves it, and the plan for it is made of many statements
        return None
    if any(plan.asked is not None for plan in plans_for(whole, alias)):
        return None
    fitting = _led_by_statuses(whole) if connections[alias].vendor == "mysql" else _without_dependent(whole)
    if fitting is None:
        return None
    # Not the rows of the plans: that finished jobs have a time of their end, PostgreSQL would count as one more filter.
    return dialects.estimate(Job.objects.using(alias).filter(fitting.condition()))


def _led_by_statuses(whole: Criteria) -> Criteria:
    """Return the criteria with the statuses that lead the index of what has finished."""
    return replace(whole, statuses=tuple(FINISHED)) if whole.finished != ALWAYS and not whole.statuses else whole


def _without_dependent(whole: Criteria) -> Criteria | None:
    """Return the criteria by columns that do not depend on each other; `None` where that cannot be.

    PostgreSQL knows each by itself, and multiplies. But only finished jobs have an end, and mostly only those that wait
    are due later.
    """
    if whole.run != ALWAYS:
        return None
    if whole.finished == ALWAYS:
        return whole
    return replace(whole, statuses=()) if set(whole.statuses) in (set(), set(FINISHED)) else None
