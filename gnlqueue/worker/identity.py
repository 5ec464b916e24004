"""Who a worker is: its id, the queues it serves, and the row in which people see it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence

from django.db import connections

from gnlqueue import dialects
from gnlqueue.conf import settings
from gnlqueue.dialects import now as clock
from gnlqueue.models import WorkerProcess
from gnlqueue.options import check_queue_name
from gnlqueue.registry import default_queues


def new_worker_id(prefix: str | None = None) -> str:
    """Return an id that no worker has had before, even in a container that restarts under the same name and pid.

    It begins with the prefix (default: the host's name), of which 60 bytes of UTF-8 are kept: a `LeaseTable` counts
    in bytes.
    """
    begins = (prefix or socket.gethostname()).encode(errors="ignore")[:60].decode(errors="ignore")
    return f"{begins}-{os.getpid()}-{secrets.token_hex(4)}"


def served_queues(queue_names: Sequence[str] | None) -> list[str]:
    """Return the queues to serve: those asked for, else every queue that a registered task names, and `default`."""
    if queue_names:
        return list(dict.fromkeys(map(check_queue_name, queue_names)))
    return default_queues()


def register(
    worker_id: str, queue_names: Sequence[str], concurrency: int, database: str, *, lease: float | None = None
) -> None:
    """Make a worker visible: to people, and to a rescue, which leaves a live worker's jobs alone.

    `lease` is the worker's, in seconds (default: the setting): how long it may be silent before it counts as gone.
    """
    shown = {
        "hostname": socket.gethostname()[:200],
        "pid": os.getpid(),
        "queues": list(queue_names),
        "concurrency": concurrency,
        "heartbeat_at": clock(),
        "lease_seconds": settings().LEASE_SECONDS if lease is None else lease,
    }
    WorkerProcess.objects.using(database).update_or_create(
        worker_id=worker_id, defaults=shown, create_defaults={**shown, "started_at": clock()}
    )


def note_beat(worker_ids: Sequence[str], database: str) -> None:
    """Note that these workers are alive.

    In SQL, as renewing leases is: letting the ORM build a statement would cost the heartbeat process, which uses the
    ORM for nothing else, a megabyte of memory that it shares with the workers.
    """
    if worker_ids:
        places = ", ".join(["%s"] * len(worker_ids))
        sql = f"SET heartbeat_at = {dialects.of(database).now()} WHERE worker_id IN ({places})"
        with connections[database].cursor() as cursor:
            cursor.execute(f"UPDATE {WorkerProcess._meta.db_table} {sql}", list(worker_ids))


def forget(worker_id: str, database: str) -> None:
    """Take a worker's row away: it is gone."""
    WorkerProcess.objects.using(database).filter(worker_id=worker_id).delete()
