"""The shop's background jobs, in both styles.

`checkout` is a durable run. What it does to the outside world must not happen twice, so it does it in steps: a worker
may die at any line, and the next one goes on after the last step that was recorded.

`make_invoice` and `stock_report` are plain tasks. Their jobs run again from the first line, which is all right if a
second run has the same effect.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import OperationalError
from django.db.models import F, Sum

import gnlqueue
from shop import mails, payments, transitions, warehouse
from shop.files import replace
from shop.models import Invoice, Order, OrderLine, Product, euros

# What may pass by itself: network trouble (smtplib's errors are OSErrors too), and the database's. Anything else, such
# as an order that does not exist, would fail the same way again, so the job is dead at once and waits for a human.
TROUBLE = (OSError, OperationalError)


# A queue of its own: a gateway that is slow today delays no invoice.
@gnlqueue.task(queue_name="checkout", takes_context=True, retry_for=TROUBLE, max_attempts=10, timeout=60)
def checkout(context: gnlqueue.JobContext, order_id: int) -> str:
    """Reserve, charge, have it packed, and send the receipt; return what became of the order."""
    # Read outside the steps, so on every attempt: card and total of an order do not change any more.
    order = Order.objects.get(pk=order_id)
    try:
        context.using(final_errors=transitions.OutOfStock).atomic_step("reserve stock", transitions.reserve, order_id)
        charge_id = context.using(
            recover=payments.find_charge,
            safe_errors=ConnectionRefusedError,  # nobody was there to charge anything
            final_errors=payments.CardDeclined,
            how_to_check=f"manage.py gateway --lookup {order.number} (the step's result is the id of the charge)",
        ).step("charge card", payments.charge, order.number, order.card, order.total_cents)
    except gnlqueue.StepFailed as failed:
        if not failed.final:  # the gateway is down, or the database is busy: later
            raise
        return _refuse(context, order_id, failed.message)
    context.atomic_step("mark paid", _mark_paid, order_id, charge_id)
    context.idempotent_step("tell the warehouse", warehouse.notify, order_id)
    context.sleep("packing", settings.PACKING_TIME)  # without a worker: the job is suspended
    context.using(how_to_check=f"look in the mail for {mails.receipt_id(order_id)}").step(
        "send receipt", mails.send_receipt, order_id
    )
    context.atomic_step("confirm", transitions.mark_confirmed, order_id)
    return "confirmed"


def _refuse(context: gnlqueue.JobContext, order_id: int, reason: str) -> str:
    """Take the other branch, on every later attempt too: the failure that led here is recorded."""
    context.atomic_step("call off", transitions.call_off, order_id)
    context.using(how_to_check=f"look in the mail for {mails.regrets_id(order_id)}").step(
        "tell the customer", mails.send_regrets, order_id, reason
    )
    return f"refused: {reason}"


def _mark_paid(order_id: int, charge_id: str) -> None:
    """Note that the money is there, and enqueue the invoice. A job is a row too, so it is enqueued exactly once."""
    transitions.mark_paid(order_id, charge_id)
    job = make_invoice.enqueue(order_id)
    order = Order.objects.get(pk=order_id)
    order.job_ids.append(job.pk)
    order.save(update_fields=["job_ids"])


@gnlqueue.task(retry_for=TROUBLE, timeout=60)
def make_invoice(order_id: int) -> str:
    """Write an order's invoice, and return its number.

    The number follows from the order, and the file replaces what an earlier attempt may have left: run it as often as
    you like, there is one invoice. The row comes last, so that whoever finds it finds the file too.
    """
    order = Order.objects.get(pk=order_id)
    invoice = Invoice(order=order, number=f"INV-{order.pk:06}")
    replace(invoice.path, mails.render("shop/invoice.txt", order, invoice=invoice))
    Invoice.objects.get_or_create(order=order, defaults={"number": invoice.number})
    return invoice.number


# Below the customers' jobs: nobody waits for it.
@gnlqueue.task(priority=-10, retry_for=TROUBLE, timeout=300)
def stock_report() -> dict[str, Any]:
    """Write a CSV of what was sold of each product so far, and return the totals, as the job's result."""
    orders = Order.objects.filter(status__in=[Order.Status.PAID, Order.Status.CONFIRMED])
    sold = {
        row["product"]: row
        for row in OrderLine.objects.filter(order__in=orders)
        .values("product")
        .annotate(units=Sum("quantity"), cents=Sum(F("quantity") * F("price_cents")))
    }
    nothing = {"units": 0, "cents": 0}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["sku", "name", "sold", "revenue", "in_stock"])
    for product in Product.objects.all():
        row = sold.get(product.pk, nothing)
        writer.writerow([product.sku, product.name, row["units"], f"{row['cents'] / 100:.2f}", product.stock])
    replace(Path(settings.REPORT_DIR) / "stock.csv", text.getvalue())
    return {"orders": orders.count(), "revenue": euros(sum(row["cents"] for row in sold.values()))}
