"""The word and the shape of every status, so that nobody needs the colour. A shape is a path in a box of 12 by 12.

The filters beside it use them, which Django loads also in a project without an admin: so it is not in `gnlqueue.admin`.
"""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

RING = "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zm0 1.5a3 3 0 1 1 0 6 3 3 0 0 1 0-6z"
DOT = "M6 2a4 4 0 1 0 0 8 4 4 0 0 0 0-8z"
CLOCK = "M6 1a5 5 0 1 0 0 10A5 5 0 0 0 6 1zm0 1.4a3.6 3.6 0 1 1 0 7.2 3.6 3.6 0 0 1 0-7.2zM5.4 3.4v3h3V5.2H6.6V3.4z"
PLAY = "M3 1.5v9L10.5 6z"
TICK = "M4.6 10 1.2 6.5l1.2-1.2 2.2 2.3 5-5.6 1.2 1.1z"
CROSS = "M2.6 1.5 6 4.9l3.4-3.4 1.1 1.1L7.1 6l3.4 3.4-1.1 1.1L6 7.1l-3.4 3.4-1.1-1.1L4.9 6 1.5 2.6z"
SLASH = RING + "M8.6 2.3l1.1 1.1-6.3 6.3-1.1-1.1z"
BARS = "M2.5 1.5H5v9H2.5zM7 1.5h2.5v9H7z"
BACK = "M5 1.5 1 5l4 3.5V6.3c2.5 0 4 .7 5.5 3C10.2 6 8.2 3.9 5 3.7z"
QUESTION = (
    "M3.4 4.2c0-1.6 1.2-2.6 2.7-2.6s2.6 1 2.6 2.4c0 1.9-2 2-2 3.6H5.4c0-2.2 1.9-2.4 1.9-3.5 0-.7-.5-1.2-1.2-1.2"
    "-.8 0-1.3.5-1.3 1.3zM5.3 8.8h1.5v1.6H5.3z"
)

OTHER = RING

STATUSES: dict[str, tuple[Promise | str, str]] = {
    # of a job
    "scheduled": (_("scheduled"), CLOCK),
    "ready": (_("ready"), RING),
    "in_progress": (_("in progress"), PLAY),
    "blocked": (_("blocked"), QUESTION),
    "done": (_("done"), TICK),
    "dead": (_("dead"), CROSS),
    "cancelled": (_("cancelled"), SLASH),
    # of a step
    "started": (_("started"), PLAY),
    "failed": (_("failed"), CROSS),
    "in_doubt": (_("in doubt"), QUESTION),
    "released": (_("released"), BACK),
    # of a worker or a queue
    "live": (_("live"), DOT),
    "silent": (_("silent"), CROSS),
    "running": (_("running"), PLAY),
    "paused": (_("paused"), BARS),
    "unserved": (_("no worker"), CROSS),
}
