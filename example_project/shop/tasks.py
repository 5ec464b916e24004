"""The shop's background jobs.

A worker may die at any line of a task, and the job is then run again from its first line. So each task here is written
to be run twice: it looks at what an earlier attempt has done, or does the same thing to the same effect.
"""

from __future__ import annotations

import csv
import io
import os
import random
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import OperationalError, transaction
from django.db.models import F, Sum
from django.template.loader import render_to_string
from django.utils import timezone

import gnlqueue
from shop.models import Invoice, Order, OrderLine, Product, euros

#: Seconds that connecting to a mail server takes: greeting, TLS, login.
MAIL_SERVER_LATENCY = 0.05, 0.15


@gnlqueue.task(
    # A queue of its own: a mail server that is slow today delays no invoice.
    queue_name="mail",
    # What may pass by itself: network trouble (smtplib's errors are OSErrors too), and the database's. Anything else,
    # such as an order that does not exist, would fail the same way again, so it is dead at once and waits for a human.
    retry_for=(OSError, OperationalError),
    max_attempts=10,
    timeout=60,
)
def send_receipt(order_id: int) -> None:
    """Mail the customer what they bought.

    That the receipt is out is stored in the transaction in which it is handed over, so a second attempt sees it. What
    is left is a crash between the handing over and the commit: no database can undo a mail, so that the customer gets
    it twice. The Message-ID is the same on both, by which mail programs and the demo recognise the second one.
    """
    _connect_to_mail_server()
    with transaction.atomic():
        # The row's lock makes a second worker wait, should this one have lost the job without knowing.
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.status == Order.Status.CONFIRMED:
            return
        order.status = Order.Status.CONFIRMED
        order.receipt_sent_at = timezone.now()
        order.save(update_fields=["status", "receipt_sent_at"])
        receipt = EmailMessage(
            subject=f"Your order {order.pk} at Kettle & Leaf",
            body=_render("shop/receipt.txt", order),
            to=[order.email],
            headers={"Message-ID": receipt_id(order_id)},
        )
        receipt.send()  # last, as close to the commit as can be


@gnlqueue.task(retry_for=(OSError, OperationalError), timeout=60)
def make_invoice(order_id: int) -> str:
    """Write an order's invoice, and return its number.

    The number follows from the order, and the file replaces what an earlier attempt may have left: run it as often as
    you like, there is one invoice. The row comes last, so that whoever finds it finds the file too.
    """
    order = Order.objects.get(pk=order_id)
    invoice = Invoice(order=order, number=f"INV-{order.pk:06}")
    _replace(invoice.path, _render("shop/invoice.txt", order, invoice=invoice))
    Invoice.objects.get_or_create(order=order, defaults={"number": invoice.number})
    return invoice.number


# Below the customers' jobs: nobody waits for it.
@gnlqueue.task(priority=-10, retry_for=(OSError, OperationalError), timeout=300)
def stock_report() -> dict[str, Any]:
    """Write a CSV of what each product sold over all orders, and return the totals, as the job's result."""
    sold = {
        row["product"]: row
        for row in OrderLine.objects.values("product").annotate(
            units=Sum("quantity"), cents=Sum(F("quantity") * F("price_cents"))
        )
    }
    nothing = {"units": 0, "cents": 0}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["sku", "name", "sold", "revenue", "in_stock"])
    for product in Product.objects.all():
        row = sold.get(product.pk, nothing)
        writer.writerow([product.sku, product.name, row["units"], f"{row['cents'] / 100:.2f}", product.stock])
    path = Path(settings.REPORT_DIR) / "stock.csv"
    _replace(path, text.getvalue())
    return {"orders": Order.objects.count(), "revenue": euros(sum(row["cents"] for row in sold.values()))}


def receipt_id(order_id: int) -> str:
    """Return the Message-ID of an order's receipt, the same on every attempt."""
    return f"<receipt-{order_id}@shop.example.com>"


def _connect_to_mail_server() -> None:
    """Take the time that a real mail server would; the files of this example would be too quick to be true."""
    time.sleep(random.uniform(*MAIL_SERVER_LATENCY))


def _render(template: str, order: Order, **context: Any) -> str:
    lines = order.lines.select_related("product").order_by("pk")
    return render_to_string(template, {"order": order, "lines": lines, **context}).strip() + "\n"


def _replace(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, whenever this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
