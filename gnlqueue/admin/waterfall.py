"""The steps of a run on one axis of time, as numbers for a template to draw.

A sleep of a day, or a weekend in doubt, would squeeze everything else into a corner. So long times in which no step ran
are drawn shorter: all of them together take no more room than the time in which steps ran.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise

from django.utils.translation import gettext as _

from gnlqueue.models import EntryStatus, RunJournalEntry, StepKind

NARROWEST = 0.8  # per cent of the width, so that a bar can be seen


@dataclass(frozen=True, slots=True)
class Span:
    """When one step ran or waited. `end` is `None` if it still does; `looks` names how it is drawn."""

    entry: RunJournalEntry
    looks: str
    start: datetime
    end: datetime | None
    said: str

    @property
    def runs(self) -> bool:
        """Whether something happened in that time; otherwise it only passed."""
        return self.looks not in {"wait", "moment"}

    @property
    def length(self) -> timedelta | None:
        """How long it took; `None` if that is not recorded."""
        return None if self.end is None or self.looks == "moment" else self.end - self.start


@dataclass(frozen=True, slots=True)
class Row:
    """One step, with its place on the axis in per cent, as SVG takes it."""

    span: Span
    x: str
    width: str
    replays: Sequence[str]


@dataclass(frozen=True, slots=True)
class Cut:
    """Time that is drawn shorter than it was."""

    x: str
    width: str
    length: timedelta


@dataclass(frozen=True, slots=True)
class Waterfall:
    """What is drawn."""

    rows: Sequence[Row]
    cuts: Sequence[Cut]
    start: datetime
    end: datetime

    @property
    def cut_length(self) -> timedelta:
        """How much time is drawn shorter, in all."""
        return sum((cut.length for cut in self.cuts), timedelta())


def draw(spans: Sequence[Span], attempts: Iterable[tuple[int, datetime]], now: datetime) -> Waterfall | None:
    """Place steps on an axis; `None` if there are none.

    `attempts` are the lease tokens and the beginnings of the attempts that are known. One that came after a step was
    recorded as done replays it: its function is not called.
    """
    if not spans:
        return None
    began = list(attempts)
    axis = _Axis(spans, [start for _token, start in began], now)
    rows = []
    for span in spans:
        start, end = axis.place(span.start), axis.place(_end(span, now))
        width = max(end - start, NARROWEST)
        start = min(start, 100 - width)
        later = [at for token, at in began if token > span.entry.lease_token and span.entry.status == EntryStatus.DONE]
        replays = [_percent(axis.place(at)) for at in later if at >= span.start]
        rows.append(Row(span, _percent(start), _percent(width), replays))
    return Waterfall(rows, axis.cuts(), axis.times[0], axis.times[-1])


def span_of(entry: RunJournalEntry, result: str, *, running: bool) -> Span:
    """Return what the journal says of a step; `result` is how its result begins, `running` whether its attempt is."""
    status, finished = entry.status, entry.finished_at
    if entry.kind == StepKind.SLEEP:
        until = _moment(result)
        return Span(entry, "wait", entry.started_at, until, _("sleeps"))
    if entry.kind == StepKind.NOW:
        return Span(entry, "moment", entry.started_at, finished, _("noted the time"))
    if status == EntryStatus.STARTED:
        if running:
            return Span(entry, "running", entry.started_at, None, _("running"))
        return Span(entry, "doubt", entry.started_at, finished, _("caught in a crash"))
    if status == EntryStatus.IN_DOUBT:
        return Span(entry, "doubt", entry.started_at, finished, _("in doubt"))
    if status == EntryStatus.RELEASED:
        return Span(entry, "doubt", entry.started_at, finished, _("did not happen; runs again"))
    if status == EntryStatus.FAILED:
        return Span(entry, "failed", entry.started_at, finished, _("failed"))
    # An idempotent step is recorded when it has ended, and only then.
    return Span(entry, "moment" if entry.kind == StepKind.IDEMPOTENT else "ran", entry.started_at, finished, _("done"))


class _Axis:
    """Maps time to per cent of the width."""

    def __init__(self, spans: Sequence[Span], others: Iterable[datetime], now: datetime) -> None:
        first = min(span.start for span in spans)
        last = max(_end(span, now) for span in spans)
        inside = {at for at in others if first <= at <= last}
        self.times = sorted({*inside, *(span.start for span in spans), *(_end(span, now) for span in spans)})
        busy = [(span.start, _end(span, now)) for span in spans if span.runs]
        stretches = [
            ((end - start).total_seconds(), any(a <= start and end <= b for a, b in busy))
            for start, end in pairwise(self.times)
        ]
        idle = [length for length, is_busy in stretches if not is_busy]
        worked = sum(length for length, is_busy in stretches if is_busy) or sum(idle)
        longest = _longest_drawn(idle, worked)
        drawn = [length if is_busy else min(length, longest) for length, is_busy in stretches]
        self._shortened = [not is_busy and length > longest for length, is_busy in stretches]
        whole = sum(drawn) or 1
        self._places = [place / whole * 100 for place in accumulate(drawn, initial=0.0)]

    def place(self, at: datetime) -> float:
        """Return where a time is, in per cent."""
        if at <= self.times[0]:
            return 0.0
        if at >= self.times[-1]:
            return self._places[-1]
        before = bisect_right(self.times, at) - 1
        stretch = self.times[before + 1] - self.times[before]
        share = (at - self.times[before]) / stretch
        return self._places[before] + share * (self._places[before + 1] - self._places[before])

    def cuts(self) -> list[Cut]:
        """Return the stretches that are drawn shorter than they were."""
        return [
            Cut(_percent(self._places[place]), _percent(self._places[place + 1] - self._places[place]), end - start)
            for place, (start, end) in enumerate(pairwise(self.times))
            if self._shortened[place]
        ]


def _longest_drawn(lengths: Sequence[float], room: float) -> float:
    """Return the length beyond which to cut, so that all of them together fit into the room."""
    for place, length in enumerate(sorted(lengths)):
        share = room / (len(lengths) - place)
        if length > share:
            return share
        room -= length
    return max(lengths, default=0.0)


def _end(span: Span, now: datetime) -> datetime:
    """Return until when a step is drawn: a sleep that ends next week is drawn until now."""
    return max(span.start, min(span.end or now, now))


def _moment(result: str) -> datetime | None:
    try:
        return datetime.fromisoformat(result.strip('"'))
    except ValueError:
        return None


def _percent(number: float) -> str:
    return f"{number:.3f}%"  # a number would be localised by the template
