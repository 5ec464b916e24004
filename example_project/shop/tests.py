"""Tests of the shop, by `manage.py test`. They also show how to test code that enqueues, and tasks: as plain calls."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from django.contrib.auth.models import User
from django.core import mail
from django.db import transaction
from django.test import TestCase, override_settings
from django.urls import reverse

from gnlqueue import queue
from gnlqueue.models import Job, WorkerProcess
from gnlqueue.worker.loop import Worker
from shop import tasks
from shop.models import Invoice, Order, Product, euros
from shop.orders import OutOfStock, place_order


class ShopTestCase(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        cls.assam = Product.objects.create(sku="ASSAM", name="Assam <100 g>", price_cents=890, stock=5)
        cls.pot = Product.objects.create(sku="POT", name="Teapot", price_cents=4990, stock=1)

    def setUp(self) -> None:
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(
            override_settings(INVOICE_DIR=self.directory / "invoices", REPORT_DIR=self.directory / "reports")
        )
        self.enterContext(mock.patch("shop.tasks.MAIL_SERVER_LATENCY", (0, 0)))

    def order(self, **quantities: int) -> Order:
        products = {getattr(self, name): quantity for name, quantity in quantities.items()}
        return place_order("Zoë O'Brien", "zoe@example.com", products)

    def stock(self, product: Product) -> int:
        return Product.objects.get(pk=product.pk).stock


class PlacingTests(ShopTestCase):
    def test_an_order_comes_with_its_jobs(self) -> None:
        order = self.order(assam=2, pot=1)
        self.assertEqual(order.total, euros(6770))
        self.assertEqual((self.stock(self.assam), self.stock(self.pot)), (3, 0))
        jobs = order.jobs.values_list("task_name", "queue_name", "args", "idempotency_key")
        self.assertCountEqual(
            jobs,
            [
                ("shop.tasks.send_receipt", "mail", [order.pk], f"receipt:{order.pk}"),
                ("shop.tasks.make_invoice", "default", [order.pk], f"invoice:{order.pk}"),
            ],
        )

    def test_a_rollback_takes_the_jobs_with_it(self) -> None:
        class PaymentRefused(Exception):
            pass

        with self.assertRaises(PaymentRefused), transaction.atomic():
            self.order(assam=2)
            self.assertEqual(Job.objects.count(), 2)
            raise PaymentRefused
        self.assertEqual((Order.objects.count(), Job.objects.count(), self.stock(self.assam)), (0, 0, 5))

    def test_what_is_out_of_stock_leaves_nothing(self) -> None:
        with self.assertRaises(OutOfStock):
            self.order(assam=2, pot=2)
        self.assertEqual((Order.objects.count(), Job.objects.count(), self.stock(self.assam)), (0, 0, 5))


class PageTests(ShopTestCase):
    def check_out(self, **quantities: Any) -> Any:
        named = {f"quantity_{getattr(self, name).pk}": quantity for name, quantity in quantities.items()}
        data = {"customer": "<b>Zoë</b>", "email": "zoe@example.com", **named}
        return self.client.post(reverse("shop:checkout"), data)

    def test_the_storefront_lists_products(self) -> None:
        self.assertContains(self.client.get("/"), "Assam &lt;100 g&gt;")

    def test_checkout_leads_to_the_order(self) -> None:
        response = self.check_out(assam=1)
        order = Order.objects.get()
        self.assertRedirects(response, order.get_absolute_url())
        self.assertEqual(Job.objects.count(), 2)

    def test_checkout_says_what_is_wrong(self) -> None:
        for quantities, message in [
            ({}, "Choose at least one product."),
            ({"assam": 6}, "Ensure this value is less than or equal to 5."),
            ({"assam": -1}, "Ensure this value is greater than or equal to 0."),
            ({"assam": "many"}, "Enter a whole number."),
        ]:
            with self.subTest(quantities):
                self.assertContains(self.check_out(**quantities), message, status_code=422)
        self.assertEqual((Order.objects.count(), Job.objects.count()), (0, 0))

    def test_the_last_one_may_go_while_somebody_checks_out(self) -> None:
        with mock.patch("shop.views.place_order", side_effect=OutOfStock(self.pot)):
            self.assertContains(self.check_out(pot=1), "Teapot is not in stock any more", status_code=422)

    def test_an_order_shows_its_jobs(self) -> None:
        self.check_out(assam=1)
        url = Order.objects.get().get_absolute_url()
        page = self.client.get(url)
        self.assertContains(page, "&lt;b&gt;Zoë&lt;/b&gt;")
        self.assertContains(page, "shop.tasks.send_receipt")
        self.assertContains(page, "No worker is running")
        self.assertContains(page, 'http-equiv="refresh"')
        while Worker(heartbeat=False).run_once():
            pass
        page = self.client.get(url)
        self.assertContains(page, "sent to zoe@example.com")
        self.assertContains(page, "INV-")
        self.assertNotContains(page, 'http-equiv="refresh"')
        invoice = self.client.get(f"{url}invoice/")
        self.assertIn("Assam <100 g>", b"".join(invoice.streaming_content).decode())

    def test_a_worker_that_is_there_is_seen(self) -> None:
        order = self.order(assam=1)
        job = queue.claim("mail", worker_id="w")
        self.assertContains(self.client.get(order.get_absolute_url()), "No worker is running")
        WorkerProcess.objects.create(
            worker_id="w", hostname="h", pid=1, queues=["mail"], concurrency=1, started_at=job.last_attempted_at,
            heartbeat_at=job.last_attempted_at,
        )  # fmt: skip
        self.assertNotContains(self.client.get(order.get_absolute_url()), "No worker is running")

    def test_other_pages_are_not_found(self) -> None:
        order = self.order(assam=1)
        for url in ["/orders/nobodys/", f"{order.get_absolute_url()}invoice/"]:
            self.assertEqual(self.client.get(url).status_code, 404)


class AdminTests(ShopTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client.force_login(User.objects.create_superuser("boss"))

    def test_its_pages_work(self) -> None:
        order = self.order(assam=1)
        tasks.make_invoice(order.pk)
        one_order, one_invoice = f"order/{order.pk}/change/", f"invoice/{order.invoice.pk}/change/"
        for url in ["", "product/", "order/", one_order, "invoice/", one_invoice]:
            with self.subTest(url):
                self.assertEqual(self.client.get(f"/admin/shop/{url}").status_code, 200)

    def test_the_stock_report_is_enqueued(self) -> None:
        data = {"action": "write_stock_report", "_selected_action": [self.assam.pk]}
        self.assertContains(self.client.post("/admin/shop/product/", data, follow=True), "as soon as a worker is free")
        self.assertEqual(Job.objects.get().task_name, "shop.tasks.stock_report")


class TaskTests(ShopTestCase):
    def test_a_receipt_is_sent_once_however_often_the_task_runs(self) -> None:
        order = self.order(assam=2)
        for _ in range(2):
            tasks.send_receipt(order.pk)
        [receipt] = mail.outbox
        self.assertEqual(receipt.to, ["zoe@example.com"])
        self.assertIn("Zoë O'Brien", receipt.body)
        self.assertIn(euros(1780), receipt.body)
        self.assertEqual(receipt.extra_headers["Message-ID"], tasks.receipt_id(order.pk))
        order.refresh_from_db()
        self.assertEqual(order.status, Order.Status.CONFIRMED)

    def test_a_receipt_that_could_not_be_sent_is_not_recorded(self) -> None:
        order = self.order(assam=1)
        refused = mock.patch("django.core.mail.EmailMessage.send", side_effect=ConnectionResetError)
        with refused, self.assertRaises(ConnectionResetError):
            tasks.send_receipt(order.pk)
        order.refresh_from_db()
        self.assertEqual(order.status, Order.Status.PLACED)

    def test_a_receipt_of_nothing_is_given_up(self) -> None:
        job = tasks.send_receipt.enqueue(12345)
        with self.assertLogs("gnlqueue.worker", "ERROR"):
            Worker(["mail"], heartbeat=False).run_once()
        self.assertEqual(queue.get(job).status, Job.Status.DEAD)

    def test_an_invoice_is_the_same_however_often_the_task_runs(self) -> None:
        order = self.order(assam=2)
        numbers = {tasks.make_invoice(order.pk) for _ in range(2)}
        invoice = Invoice.objects.get()
        self.assertEqual(numbers, {invoice.number})
        self.assertIn("2 x Assam <100 g>", invoice.path.read_text())
        self.assertEqual([invoice.path], list(invoice.path.parent.iterdir()))

    def test_the_stock_report_counts_all_orders(self) -> None:
        self.order(assam=1)
        self.order(assam=2)
        result = tasks.stock_report()
        with (self.directory / "reports" / "stock.csv").open() as report:
            rows = list(csv.DictReader(report))
        self.assertEqual(result, {"orders": 2, "revenue": euros(2670)})
        self.assertEqual([row["sold"] for row in rows], ["3", "0"])
        self.assertEqual([row["in_stock"] for row in rows], ["2", "1"])
