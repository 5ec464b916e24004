"""An empty shop, and the orders of a month to fill it with."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, connections

from shop.models import Order, Product
from shop.orders import place_order

DATA = Path(__file__).resolve().parent.parent / "data"
ADMIN = "admin"  # name and password
DECLINED_EVERY = 12  # one order in so many is to be paid with a card without money
SLOW = 31  # the number of the one order that is paid with a card of a slow bank


def empty_everything() -> None:
    """Remove what an earlier run left: the files under `var/`, and all rows."""
    ledger = settings.GATEWAY_LEDGER.parent  # which a demo may throw away
    for directory in (settings.MAIL_DIR, settings.INVOICE_DIR, settings.REPORT_DIR, settings.WAREHOUSE_DIR, ledger):
        shutil.rmtree(directory, ignore_errors=True)
    for log in settings.VAR_DIR.glob("*.log"):
        log.unlink()
    if connection.vendor == "sqlite":
        connections.close_all()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{connection.settings_dict['NAME']}{suffix}").unlink(missing_ok=True)
        call_command("migrate", verbosity=0, interactive=False)
    else:
        _refuse_if_not_ours()
        call_command("migrate", verbosity=0, interactive=False)
        call_command("flush", verbosity=0, interactive=False)


def _refuse_if_not_ours() -> None:
    """Leave a database alone that has anything in it but this shop."""
    tables = connection.introspection
    others = set(tables.table_names()) - set(tables.django_table_names()) - {"django_migrations"}
    if others:
        raise CommandError(
            f"The demo empties its database, and {connection.settings_dict['NAME']!r} has somebody else's tables "
            f"({', '.join(sorted(others)[:3])}). Name an empty database in SHOP_DATABASE_URL."
        )


def create_admin() -> None:
    """Create the user for the admin; a password like this is only for a demo on your own machine."""
    get_user_model().objects.create_superuser(ADMIN, "admin@example.com", ADMIN)


def fill_shelves() -> None:
    """Put in stock what products.csv says."""
    Product.objects.bulk_create(Product(**row) for row in _rows("products.csv"))


def initial_stock() -> dict[str, int]:
    """Return how much of each product, by its SKU, was in stock at first."""
    return {row["sku"]: int(row["stock"]) for row in _rows("products.csv")}


def place_orders() -> Iterator[Order]:
    """Place the orders of orders.csv, as if their customers did it now; the rows of one order follow each other."""
    products = {product.sku: product for product in Product.objects.all()}
    for number, group in groupby(_rows("orders.csv"), key=itemgetter("order")):
        lines = list(group)
        yield place_order(
            lines[0]["customer"],
            lines[0]["email"],
            {products[line["sku"]]: int(line["quantity"]) for line in lines},
            _card_of(int(number)),
            placed_at=datetime.fromisoformat(lines[0]["placed_at"]),
        )


def count_orders() -> int:
    """Return how many `place_orders` will place."""
    return len({row["order"] for row in _rows("orders.csv")})


def _card_of(number: int) -> Order.Card:
    if number == SLOW:
        return Order.Card.SLOW
    return Order.Card.PAYS if number % DECLINED_EVERY else Order.Card.DECLINED


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
