"""Placing an order: the one place where the shop enqueues jobs for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from shop.models import Order, OrderLine, Product
from shop.tasks import checkout


def place_order(
    customer: str,
    email: str,
    quantities: Mapping[Product, int],
    card: str = Order.Card.PAYS,
    placed_at: datetime | None = None,
) -> Order:
    """Store an order, and enqueue its checkout: both, or neither.

    Jobs are rows of the same database, so they belong to this transaction. If it rolls back there is no order and
    nobody is charged; once it has committed, the checkout is never lost.
    """
    extra: dict[str, Any] = {} if placed_at is None else {"placed_at": placed_at}
    with transaction.atomic():
        total = sum(product.price_cents * quantity for product, quantity in quantities.items())
        order = Order.objects.create(customer=customer, email=email, card=card, total_cents=total, **extra)
        OrderLine.objects.bulk_create(
            OrderLine(order=order, product=product, quantity=quantity, price_cents=product.price_cents)
            for product, quantity in quantities.items()
        )
        # With this key an order has one checkout, however often it is enqueued.
        job = checkout.using(idempotency_key=f"checkout:{order.pk}").enqueue(order.pk)
        order.job_ids = [job.pk]
        order.save(update_fields=["job_ids"])
    return order
