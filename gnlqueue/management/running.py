"""A worker from the command line: its flags, and running it. `runworker` and `gnlqueue worker` are the same."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import connections

from gnlqueue import __version__
from gnlqueue.conf import settings
from gnlqueue.exceptions import GnlqueueError
from gnlqueue.management.flags import database_alias, positive, queue_list
from gnlqueue.management.reloading import run_reloading
from gnlqueue.queue.transactions import alias_of
from gnlqueue.registry import default_queues, registered
from gnlqueue.worker.console import show_log
from gnlqueue.worker.forking import EXIT_FAILED, EXIT_NOT_READY, keep_handlers_to_ourselves
from gnlqueue.worker.identity import served_queues
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.supervisor import Supervisor

logger = logging.getLogger("gnlqueue.worker")

EXIT_WRONG_ARGUMENTS = 2  # as argparse has it


def add_worker_arguments(parser: ArgumentParser) -> None:
    """Add the flags of a worker, one for each argument of `Worker` and of `Supervisor`."""
    add = parser.add_argument
    add(
        "--queues",
        type=queue_list,
        metavar="A,B",
        help="the queues to serve (default: every queue that a task names, and 'default')",
    )
    add(
        "--database",
        type=database_alias,
        metavar="ALIAS",
        help="alias of the queue's database (default: GNLQUEUE['DATABASE'], else the router's)",
    )
    add("--processes", type=positive(int), default=1, metavar="N", help="worker processes (default: 1)")
    add("--concurrency", type=positive(int), default=4, metavar="M", help="jobs at once in each process (default: 4)")
    add(
        "--lease",
        type=positive(float),
        metavar="SECONDS",
        help="how long a worker owns a job without a heartbeat (default: LEASE_SECONDS)",
    )
    add(
        "--poll-interval",
        type=positive(float),
        default=0.2,
        metavar="SECONDS",
        help="first pause of an idle worker (default: 0.2)",
    )
    add(
        "--max-poll-interval",
        type=positive(float),
        metavar="SECONDS",
        help="longest pause of an idle worker (default: 32 times the first)",
    )
    add("--no-backoff", action="store_true", help="poll at --poll-interval even when idle")
    add(
        "--no-heartbeat",
        action="store_true",
        help="renew no leases; one process without a supervisor (for tests)",
    )
    add("--worker-id", metavar="ID", help="prefix of the workers' ids (default: the host's name)")
    add(
        "--shutdown-timeout",
        type=positive(float),
        metavar="SECONDS",
        help="how long running jobs may go on (default: SHUTDOWN_TIMEOUT_SECONDS)",
    )
    add("--drain", action="store_true", help="work off what is due, then stop")
    add("--health-file", type=Path, metavar="PATH", help="touch this file at each heartbeat that reached the database")
    add("--reload", action="store_true", help="restart when code changes (for development)")


#: Up to this many tasks are named when a worker starts.
FEW_TASKS = 10

#: What the log shows by `--verbosity`; more than 1 shows all.
_LEVELS = {0: logging.WARNING, 1: logging.INFO}


def without_reload() -> list[str]:
    """Return this very command without `--reload`, which argparse takes in any unique abbreviation."""
    words = [word for word in sys.orig_argv[1:] if not (len(word) > 2 and "--reload".startswith(word))]
    return [sys.executable, *words]


def run_worker(options: dict[str, Any]) -> int:
    """Run what the flags say and return the exit status."""
    show_log(level=_LEVELS.get(options["verbosity"], logging.DEBUG))
    if options["reload"]:
        return run_reloading(without_reload())
    worker: dict[str, Any] = {
        "queues": options["queues"],
        "database": options["database"],
        "concurrency": options["concurrency"],
        "lease": options["lease"],
        "poll_interval": options["poll_interval"],
        "max_poll_interval": options["max_poll_interval"],
        "backoff": not options["no_backoff"],
        "heartbeat": not options["no_heartbeat"],
        "worker_id": options["worker_id"],
        "drain": options["drain"],
        "shutdown_timeout": options["shutdown_timeout"],
    }
    single = not hasattr(os, "fork") or options["no_heartbeat"]
    if single and (options["processes"] > 1 or options["health_file"]):
        text = "Without fork, or with --no-heartbeat, there is one process, and no --health-file."
        raise CommandError(text, returncode=EXIT_WRONG_ARGUMENTS)
    _say_what_starts(options)
    if single:
        return _run_single(worker)
    return Supervisor(worker, options["processes"], options["health_file"]).run()


def _run_single(options: dict[str, Any]) -> int:
    """Run one worker in this process: where there is no fork (Windows), or without a heartbeat."""
    worker = Worker(**options)
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        worker.stop(at_once=len(received) > 1)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    if hasattr(os, "fork"):
        keep_handlers_to_ourselves()
    try:
        worker.run()
    except GnlqueueError as error:
        logger.error("%s", error)
        return EXIT_NOT_READY
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return EXIT_FAILED if worker.has_overdue else 0


def _say_what_starts(options: dict[str, Any]) -> None:
    queues = served_queues(options["queues"])
    alias = alias_of(options["database"])
    database = connections[alias]
    place = database.settings_dict.get("HOST") or ("a file" if database.vendor == "sqlite" else "localhost")
    # Not MySQL's display_name, which asks the server: the supervisor opens no connection, and waits for none.
    kind = "MySQL or MariaDB" if database.vendor == "mysql" else database.display_name
    lease = options["lease"] or settings().LEASE_SECONDS
    logger.info("gnlqueue %s on %s, PID %d", __version__, socket.gethostname(), os.getpid())
    logger.info("database   %s: %s %s (%s)", alias, kind, database.settings_dict["NAME"], place)
    known = default_queues()  # another may be misspelt, or one that only `.using(queue_name=…)` names
    logger.info("queues     %s", ", ".join(each if each in known else f"{each} (no task names it)" for each in queues))
    logger.info(
        "workers    %d, %d jobs at once each, lease %g s%s",
        options["processes"],
        options["concurrency"],
        lease,
        ", until nothing is due" if options["drain"] else "",
    )
    logger.info("tasks      %s", tasks_of(queues, all_names=options["verbosity"] > 1))


def tasks_of(queues: list[str], *, all_names: bool) -> str:
    """Return how many of the project's tasks these queues have and, if they are few, their names."""
    names = [
        f"{name} ({task.options.queue_name})"
        for name, task in registered().items()
        if task.options.queue_name in queues and not name.startswith("gnlqueue.")
    ]
    if not names:
        served = {task.options.queue_name for name, task in registered().items() if not name.startswith("gnlqueue.")}
        if served:
            return f"none for these queues; there are some for {', '.join(sorted(served))}"
        return "none: is the app with tasks.py in INSTALLED_APPS?"
    return f"{len(names)}: {', '.join(names)}" if all_names or len(names) <= FEW_TASKS else str(len(names))
