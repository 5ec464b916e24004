"""Telling the warehouse what to pack: a file in the directory that it watches."""

from __future__ import annotations

import json
from pathlib import Path

from django.conf import settings

from shop.files import replace
from shop.models import Order


def notify(order_id: int) -> None:
    """Hand an order over.

    The file's name follows from the order, and a second one replaces the first with the same content: so this may be
    repeated, and an `idempotent_step` is enough.
    """
    order = Order.objects.get(pk=order_id)
    lines = order.lines.select_related("product").order_by("pk")
    pack = {"order": order.pk, "for": order.customer, "pack": {line.product.sku: line.quantity for line in lines}}
    replace(
        Path(settings.WAREHOUSE_DIR) / f"{order.number}.json", json.dumps(pack, ensure_ascii=False, indent=1) + "\n"
    )
