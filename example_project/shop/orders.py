"""Placing an order: the one place where the shop enqueues jobs for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from shop.models import Order, OrderLine, Product
from shop.tasks import make_invoice, send_receipt


class OutOfStock(Exception):
    """There are fewer of a product than were ordered."""

    def __init__(self, product: Product) -> None:
        super().__init__(f"{product.name} is not in stock any more in that quantity.")


def place_order(
    customer: str, email: str, quantities: Mapping[Product, int], placed_at: datetime | None = None
) -> Order:
    """Store an order, take its stock, and enqueue its receipt and its invoice: all of it, or nothing.

    Jobs are rows of the same database, so they belong to this transaction. If it rolls back there is no order and no
    receipt; once it has committed, neither is lost.

    Raises `OutOfStock`.
    """
    extra: dict[str, Any] = {} if placed_at is None else {"placed_at": placed_at}
    with transaction.atomic():
        # Always in the same order, so that two customers with the same products don't deadlock.
        for product in sorted(quantities, key=lambda product: product.pk):
            _take_stock(product, quantities[product])
        total = sum(product.price_cents * quantity for product, quantity in quantities.items())
        order = Order.objects.create(customer=customer, email=email, total_cents=total, **extra)
        OrderLine.objects.bulk_create(
            OrderLine(order=order, product=product, quantity=quantity, price_cents=product.price_cents)
            for product, quantity in quantities.items()
        )
        # With these keys, enqueueing once more (a double click, an import run twice) gives the jobs that there are.
        receipt = send_receipt.using(idempotency_key=f"receipt:{order.pk}").enqueue(order.pk)
        invoice = make_invoice.using(idempotency_key=f"invoice:{order.pk}").enqueue(order.pk)
        order.job_ids = [receipt.pk, invoice.pk]
        order.save(update_fields=["job_ids"])
    return order


def _take_stock(product: Product, quantity: int) -> None:
    taken = Product.objects.filter(pk=product.pk, stock__gte=quantity).update(stock=F("stock") - quantity)
    if not taken:
        raise OutOfStock(product)
