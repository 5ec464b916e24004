"""A process that the demo starts, and stops again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from django.conf import settings


class Process:
    """A command of manage.py in the background; what it says goes into `var/NAME.log`."""

    def __init__(self, name: str, *words: str, shutdown: float, stdout: int | None = None, **env: str) -> None:
        self.name = name
        self.log = Path(settings.VAR_DIR) / f"{name}.log"
        self._shutdown = shutdown
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *words]
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches only the demo, which then stops its processes in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout or log, stderr=log, start_new_session=True,
                env={**os.environ, **env},
            )  # fmt: skip
        self.pid = self._process.pid

    def is_running(self) -> bool:
        """Tell whether it is still running."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop it as an operator would, and by force if it does not end in time."""
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=self._shutdown)
        finally:  # also when somebody presses Ctrl-C once more
            if self.is_running():
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
