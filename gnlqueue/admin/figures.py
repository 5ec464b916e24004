"""What workers finished over a window of time, read from the minutes that they wrote (see `gnlqueue.metrics`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from gnlqueue.metrics.histograms import Histogram, percentile
from gnlqueue.metrics.merging import beginning
from gnlqueue.models import TaskMinute

PERCENTILES = (50, 95, 99)


class Window(NamedTuple):
    """How far back to look, and the slot that a point of a chart stands for."""

    name: str
    label: Promise
    length: timedelta
    slot: timedelta


# Rows older than two hours stand for a quarter of an hour, those older than a day for an hour.
WINDOWS = {
    window.name: window
    for window in (
        Window("15m", _("15 min"), timedelta(minutes=15), timedelta(minutes=1)),
        Window("1h", _("1 h"), timedelta(hours=1), timedelta(minutes=1)),
        Window("6h", _("6 h"), timedelta(hours=6), timedelta(minutes=15)),
        Window("24h", _("24 h"), timedelta(hours=24), timedelta(minutes=30)),
        Window("7d", _("7 d"), timedelta(days=7), timedelta(hours=2)),
    )
}
DEFAULT_WINDOW = "1h"


@dataclass
class Total:
    """What finished in a queue, of a task, or in a slot."""

    succeeded: int = 0
    failed: int = 0

    @property
    def all(self) -> int:
        """All attempts that ended."""
        return self.succeeded + self.failed

    @property
    def failures(self) -> float | None:
        """The percentage that failed; `None` if nothing finished."""
        return 100 * self.failed / self.all if self.all else None


@dataclass(kw_only=True)
class Slot(Total):
    """What finished from `begin` on."""

    begin: datetime
    minutes: float = 1
    waits: Histogram = field(default_factory=lambda: defaultdict(int))
    runs: Histogram = field(default_factory=lambda: defaultdict(int))

    @property
    def wait(self) -> dict[int, float | None]:
        """The percentiles of the time from due to start."""
        return percentiles(self.waits)

    @property
    def run(self) -> dict[int, float | None]:
        """The percentiles of the time from start to end."""
        return percentiles(self.runs)

    @property
    def per_minute(self) -> float:
        """How many attempts ended per minute."""
        return self.all / self.minutes


@dataclass
class Figures:
    """All that a window shows."""

    window: Window
    slots: list[Slot]
    queues: dict[str, Total]
    tasks: dict[str, Total]

    @property
    def whole(self) -> Slot:
        """The slots' sum."""
        whole = Slot(begin=self.slots[0].begin, minutes=sum(slot.minutes for slot in self.slots))
        for slot in self.slots:
            whole.succeeded += slot.succeeded
            whole.failed += slot.failed
            for mine, its in ((whole.waits, slot.waits), (whole.runs, slot.runs)):
                for number, times in its.items():
                    mine[number] += times
        return whole

    def failing(self, most: int) -> list[tuple[str, Total]]:
        """Return the tasks with the most failed attempts."""
        failing = [(name, total) for name, total in self.tasks.items() if total.failed]
        return sorted(failing, key=lambda each: (-each[1].failed, each[0]))[:most]


def percentiles(histogram: Histogram) -> dict[int, float | None]:
    """Return the percentiles that are shown, in seconds."""
    return {each: percentile(histogram, each / 100) for each in PERCENTILES}


def read(alias: str, window: Window, now: datetime) -> Figures:
    """Read what finished within a window that ends now."""
    last = beginning(now, window.slot)
    first = last - window.length + window.slot
    count = window.length // window.slot
    slots = [
        Slot(begin=first + window.slot * number, minutes=window.slot.total_seconds() / 60) for number in range(count)
    ]
    slots[-1].minutes = max((now - last).total_seconds() / 60, 1)  # so far
    queues: dict[str, Total] = defaultdict(Total)
    tasks: dict[str, Total] = defaultdict(Total)
    rows = TaskMinute.objects.using(alias).filter(minute__gte=first)
    columns = rows.values_list("minute", "queue_name", "task_name", "succeeded", "failed", "waits", "runs")
    for minute, queue_name, task_name, succeeded, failed, waits, runs in columns:
        slot = slots[min((minute - first) // window.slot, count - 1)]  # by another clock it may be in the future
        for total in (slot, queues[queue_name], tasks[task_name]):
            total.succeeded += succeeded
            total.failed += failed
        _add(slot.waits, waits)
        _add(slot.runs, runs)
    return Figures(window, slots, dict(queues), dict(tasks))


def _add(histogram: Histogram, stored: dict[str, Any]) -> None:
    for number, times in stored.items():
        histogram[int(number)] += times
