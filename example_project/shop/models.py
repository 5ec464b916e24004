"""What the shop sells, and to whom. Amounts of money are whole cents."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import get_random_string

from gnlqueue.models import Job


def euros(cents: int) -> str:
    """Return an amount as people read it: `12.90 €`."""
    return f"{cents // 100}.{cents % 100:02}\N{NO-BREAK SPACE}€"


def new_reference() -> str:
    """Return a text that nobody can guess."""
    return get_random_string(12)


class Product(models.Model):
    sku = models.CharField("SKU", max_length=40, unique=True)
    name = models.CharField(max_length=200)
    price_cents = models.PositiveIntegerField()
    stock = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.name

    @property
    def price(self) -> str:
        return euros(self.price_cents)


class Order(models.Model):
    class Status(models.TextChoices):
        PLACED = "placed"
        RESERVED = "reserved"  #: taken from stock, and about to be charged
        PAID = "paid"
        CONFIRMED = "confirmed"  #: the receipt is out
        DECLINED = "declined"  #: not charged, and back in stock
        SOLD_OUT = "sold_out", "Sold out"  #: somebody else was quicker

    class Card(models.TextChoices):
        """Names by which the gateway knows cards; a shop never sees their numbers."""

        PAYS = "card-that-pays", "A card that pays"
        SLOW = "card-of-a-slow-bank", "A card of a bank that takes 6 seconds"
        DECLINED = "card-without-money", "A card without money"

    #: What the customer's URL contains: with ids, counting up would show other people's orders.
    reference = models.CharField(default=new_reference, max_length=12, unique=True, editable=False)
    customer = models.CharField(max_length=200)
    email = models.EmailField("e-mail")
    card = models.CharField(max_length=30, choices=Card.choices, default=Card.PAYS)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.PLACED)
    charge_id = models.CharField(max_length=40, blank=True)
    placed_at = models.DateTimeField(default=timezone.now)
    receipt_sent_at = models.DateTimeField(null=True, blank=True)
    total_cents = models.PositiveIntegerField(default=0)
    #: No foreign keys, as finished jobs are pruned eventually and orders are not.
    job_ids = models.JSONField(default=list, editable=False)

    class Meta:
        ordering = ["-placed_at", "-id"]

    def __str__(self) -> str:
        return f"Order {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("shop:order", args=[self.reference])

    @property
    def number(self) -> str:
        """What the gateway, the warehouse and people call it."""
        return f"order-{self.pk}"

    @property
    def total(self) -> str:
        return euros(self.total_cents)

    @property
    def jobs(self) -> models.QuerySet[Job]:
        """The order's background jobs that have not been pruned."""
        return Job.objects.filter(pk__in=self.job_ids).order_by("id")


class OrderLine(models.Model):
    order = models.ForeignKey(Order, models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, models.PROTECT)
    quantity = models.PositiveIntegerField()
    price_cents = models.PositiveIntegerField(help_text="Of one, when it was ordered.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["order", "product"], name="shop_product_once_in_order")]

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product}"

    @property
    def total_cents(self) -> int:
        return self.quantity * self.price_cents

    @property
    def total(self) -> str:
        return euros(self.total_cents)


class Invoice(models.Model):
    order = models.OneToOneField(Order, models.PROTECT)
    number = models.CharField(max_length=20, unique=True)
    issued_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-number"]

    def __str__(self) -> str:
        return self.number

    def get_absolute_url(self) -> str:
        return reverse("shop:invoice", args=[self.order.reference])

    @property
    def path(self) -> Path:
        """Where its text is stored."""
        return Path(settings.INVOICE_DIR) / f"{self.number}.txt"
