"""Counting what came out: the mails where they lie, the rest in the database."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from gnlqueue import queue
from gnlqueue.models import JobAttempt
from shop.demo.screen import shown
from shop.models import Invoice, Order
from shop.tasks import receipt_id

_MESSAGE_ID = re.compile(rb"^Message-ID: (<[^>]+>)", re.MULTILINE)


@dataclass(frozen=True)
class Progress:
    """How far the jobs are."""

    receipts: int
    invoices: int
    in_progress: int
    unfinished: int

    @classmethod
    def now(cls) -> Progress:
        """Ask the database."""
        jobs = queue.stats()
        running = jobs["in_progress"] + jobs["expired"]
        return cls(
            receipts=Order.objects.filter(status=Order.Status.CONFIRMED).count(),
            invoices=Invoice.objects.count(),
            in_progress=running,
            unfinished=running + jobs["ready"] + jobs["scheduled"] + jobs["blocked"],
        )


@dataclass(frozen=True)
class Results:
    """What came out in the end."""

    orders: int
    receipts: int  #: orders with a receipt in the mail directory
    twice: int  #: those with more than one
    invoices: int
    jobs_done: int
    rescued: list[int]  #: ids of jobs of which an attempt died with its worker
    dead: int

    @classmethod
    def now(cls) -> Results:
        """Count, believing no status where there is a file to look at."""
        files = (path.read_bytes() for path in Path(settings.MAIL_DIR).glob("*"))
        mails = Counter(found.decode() for file in files for found in _MESSAGE_ID.findall(file))
        receipts = [mails[receipt_id(pk)] for pk in Order.objects.values_list("pk", flat=True)]
        # An attempt that ended without an exception is one whose worker died.
        rescued = JobAttempt.objects.filter(exception_class="").order_by("job_id").values_list("job_id", flat=True)
        jobs = queue.stats()
        return cls(
            orders=len(receipts),
            receipts=sum(count > 0 for count in receipts),
            twice=sum(count > 1 for count in receipts),
            invoices=sum(invoice.path.exists() for invoice in Invoice.objects.all()),
            jobs_done=jobs["done"],
            rescued=list(rescued.distinct()),
            dead=jobs["dead"],
        )

    def rows(self) -> list[tuple[str, int, str, bool]]:
        """Return the table of the results: name, number, note, and whether that is as it should be."""
        at_least_once = "at least once: a kill before the commit repeats it"
        return [
            ("orders", self.orders, "", True),
            ("receipts written", self.receipts, f"counted in {shown(settings.MAIL_DIR)}", self.receipts == self.orders),
            ("written twice", self.twice, at_least_once, not self.twice),
            ("invoices", self.invoices, f"counted in {shown(settings.INVOICE_DIR)}", self.invoices == self.orders),
            ("jobs done", self.jobs_done, "two for each order, and the stock report", True),
            ("jobs rescued", len(self.rescued), "killed in the middle, run again by another worker", True),
            ("jobs dead", self.dead, "", not self.dead),
        ]
