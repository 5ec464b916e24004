"""What the reader may try after the demo."""

from __future__ import annotations

import shlex
import sys

from django.conf import settings

from shop.demo.decisions import Doubt
from shop.demo.fresh_start import ADMIN
from shop.demo.screen import shown

SITE = "http://127.0.0.1:8000"  # of runserver


def next_steps() -> list[str]:
    """Return lines to show."""
    doubts = Doubt.all()
    manage = _manage()
    pages = [("the shop", f"{SITE}/ (order some tea)")]
    if doubts:
        pages.append(("one that waits", f"{SITE}{doubts[0].order.get_absolute_url()}"))
    pages.append(("the admin", f"{SITE}/admin/ (user {ADMIN}, password {ADMIN})"))
    return [
        *(_decide(manage, doubts) if doubts else []),
        f"{manage} runserver",
        *(f"    {what:<14} {where}" for what, where in pages),
        f"{manage} gateway",
        f"{manage} runworker",
        "    each in a terminal of its own; kill the worker in any way you like",
        f"{manage} gnlqueue stats",
        "    how many jobs there are of each kind",
        f"ls {shown(settings.VAR_DIR)}",
        "    receipts (mail), invoices, the gateway's ledger, and the workers' logs",
    ]


def _decide(manage: str, doubts: list[Doubt]) -> list[str]:
    """Return how to decide about the first one."""
    first = doubts[0]
    if first.is_about_money:
        check = f"{manage} gateway --lookup {first.trace}"
    else:
        check = f"grep -rl {first.trace} {shown(settings.MAIL_DIR)}"
    return [
        f"{manage} gnlqueue blocked",
        "    the steps that may or may not have happened, and how to check",
        check,
        f"    checks the first of them: {first.evidence}",
        f"{manage} gnlqueue {shlex.join(first.suggestion())}",
        "    the decision that follows; the job goes on as soon as a worker is running",
    ]


def _manage() -> str:
    """Return how manage.py was called, up to its name."""
    words = sys.orig_argv
    return shlex.join(words[: words.index(sys.argv[0]) + 1] if sys.argv[0] in words else ["python", sys.argv[0]])
