"""What the shop writes to its customers.

No mail server takes a key by which it would recognise a mail, and none can be asked whether it accepted one. So each
mail is sent in a `step`: at most once, and if nobody knows, somebody looks.
"""

from __future__ import annotations

import random
import time

from django.core.mail import EmailMessage
from django.template.loader import render_to_string

from shop.models import Order

#: Seconds that a mail server takes: greeting, TLS, login. The files of this example would be too quick to be true.
MAIL_SERVER_LATENCY = 0.1, 0.3


def send_receipt(order_id: int) -> None:
    """Mail the customer what they bought."""
    order = Order.objects.get(pk=order_id)
    _send(order, receipt_id(order_id), f"Your order {order.pk} at Kettle & Leaf", "shop/receipt.txt")


def send_regrets(order_id: int, reason: str) -> None:
    """Mail the customer that nothing will come, and that nothing was charged."""
    order = Order.objects.get(pk=order_id)
    _send(order, regrets_id(order_id), f"We could not accept your order {order.pk}", "shop/regrets.txt", reason=reason)


def receipt_id(order_id: int) -> str:
    """Return the Message-ID of an order's receipt. It is the same on each, so that a second one could be counted."""
    return f"<receipt-{order_id}@shop.example.com>"


def regrets_id(order_id: int) -> str:
    """Return the Message-ID of a refusal."""
    return f"<regrets-{order_id}@shop.example.com>"


def render(template: str, order: Order, **context: object) -> str:
    """Return a text about an order."""
    lines = order.lines.select_related("product").order_by("pk")
    return render_to_string(template, {"order": order, "lines": lines, **context}).strip() + "\n"


def _send(order: Order, message_id: str, subject: str, template: str, **context: object) -> None:
    text = render(template, order, **context)
    time.sleep(random.uniform(*MAIL_SERVER_LATENCY))
    EmailMessage(subject, text, to=[order.email], headers={"Message-ID": message_id}).send()
