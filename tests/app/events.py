"""What tasks under test and their test tell each other, across processes: through files of one directory.

GNLQUEUE_TEST_DIRECTORY names it.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

DIRECTORY = "GNLQUEUE_TEST_DIRECTORY"
LONGEST = 30.0  # seconds that a task waits for its test


def directory() -> Path:
    """Where the files are."""
    return Path(os.environ[DIRECTORY])


def tell(what: str, **details: Any) -> None:
    """Say that something happened; one line of ``events``, which appends make whole."""
    line = json.dumps({"what": what, **details}) + "\n"
    descriptor = os.open(directory() / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def told() -> list[dict[str, Any]]:
    """Everything that happened so far."""
    path = directory() / "events"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def open_gate(name: str) -> None:
    """Let the tasks go on that wait for this gate."""
    (directory() / f"gate-{name}").touch()


def wait_at(name: str) -> None:
    """Wait until the test opens this gate."""
    deadline = time.monotonic() + LONGEST
    gate = directory() / f"gate-{name}"
    while not gate.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Nobody opened the gate {name!r}.")
        time.sleep(0.005)


def first_to(do: str) -> bool:
    """Tell whether this is the first process to ask."""
    try:
        os.close(os.open(directory() / f"first-{do}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
