"""How the admin shows times, lengths, long values and statuses. Whatever a value holds, it is shown and not run."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlencode

from django import template
from django.template.defaultfilters import date as formatted_date
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from gnlqueue.templatetags.statuses import OTHER, STATUSES

register = template.Library()

NOTHING = "—"

#: Characters that would not be seen, or would change how others are seen: control and bidi marks, lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


@register.filter
def visible(value: Any) -> str:
    """Return the text with escapes for what cannot be seen: NUL as `\\x00`, a right-to-left override as `\\u202e`."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


#: Where a dotted name may be broken: before a word that follows a dot or an underscore, but not in `manage.py`.
_BREAK = re.compile(r"(?<=[^\W_][._])(?=[^\W\d_]{3})")


@register.filter
def breakable(value: Any) -> SafeString:
    """Show a text so that a narrow column breaks a long name in it after a dot or an underscore, not inside a word."""
    return mark_safe(_BREAK.sub("<wbr>", escape(visible(value))))


@register.filter
def cut(value: Any, longest: int = 200) -> SafeString:
    """Show at most so many characters, and say how many more there are."""
    text = str(value)
    return beginning(text[:longest], len(text))


def beginning(text: str, size: int) -> SafeString:
    """Show how a text of so many characters begins, and say how many more there are."""
    more = size - len(text)
    if more <= 0:
        return breakable(text)
    note = ngettext("%(number)s more character", "%(number)s more characters", more) % {"number": _number(more)}
    return format_html('{}<span class="gq-cut">… {}</span>', breakable(text), note)


@register.filter
def ago(value: datetime | None, now: datetime | None = None) -> SafeString | str:
    """Show how long ago a time was, or how far ahead it is, with the exact time in the title."""
    return NOTHING if value is None else _time(value, roughly(value, now))


@register.filter
def roughly(value: datetime, now: datetime | None = None) -> str:
    """Say in one unit how long ago a time was, or how far ahead it is."""
    seconds = ((now or timezone.now()) - value).total_seconds()
    if abs(seconds) < 1:
        return _("just now")
    if seconds > 0:
        return _("%(length)s ago") % {"length": rough(seconds)}
    return _("in %(length)s") % {"length": rough(-seconds)}


@register.filter
def exact(value: datetime | None) -> SafeString | str:
    """Show a time to the second, in the current time zone."""
    return NOTHING if value is None else _time(value, formatted_date(timezone.localtime(value), "Y-m-d H:i:s"))


def _time(value: datetime, text: str) -> SafeString:
    title = formatted_date(timezone.localtime(value), "Y-m-d H:i:s.u T")
    return format_html('<time datetime="{}" title="{}" dir="auto">{}</time>', value.isoformat(), title, text)


@register.filter
def duration(value: timedelta | float | None) -> str:
    """Show a length of time (a timedelta, or seconds) as `34 ms`, `1.5 s`, `3 min 20 s` or `2 h 5 min`."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.9995:
        return _("%(number)s ms") % {"number": _number(seconds * 1000, 0 if seconds >= 0.01 or not seconds else 1)}
    if seconds < 60:
        whole = seconds >= 9.95 or round(seconds, 1).is_integer()
        return _("%(number)s s") % {"number": _number(seconds, 0 if whole else 1)}
    return _two_units(round(seconds))


def rough(seconds: float) -> str:
    """Return a length of time in one unit."""
    for size, text in _UNITS:
        if seconds >= size:
            return text % {"number": _number(int(seconds // size))}
    return _("%(number)s s") % {"number": _number(int(seconds))}


_UNITS = [
    (86400, gettext_lazy("%(number)s d")),
    (3600, gettext_lazy("%(number)s h")),
    (60, gettext_lazy("%(number)s min")),
    (1, gettext_lazy("%(number)s s")),
]


def _two_units(seconds: int) -> str:
    for (size, text), (smaller, its_text) in pairwise(_UNITS):
        if seconds >= size:
            first = text % {"number": _number(seconds // size)}
            rest = seconds % size // smaller
            return f"{first} {its_text % {'number': _number(rest)}}" if rest and seconds // size < 100 else first
    return _UNITS[-1][1] % {"number": _number(seconds)}


def _number(value: float, decimals: int = 0) -> str:
    # Django cuts decimals off instead of rounding.
    return number_format(round(value, decimals), decimals, use_l10n=True, force_grouping=True)


@register.filter
def number(value: float | None, decimals: int = 0) -> str:
    """Show a number as the reader's language writes it."""
    return NOTHING if value is None else _number(value, decimals)


@register.filter
def percent(value: float | None) -> str:
    """Show a percentage; a small one, which matters here, with a decimal."""
    if value is None:
        return NOTHING
    return _("%(number)s %%") % {"number": _number(value, 0 if value >= 9.95 or not value else 1)}


@register.filter
def pace(value: float | None) -> str:
    """Show how many there are per minute."""
    return NOTHING if value is None else _number(value, 0 if value >= 9.95 or not value else 1)


@register.filter
def since(value: datetime | None, now: datetime) -> SafeString | str:
    """Show for how long something has been going on, with its exact beginning in the title."""
    return NOTHING if value is None else _time(value, rough(max((now - value).total_seconds(), 0)))


@register.filter
def clock(value: datetime, window: Any) -> str:
    """Show the time of day, as a chart of a window of time names its points; with the day where it shows several."""
    return formatted_date(timezone.localtime(value), "D H:i" if window.length.days else "H:i")


@register.filter
def coordinate(value: float) -> str:
    """Show a number as SVG wants it, whatever the reader's language writes for a decimal point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@register.filter
def status_badge(status: str) -> SafeString:
    """Show a status of a job, a step, a worker or a queue: an icon, its word, and a pattern of its own."""
    word, shape = STATUSES.get(str(status), (visible(status), OTHER))
    name = str(status) if str(status) in STATUSES else "other"
    return format_html(
        '<span class="gq-status gq-status-{}">{}<span>{}</span></span>', name.replace("_", "-"), _icon(shape), word
    )


@register.filter
def status_icon(status: str) -> SafeString:
    """Show a status as its icon only; the word stands beside it."""
    return _icon(STATUSES.get(str(status), ("", OTHER))[1])


def _icon(shape: str) -> SafeString:
    return format_html(
        '<svg class="gq-icon" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" focusable="false">'
        '<path d="{}" fill="currentColor"/></svg>',
        shape,
    )


@register.simple_block_tag(takes_context=True)
def link_to(context: template.Context, content: str, page: str, *args: Any, **query: Any) -> SafeString | str:
    """Link to a page of ours, such as `job_change`, with a query string; whoever may not open it sees only the text."""
    return _link(context, content, page, args, query) or format_html("<span>{}</span>", content)


@register.simple_block_tag(takes_context=True)
def invite_to(context: template.Context, content: str, page: str, *args: Any, **query: Any) -> SafeString | str:
    """Link to a page of ours that is pointless without the link; whoever may not open it sees nothing."""
    return _link(context, content, page, args, query)


def _link(context: Any, content: str, page: str, args: tuple[Any, ...], query: dict[str, Any]) -> SafeString | str:
    """Return the link; nothing for those who may not open the page."""
    # Late, as Django imports this module for whatever template comes first, even in a project without an admin.
    from gnlqueue.admin.base import may_open, url

    # From the context itself, where Django keeps it even if a project has no context processor for it.
    request = context.request
    if not may_open(request, page):
        return ""
    address = url(request, f"gnlqueue_{page}", *args) + (f"?{urlencode(query, quote_via=quote)}" if query else "")
    return format_html('<a href="{}">{}</a>', address, content)


_WITHOUT_NONCE = re.compile(r"<(?:script|link) (?![^>]*\bnonce=)")


@register.simple_tag(takes_context=True)
def nonced(context: template.Context, media: Any) -> SafeString:
    """Show tags, of media or of a block, with the page's nonce if Django's content security policy gives one."""
    tags = str(media)
    nonce = context.get("csp_nonce")
    if nonce is not None:  # a lazy one is false until it is used
        attribute = format_html('nonce="{}" ', nonce)
        tags = _WITHOUT_NONCE.sub(lambda found: found[0] + attribute, tags)
    return mark_safe(tags)
