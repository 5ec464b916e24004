"""Counting the results: charges and mails at the source, the rest in the database."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db.models import Count, Sum

from gnlqueue import queue
from gnlqueue.models import Job, JobAttempt
from shop.demo import evidence
from shop.demo.fresh_start import initial_stock
from shop.demo.screen import counted, shown
from shop.mails import receipt_id
from shop.models import Invoice, Order, OrderLine, Product
from shop.tasks import checkout

CALLED_OFF = (Order.Status.DECLINED, Order.Status.SOLD_OUT)


@dataclass(frozen=True)
class Progress:
    """How far things have got."""

    settled: int  #: orders that are paid or called off
    receipts: int
    in_progress: int
    waiting: int  #: for a decision
    unfinished: int  #: jobs that still have something to do, without a decision

    @classmethod
    def now(cls) -> Progress:
        """Ask the database."""
        jobs = queue.stats()
        running = jobs["in_progress"] + jobs["expired"]
        orders = dict(Order.objects.order_by().values_list("status").annotate(Count("pk")))
        return cls(
            settled=sum(orders.get(status, 0) for status in (Order.Status.PAID, Order.Status.CONFIRMED, *CALLED_OFF)),
            receipts=orders.get(Order.Status.CONFIRMED, 0),
            in_progress=running,
            waiting=jobs["blocked"],
            unfinished=running + jobs["ready"] + jobs["scheduled"],
        )


@dataclass(frozen=True)
class Results:
    """What came out in the end."""

    orders: int
    charged_once: int
    charged_twice: int
    declined: int
    waiting: set[int]  #: ids of orders with a job that waits for a decision
    undecided: int  #: of these, orders that are neither charged nor declined: their charge is what is in doubt
    lost: list[int]  #: ids of orders that are neither charged nor declined, and wait for nothing: there must be none
    receipts: int
    receipts_missing: int  #: of orders that were charged and wait for nothing
    receipts_twice: int
    invoices: int
    stock_off_by: int  #: units that are missing from the shelves, or too many
    rescued: list[int]  #: ids of jobs with an attempt that died with its worker
    dead: int

    @classmethod
    def now(cls) -> Results:
        """Count, believing no status if there is something outside to look at."""
        charges, mails = evidence.charges(), evidence.mails()
        orders = list(Order.objects.all())
        called_off = {order.pk for order in orders if order.status in CALLED_OFF}
        blocked = Job.objects.with_status(Job.Status.BLOCKED).filter(task_name=checkout.name)
        waiting = {args[0] for args in blocked.values_list("args", flat=True)}
        charged = {order.pk for order in orders if charges[order.number]}
        receipts = {order.pk: mails[receipt_id(order.pk)] for order in orders}
        # An attempt that ended without an exception is one whose worker died.
        rescued = JobAttempt.objects.filter(exception_class="").order_by("job_id").values_list("job_id", flat=True)
        return cls(
            orders=len(orders),
            charged_once=sum(charges[order.number] == 1 for order in orders),
            charged_twice=sum(charges[order.number] > 1 for order in orders),
            declined=len(called_off - charged),
            waiting=waiting,
            undecided=len(waiting - charged - called_off),
            lost=sorted({order.pk for order in orders} - charged - called_off - waiting),
            receipts=sum(count > 0 for count in receipts.values()),
            receipts_missing=sum(not receipts[pk] for pk in charged - waiting),
            receipts_twice=sum(count > 1 for count in receipts.values()),
            invoices=sum(invoice.path.exists() for invoice in Invoice.objects.all()),
            stock_off_by=_stock_off_by(),
            rescued=list(rescued.distinct()),
            dead=queue.stats()["dead"],
        )

    def complaint(self) -> str:
        """Return what is wrong; empty if nothing is."""
        wrong = {
            "charged twice": counted(self.charged_twice, "order"),
            "neither charged, declined nor waiting for a decision": counted(len(self.lost), "order"),
            "charged, and without a receipt": counted(self.receipts_missing, "order"),
            "with two receipts": counted(self.receipts_twice, "order"),
            "missing from the shelves, or too many": counted(self.stock_off_by, "unit"),
            "dead": counted(self.dead, "job"),
        }
        return "; ".join(f"{count} {what}" for what, count in wrong.items() if not count.startswith("0 "))

    def rows(self) -> list[tuple[str, int, str, bool]]:
        """Return the table of the results: name, number, note, and whether that is as it should be."""
        ledger, mail = (f"counted in {shown(path)}" for path in (settings.GATEWAY_LEDGER, settings.MAIL_DIR))
        invoices = f"counted in {shown(settings.INVOICE_DIR)}"
        return [
            ("orders", self.orders, "", not self.lost),
            ("charged once", self.charged_once, ledger, True),
            ("charged twice", self.charged_twice, "", not self.charged_twice),
            ("declined", self.declined, "and not charged", True),
            ("waiting", len(self.waiting), self._waiting_for(), True),
            ("receipts written", self.receipts, mail, not self.receipts_missing),
            ("written twice", self.receipts_twice, "", not self.receipts_twice),
            ("invoices", self.invoices, invoices, True),
            ("stock off by", self.stock_off_by, "units: each order is taken from it once", not self.stock_off_by),
            ("jobs rescued", len(self.rescued), "killed in the middle, and continued elsewhere", True),
            ("jobs dead", self.dead, "", not self.dead),
        ]

    def _waiting_for(self) -> str:
        """Say what those that wait are waiting for, so that charged, declined and these make up all orders."""
        note = "for a decision about a step in doubt"
        return f"{note}; {self.undecided} of them not charged" if self.undecided else note


def _stock_off_by() -> int:
    """Compare the shelves with what the orders should have left there."""
    keeping = OrderLine.objects.exclude(order__status__in=[Order.Status.PLACED, *CALLED_OFF])
    taken = dict(keeping.order_by().values_list("product__sku").annotate(Sum("quantity")))
    shelves = dict(Product.objects.values_list("sku", "stock"))
    return sum(abs(stock - taken.get(sku, 0) - shelves[sku]) for sku, stock in initial_stock().items())
