"""What people read: one line for each job, and who is working on what.

On a terminal the lines are coloured and a failure shows its traceback. Elsewhere each logging record is one line, and
the traceback is where `manage.py gnlqueue dead` and the admin show it.
"""

from __future__ import annotations

import logging
import sys
import time
from datetime import timedelta
from typing import TextIO

from django.core.management.color import color_style

logger = logging.getLogger("gnlqueue.worker")


class _Terminal(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s  %(message)s", "%H:%M:%S")
        style = color_style()
        self._styles = {logging.WARNING: style.WARNING, logging.ERROR: style.ERROR, logging.CRITICAL: style.ERROR}

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return self._styles.get(record.levelno, str)(text)


class _Line(logging.Formatter):
    """One line a record. Written out by hand: a busy worker spends a quarter of its time on its log otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._time = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._time = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        line = f"{self._time},{int(record.msecs):03} {record.levelname} [{record.process}] {record.getMessage()}"
        return line.replace("\n", "\\n")


def show_log(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Show the records of `gnlqueue` on `stream` (standard error), unless the project's LOGGING takes care of them."""
    root = logging.getLogger("gnlqueue")
    if root.hasHandlers():
        return
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Terminal() if stream.isatty() else _Line())
    root.addHandler(handler)
    root.setLevel(level)


def length(of: timedelta | float) -> str:
    """Return a length of time as a person would say it: `34 ms`, `1.5 s`, `2 min`, `3 h`."""
    seconds = of.total_seconds() if isinstance(of, timedelta) else of
    if seconds < 0.0995:
        return f"{max(seconds, 0) * 1000:.2g} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if seconds < 3600 * 2:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
