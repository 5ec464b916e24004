"""What was charged and declined: a file of JSON lines that only grows, so that "charged twice" can be counted."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CHARGED, DECLINED = "charged", "declined"


class Ledger:
    """The file at `path`, which need not exist yet. One process writes; others may read meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def add(self, order: str, cents: int, outcome: str) -> dict[str, Any]:
        """Append a record, and return it."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"id": f"ch_{secrets.token_hex(4)}", "order": order, "cents": cents, "outcome": outcome, "at": at}
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        return record

    def of(self, order: str) -> list[dict[str, Any]]:
        """Return the records of one order, oldest first."""
        return [record for record in self if record["order"] == order]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            with self.path.open(encoding="utf-8") as file:
                # A line without its end is still being written.
                yield from (json.loads(line) for line in file if line.endswith("\n"))
