"""A process that has Django loaded and forks workers which die: starting each from nothing takes most of a second.

Its standard input takes one JSON object a line: the database alias, the point at which to die, how, and the kind of
step. For each it forks a worker that runs one job, and says with which status that ended.
"""

import gc
import json
import os
import sys
import traceback


def main() -> None:
    """Serve until the input ends."""
    import django

    django.setup()
    from gnlqueue.worker.loop import Worker
    from tests.durable import faults, tasks

    assert tasks.handlers == {}  # imported, so that they are registered
    warm_up()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            try:
                faults.arm(order["point"], order["kind"], order["way"])
                Worker(["default"], database=order["alias"], heartbeat=False).run_once()
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201  the protocol


def warm_up() -> None:
    """Load and compile once what each worker would by itself; it inherits no connection."""
    from django.db import connections

    from gnlqueue.worker.loop import Worker

    for alias in connections:
        Worker(["nobody"], database=alias, heartbeat=False).run_once()
    connections.close_all()
    gc.collect()
    gc.freeze()  # so that a worker shares these pages, and does not copy them


if __name__ == "__main__":
    main()
