"""What the demo shows: labelled lines, and below them, on a terminal, one that moves."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

PLAIN_EVERY = 2.0  # seconds between two lines of progress if there is no terminal
LABEL = 11  # characters
START_OVER = "\r\x1b[K"  # the beginning of the line, and nothing on it


class Screen:
    """Writes to a command's stdout, in that command's colours."""

    def __init__(self, stdout: OutputWrapper, style: Style) -> None:
        self._stdout = stdout
        self._style = style
        self.is_interactive = sys.stdin.isatty() and stdout.isatty()
        self._moves = stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._next_plain = time.monotonic() + PLAIN_EVERY

    def say(self, label: str, text: str, *, style: str = "MIGRATE_HEADING") -> None:
        """Write a line with a label in front, or a line that continues the one before if the label is empty."""
        self._write(f"{getattr(self._style, style)(label.ljust(LABEL))} {text}")

    def plain(self, text: str = "") -> None:
        """Write a line as it is."""
        self._write(text)

    def progress(self, text: str) -> None:
        """Show how far things have got: in place on a terminal, elsewhere as a line now and then."""
        text = f"{'working'.ljust(LABEL)} {text}"
        if self._moves:
            fitting = text[: shutil.get_terminal_size().columns - 1]
            self._stdout.write(f"{START_OVER}{fitting}", ending="")
            self._stdout.flush()
        elif time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_EVERY
            self._write(text)

    def ask(self, question: str, answers: Collection[str]) -> str | None:
        """Ask until the reader gives one of the answers; `None` if nobody is there (any more)."""
        while True:
            self._stdout.write(f"{' ' * LABEL} {question} ", ending="")
            self._stdout.flush()
            try:
                answer = input().strip().lower()
            except EOFError:
                self.plain()
                return None
            if answer in answers:
                return answer

    def table(self, rows: Iterable[tuple[str, int, str, bool]]) -> None:
        """Write rows of a name, a number, a note, and whether that is as it should be."""
        for name, number, note, good in rows:
            style = self._style.SUCCESS if good else self._style.ERROR
            self._write(f"{name:<17} {style(f'{number:>6}')}   {note}".rstrip())

    def _write(self, text: str) -> None:
        self._stdout.write(f"{START_OVER}{text}" if self._moves else text)
        self._stdout.flush()


def bar(done: int, of: int, width: int = 9) -> str:
    """Return `####-----  12/24`."""
    full = width * done // of if of else 0
    return f"{'#' * full}{'-' * (width - full)} {done:>{len(str(of))}}/{of}"


def counted(number: int, noun: str) -> str:
    """Return `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown(path: Path | str) -> str:
    """Return a path as somebody would type it here."""
    return os.path.relpath(path) if Path.cwd() in Path(path).parents else str(path)
