"""`runworker --reload`: a worker for development, which starts again when code changes.

Three processes. The first is the one that a person started, and it stays. The second watches the files, and ends when
one has changed, because only a new process can load the change. The third is the worker. Each waits for the one that it
has started before it ends.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django.apps import apps
from django.utils import autoreload

from gnlqueue.worker.supervisor import PARENT

logger = logging.getLogger("gnlqueue.worker")

#: With it Django's reloader ends when a file has changed.
EXIT_CHANGED = 3

STOP = (signal.SIGINT, signal.SIGTERM)


def run_reloading(command: list[str]) -> int:
    """Run the worker that `command` starts, and again whenever code changes, until SIGINT or SIGTERM; return 0."""
    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
        _watch(command)
    else:
        _stay()
    return 0


def _stay() -> None:
    """Run the process that watches, and again when it has ended because of a change or of an error in the code."""
    signals: list[int] = []
    watching: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        signals.append(number)
        if watching is not None:  # Ctrl-C has gone there too, and counts once
            watching.send_signal(number)

    for number in STOP:
        signal.signal(number, pass_on)
    while not signals:
        seen = _files()
        watching = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]], env={**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        )
        if signals:  # before there was anybody to pass it on to
            watching.terminate()
        status = watching.wait()
        watching = None
        if status == 0:
            return
        if status < 0 and not signals:  # killed: the code is not to blame
            logger.error("The process that watches the files was killed (signal %d); it starts again.", -status)
            time.sleep(autoreload.StatReloader.SLEEP_TIME)
        elif status != EXIT_CHANGED and not signals:
            logger.error("The code could not be loaded (status %d); trying again when a file changes.", status)
            while not signals and _files() == seen:
                time.sleep(autoreload.StatReloader.SLEEP_TIME)


def _files() -> dict[Path, float]:
    """Return when the files of the loaded modules, and all modules of the installed apps, were changed."""
    reloader = autoreload.StatReloader()
    for app in apps.get_app_configs():
        reloader.watch_dir(app.path, "**/*.py")
    return dict(reloader.snapshot_files())


def _watch(command: list[str]) -> None:
    """Run the worker, and stop it when a file changes; then end this process with `EXIT_CHANGED`."""
    workers: list[subprocess.Popen[bytes]] = []

    def run() -> None:
        # This process may be killed outright, so the worker watches whether we live.
        workers.append(subprocess.Popen(command, env={**os.environ, PARENT: str(os.getpid())}))
        workers[0].wait()

    def stop(**_: Any) -> None:
        for worker in workers:
            worker.terminate()
            worker.wait()

    def stop_at_once(*_: object) -> None:
        for worker in workers:
            worker.terminate()

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, lambda *_: None)  # the worker hears of it too
        signal.signal(signal.SIGTERM, stop_at_once)
        sys.exit(0)

    for number in STOP:
        signal.signal(number, end)
    autoreload.file_changed.connect(stop, weak=False)
    try:
        autoreload.start_django(autoreload.get_reloader(), run)
    finally:
        stop()
