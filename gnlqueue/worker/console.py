"""What people read of a worker: its log, with one line for each job.

On a terminal the lines are coloured, and a failure shows its traceback; a job that we stopped shows where in the task's
own code that was. Elsewhere each logging record is one line, and the traceback of a job is where `manage.py gnlqueue
dead` and the admin show it. The traceback of any other error is in its line, as it is nowhere else.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TextIO

from django.core.management.color import color_style

LONGEST_PIECE = 4096  # characters; POSIX promises less, but this is what Linux and others write to a pipe as a whole
MOST_LISTED = 20  # ids in one line

#: What comes of a job that we stop by an interrupt, whose text says why. Our frames say nothing more.
_STOPPED = {"blocked", "cancelled"}

_OURS = f"{Path(__file__).parents[1]}{os.sep}"


def _where(raised: TracebackType | None) -> str:
    """Return the lines of a traceback that are not of this package."""
    frames = [frame for frame in traceback.extract_tb(raised) if not frame.filename.startswith(_OURS)]
    return "".join(traceback.format_list(frames)).rstrip()


class _Terminal(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s  %(message)s", "%H:%M:%S")
        style = color_style()
        self._styles = {logging.WARNING: style.WARNING, logging.ERROR: style.ERROR, logging.CRITICAL: style.ERROR}

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and getattr(record, "outcome", "") in _STOPPED:
            record = logging.makeLogRecord(
                {**record.__dict__, "exc_info": None, "exc_text": _where(record.exc_info[2])}
            )
        text = super().format(record)
        return self._styles.get(record.levelno, str)(text)


class _Line(logging.Formatter):
    """One line per record. Formatted by hand: otherwise a busy worker spends a quarter of its time on its log."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._time = self._zone = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            local = time.localtime(second)
            self._second, self._time = second, time.strftime("%Y-%m-%d %H:%M:%S", local)
            self._zone = time.strftime("%z", local)  # TIME_ZONE's; an hour comes twice in autumn, and commands say UTC
        at = f"{self._time},{int(record.msecs):03}{self._zone}"
        line = f"{at} {record.levelname} [{record.process}] {record.getMessage()}"
        if record.exc_info and not hasattr(record, "job_id"):
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line.replace("\n", "\\n")


class _Stream(logging.StreamHandler[TextIO]):
    """Writes each record as it comes, but the lines of a group at its end: writing is what costs, not formatting."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._group: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._group is None:
            super().emit(record)
            return
        try:
            self._group.append(self.format(record) + self.terminator)  # the record takes several times the memory
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(ValueError):  # a task has closed standard error, where this would be told
            super().handleError(record)

    def begin_group(self) -> None:
        self._group = []

    def end_group(self) -> None:
        with self.lock or nullcontext():
            lines, self._group = self._group or [], None
            try:
                for piece in _pieces(lines):
                    self.stream.write(piece)
                    self.flush()
            except Exception:
                self.handleError(logging.makeLogRecord({"msg": "".join(lines)}))


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into pieces that a pipe takes as a whole, so that those of several processes do not get mixed."""
    piece = ""
    for line in lines:
        if len(piece) + len(line) > LONGEST_PIECE and piece:
            yield piece
            piece = ""
        piece += line
    if piece:
        yield piece


@contextmanager
def together() -> Iterator[None]:
    """Write the lines of this block together, at its end: they report what became known at once."""
    shown = [handler for handler in logging.getLogger("gnlqueue").handlers if isinstance(handler, _Stream)]
    for handler in shown:
        handler.begin_group()
    try:
        yield
    finally:
        for handler in shown:
            handler.end_group()


def show_log(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Show the records of `gnlqueue` on `stream` (standard error), unless the project's LOGGING handles them."""
    root = logging.getLogger("gnlqueue")
    if root.hasHandlers():
        return
    stream = stream or sys.stderr
    handler = _Stream(stream)
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


def job_list(ids: Sequence[int]) -> str:
    """Return `job 3`, `jobs 3, 4`, or the first twenty and how many more."""
    shown = ", ".join(map(str, ids[:MOST_LISTED]))
    more = f" and {len(ids) - MOST_LISTED} more" if len(ids) > MOST_LISTED else ""
    return f"job{'s' if len(ids) > 1 else ''} {shown}{more}"
