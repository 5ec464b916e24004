"""Finding jobs among ten million, without ever reading the table as a whole.

`criteria` says what is looked for, `plans` by which index it is read, `pages` how far one look goes, `estimates` about
how much there is.
"""

from gnlqueue.finding.criteria import ALWAYS, LARGEST, NO_ERROR, Argument, Criteria, Span
from gnlqueue.finding.estimates import estimate
from gnlqueue.finding.pages import Page, Place, count_up_to, look
from gnlqueue.finding.plans import Plan, order_of, plans_for

__all__ = [
    "ALWAYS",
    "LARGEST",
    "NO_ERROR",
    "Argument",
    "Criteria",
    "Page",
    "Place",
    "Plan",
    "Span",
    "count_up_to",
    "estimate",
    "look",
    "order_of",
    "plans_for",
]
