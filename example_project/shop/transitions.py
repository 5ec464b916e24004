"""How an order gets from one status to the next.

Taking something out of stock twice is not the same as once, so each of these is the function of an `atomic_step`: what
it writes and that it was done are one transaction of the database.
"""

from __future__ import annotations

from django.db.models import F
from django.utils import timezone

from shop.models import Order, OrderLine, Product


class OutOfStock(Exception):
    """There are fewer of a product than were ordered."""

    def __init__(self, product: Product) -> None:
        super().__init__(f"{product.name} is not in stock any more in that quantity")


def reserve(order_id: int) -> None:
    """Take what was ordered out of stock.

    Raises `OutOfStock`, and then nothing is taken: what went before rolls back with the step.
    """
    # Always in the same order, so that two orders of the same products don't deadlock.
    for line in _lines(order_id):
        in_stock = Product.objects.filter(pk=line.product_id, stock__gte=line.quantity)
        if not in_stock.update(stock=F("stock") - line.quantity):
            raise OutOfStock(line.product)
    _move(order_id, Order.Status.RESERVED)


def mark_paid(order_id: int, charge_id: str) -> None:
    """Note that the money is there."""
    _move(order_id, Order.Status.PAID, charge_id=charge_id)


def mark_confirmed(order_id: int) -> None:
    """Note that the receipt is out."""
    _move(order_id, Order.Status.CONFIRMED, receipt_sent_at=timezone.now())


def call_off(order_id: int) -> None:
    """End an order that was not charged, and put back what was reserved for it."""
    order = Order.objects.get(pk=order_id)
    if order.status == Order.Status.RESERVED:
        for line in _lines(order_id):
            Product.objects.filter(pk=line.product_id).update(stock=F("stock") + line.quantity)
        _move(order_id, Order.Status.DECLINED)
    else:
        _move(order_id, Order.Status.SOLD_OUT)


def _lines(order_id: int) -> list[OrderLine]:
    return list(OrderLine.objects.filter(order=order_id).select_related("product").order_by("product_id"))


def _move(order_id: int, status: Order.Status, **values: object) -> None:
    Order.objects.filter(pk=order_id).update(status=status, **values)
