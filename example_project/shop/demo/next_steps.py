"""What the reader may try after the demo."""

from __future__ import annotations

import shlex
import sys

from django.conf import settings

from gnlqueue.models import Job
from shop.demo.fresh_start import ADMIN
from shop.demo.results import Results
from shop.demo.screen import shown
from shop.models import Order

SITE = "http://127.0.0.1:8000"  # of runserver


def next_steps(results: Results) -> list[str]:
    """Return lines to show."""
    manage = _manage()
    pages = [("the shop", f"{SITE}/ (order some tea; its jobs wait for a worker)")]
    if order := _rescued_order(results):
        pages.append(("a rescued order", f"{SITE}{order.get_absolute_url()}"))
    pages.append(("the admin", f"{SITE}/admin/ (user {ADMIN}, password {ADMIN}, for this demo only)"))
    return [
        f"{manage} runserver",
        *(f"    {what:<16} {where}" for what, where in pages),
        f"{manage} runworker",
        "    in another terminal; kill it in any way you like, and start it again",
        f"{manage} gnlqueue stats",
        "    how many jobs there are of each kind",
        f"ls {shown(settings.VAR_DIR)}",
        "    the receipts (mail), invoices, the stock report (reports), and what the workers said",
    ]


def _manage() -> str:
    """Return how manage.py was called, up to its name."""
    words = sys.orig_argv
    return shlex.join(words[: words.index(sys.argv[0]) + 1] if sys.argv[0] in words else ["python", sys.argv[0]])


def _rescued_order(results: Results) -> Order | None:
    for job in Job.objects.filter(pk__in=results.rescued, task_name="shop.tasks.send_receipt").order_by("pk"):
        return Order.objects.filter(pk=job.args[0]).first()
    return None
