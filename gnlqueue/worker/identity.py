"""Who a worker is: its id, the queues it serves, and the row in which people see it."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any

from django.db import connections

from gnlqueue import dialects
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
    """Return the queues to serve: those asked for, else every queue that a registered task names, and `default`.

    Raises `TypeError` for a text, which is a sequence of letters, and `InvalidTask` for an invalid queue name.
    """
    if isinstance(queue_names, str):
        raise TypeError(f"queues must be a list of names, not {queue_names!r}; write [{queue_names!r}].")
    if queue_names:
        return list(dict.fromkeys(map(check_queue_name, queue_names)))
    return default_queues()


def register(worker_id: str, queue_names: Sequence[str], concurrency: int, database: str, *, lease: float) -> None:
    """Make a worker visible: to people, and to a rescue, which leaves a live worker's jobs alone.

    `lease` is the worker's, in seconds: how long it may be silent before it counts as gone.
    In SQL, as `note_beat` is: a worker needs little of what Django has for saving a row.
    """
    shown: dict[str, Any] = {
        "hostname": socket.gethostname()[:200],
        "pid": os.getpid(),
        "queues": json.dumps(list(queue_names)),
        "concurrency": concurrency,
        "lease_seconds": lease,
        "worker_id": worker_id,
    }
    table, now = WorkerProcess._meta.db_table, dialects.of(database).now()
    changes = ", ".join(f"{name} = %({name})s" for name in shown)
    with connections[database].cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {changes}, heartbeat_at = {now} WHERE worker_id = %(worker_id)s", shown)
        if not cursor.rowcount:
            columns, values = ", ".join(shown), ", ".join(f"%({name})s" for name in shown)
            cursor.execute(
                f"INSERT INTO {table} ({columns}, started_at, heartbeat_at) VALUES ({values}, {now}, {now})", shown
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
    with connections[database].cursor() as cursor:
        cursor.execute(f"DELETE FROM {WorkerProcess._meta.db_table} WHERE worker_id = %s", [worker_id])
