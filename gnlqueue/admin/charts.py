"""The geometry of the overview's charts. They are drawn as SVG by templates: no script, no style, only attributes.

The plot is stretched to the page's width, so it contains no text; the axis stands beside it and keeps its size.
Series differ by pattern as well as by colour.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from math import log10
from typing import NamedTuple

from django.utils.formats import number_format

from gnlqueue.admin.figures import PERCENTILES, Slot, Window
from gnlqueue.templatetags.gnlqueue_admin import clock, duration

WIDTH, HEIGHT = 600, 120
TOP, BOTTOM = 8, HEIGHT - 4  # of the plot, so that the outermost labels of the axis are whole
GAP = 0.2  # between two bars, of a bar

#: Lengths of time that an axis may name, in seconds.
ROUND_TIMES = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)


class Tick(NamedTuple):
    """A value that the axis names, and how far down it is."""

    y: float
    label: str


class Chart(NamedTuple):
    """What both kinds of chart have: the axis, and the times at its ends."""

    ticks: list[Tick]
    begin: str
    end: str


class Bar(NamedTuple):
    """One slot: where it is, and how high its two parts are, the failed ones on top."""

    x: float
    width: float
    succeeded_y: float
    succeeded_height: float
    failed_y: float
    failed_height: float
    slot: Slot


class Bars(NamedTuple):
    """A chart of what finished per minute."""

    chart: Chart
    bars: list[Bar]


class Line(NamedTuple):
    """One percentile over time, as an SVG path with gaps where nothing finished, and marks where no line leads on."""

    name: str
    path: str
    marks: str
    whole: float | None


class Lines(NamedTuple):
    """A chart of percentiles, on a logarithmic scale, on which a millisecond can be read as well as a day."""

    chart: Chart
    lines: list[Line]
    rows: list[tuple[datetime, list[float | None]]]


def finished_per_minute(slots: Sequence[Slot], window: Window) -> Bars:
    """Draw what finished per minute."""
    top = _round_up(max(slot.per_minute for slot in slots))
    width = WIDTH / len(slots)
    scale = (BOTTOM - TOP) / top
    bars = []
    for place, slot in enumerate(slots):
        succeeded = slot.succeeded / slot.minutes * scale
        # A single failure among thousands must be visible.
        failed = max(slot.failed / slot.minutes * scale, 2.0) if slot.failed else 0.0
        succeeded = min(succeeded, BOTTOM - TOP - failed)
        bars.append(
            Bar(
                x=round(place * width + width * GAP / 2, 2),
                width=round(width * (1 - GAP), 2),
                succeeded_y=round(BOTTOM - succeeded, 2),
                succeeded_height=round(succeeded, 2),
                failed_y=round(BOTTOM - succeeded - failed, 2),
                failed_height=round(failed, 2),
                slot=slot,
            )
        )
    ticks = [
        Tick(BOTTOM - value * scale, number_format(value, 0 if value == int(value) else 1, force_grouping=True))
        for value in (0.0, top / 2, top)
    ]
    return Bars(_chart(ticks, slots, window), bars)


def over_time(
    slots: Sequence[Slot], whole: Slot, window: Window, get: Callable[[Slot], dict[int, float | None]]
) -> Lines:
    """Draw percentiles over time."""
    points = [get(slot) for slot in slots]
    found = [seconds for point in points for seconds in point.values() if seconds is not None] or [0.01, 1]
    low = max(bisect_right(ROUND_TIMES, min(found)) - 1, 0)
    high = min(max(bisect_left(ROUND_TIMES, max(found)), low + 1), len(ROUND_TIMES) - 1)
    low = min(low, high - 1)
    bottom, top = log10(ROUND_TIMES[low]), log10(ROUND_TIMES[high])

    def y(seconds: float) -> float:
        share = (log10(seconds) - bottom) / (top - bottom)
        return round(BOTTOM - min(max(share, 0), 1) * (BOTTOM - TOP), 2)

    width = WIDTH / len(slots)
    overall = get(whole)
    lines = []
    for each in PERCENTILES:
        path, marks = "", ""
        known = [point[each] is not None for point in points]
        for place, point in enumerate(points):
            seconds = point[each]
            if seconds is None:
                continue
            x = round((place + 0.5) * width, 2)
            if place and known[place - 1]:
                path += f"L{x} {y(seconds)}"
            elif any(known[place + 1 : place + 2]):
                path += f"M{x} {y(seconds)}"
            else:
                marks += f"M{x} {y(seconds)}h.01"  # short enough to be as round as a line's end
        lines.append(Line(f"p{each}", path, marks, overall[each]))
    step = 2 if high - low > 4 else 1
    ticks = [Tick(y(seconds), duration(seconds)) for seconds in ROUND_TIMES[low : high + 1 : step]]
    rows = [(slot.begin, list(point.values())) for slot, point in zip(slots, points, strict=True)]
    return Lines(_chart(ticks, slots, window), lines, rows)


def _chart(ticks: list[Tick], slots: Sequence[Slot], window: Window) -> Chart:
    return Chart(ticks, clock(slots[0].begin, window), clock(slots[-1].begin + window.slot, window))


def _round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten; at least 1."""
    size = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= factor * size:
                return factor * size
        size *= 10
