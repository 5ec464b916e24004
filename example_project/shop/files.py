"""Writing files."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def replace(path: Path, text: str) -> None:
    """Write a file so that it is there in full or not at all, whenever this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
