"""What a filter looks for, in words: on the page that confirms, and in the operator log."""

from __future__ import annotations

import json
import re
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gnlqueue import bulk
from gnlqueue.finding import ALWAYS, NO_ERROR, Argument, Criteria, Span
from gnlqueue.redaction import MASK, hides, hides_something
from gnlqueue.templatetags.gnlqueue_admin import number
from gnlqueue.templatetags.statuses import STATUSES

MOST_IDS = bulk.FIRST_IDS  # that are all named
SOME_IDS = 3  # that are named where there are more

#: How the log keeps a target, in English, so that it is found whatever language the reader uses.
MATCHING = "jobs that match"
_QUEUE, _NUMBER = re.compile(r"queue (.+)"), re.compile(r"(\d+) jobs")


def in_words(criteria: Criteria, *, may_see_payload: bool, of: int = 0) -> list[tuple[str, str]]:
    """Return (what is asked about, what it must be) pairs; `of` is how many ids there are, if only some are given."""
    words: list[tuple[str, str | None]] = [
        (_("status"), ", ".join(str(STATUSES[each][0]) for each in criteria.statuses)),
        (_("queue"), criteria.queue_name),
        (_("task"), criteria.task_name),
        (_("task contains"), criteria.task_contains),
        (_("worker"), criteria.worker_id),
        (_("worker contains"), criteria.worker_contains),
        (_("error"), _errors(criteria.errors)),
        (_("enqueued"), _span(criteria.enqueued)),
        (_("due"), _span(criteria.run)),
        (_("finished"), _span(criteria.finished)),
        (_("idempotency key"), criteria.key),
        *(
            (_("argument %(name)s") % {"name": each.name}, _value(each, may_see_payload=may_see_payload))
            for each in criteria.arguments
        ),
        (_("jobs"), None if criteria.ids is None else _ids(criteria.ids, max(of, len(criteria.ids)))),
        (_("task is not"), criteria.without_task),
        (_("not later than"), _time(criteria.as_of)),
    ]
    return [(name, text) for name, text in words if text]


def of_action(where: Any, *, may_see_payload: bool) -> list[tuple[str, str]]:
    """Return the words of the filter that the operator log keeps of an action, and of what was not counted."""
    if not isinstance(where, dict) or "filter" not in where:
        return []
    try:
        first, of = _shortened(where)
        words = in_words(Criteria.from_json(first), may_see_payload=may_see_payload, of=of)
        uncounted = of_uncounted(where)
        return [*words, (_("not counted"), uncounted)] if uncounted else words
    except (ValueError, TypeError, KeyError, AttributeError):  # of another version
        kept = where["filter"]
        if isinstance(kept, dict) and (hides_something() or not may_see_payload):
            kept = {name: value for name, value in kept.items() if name != "arguments"}
        return [(_("filter"), json.dumps(kept))]


def of_uncounted(where: Any) -> str:
    """Return which jobs the numbers of an action leave out, and between which times that was; "" if none."""
    span = bulk.uncounted(where)
    if span is None:
        return ""
    times = dict(zip(("since", "until"), map(_time, span), strict=True))
    return _("those that left the filter between %(since)s and %(until)s, before their turn") % times


def of_target(target: str) -> str:
    """Return what the log keeps of a target that is not one job, in the reader's language."""
    if target == MATCHING:
        return _("jobs that match")
    if found := _QUEUE.fullmatch(target):
        return _("queue %(queue)s") % {"queue": found[1]}
    if found := _NUMBER.fullmatch(target):
        some = int(found[1])
        return ngettext("%(n)s job", "%(n)s jobs", some) % {"n": number(some)}
    return target


def _shortened(where: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the filter of an action with the first of its ids only, and how many there are."""
    ids = where["filter"].get("ids")
    if ids is None:
        return where["filter"], 0
    return {**where["filter"], "ids": ids[:MOST_IDS]}, max(len(ids), where.get("matched", 0))


def _value(argument: Argument, *, may_see_payload: bool) -> str:
    return MASK if not may_see_payload or hides(argument.name) else json.dumps(argument.value)


def _errors(errors: tuple[str, ...]) -> str:
    return _("no exception") if errors == (NO_ERROR,) else ", ".join(errors)


def _span(span: Span) -> str | None:
    if span == ALWAYS:
        return None
    return _("%(since)s to %(until)s") % {"since": _time(span.since) or "…", "until": _time(span.until) or "…"}


def _time(at: Any) -> str | None:
    return None if at is None else timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def _ids(ids: tuple[int, ...], of: int) -> str:
    first = ids if of <= MOST_IDS else ids[:SOME_IDS]
    more = of - len(first)
    shown = ", ".join(map(str, first))
    return shown if not more else shown + ngettext(" and %(n)s more", " and %(n)s more", more) % {"n": number(more)}
