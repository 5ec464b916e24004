"""Tests of the shop, by `manage.py test`.

They also show how to test code that enqueues, plain tasks (as calls), and durable runs: `Worker(…).run_once()` runs the
next job here and now, and a function that raises after a few steps makes a second attempt that replays them.
"""

from __future__ import annotations

import csv
import json
import logging
import tempfile
import threading
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from django.contrib.auth.models import User
from django.core import mail
from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.core.management.color import no_style
from django.db import OperationalError, transaction
from django.test import TestCase, override_settings
from django.urls import reverse
from gateway.ledger import Ledger
from gateway.server import Gateway

import gnlqueue
from gnlqueue import queue
from gnlqueue.models import EntryStatus, Job, RunJournalEntry, WorkerProcess
from gnlqueue.worker.loop import Worker
from shop import mails, payments, tasks
from shop.demo import decisions
from shop.demo.screen import Screen
from shop.models import Invoice, Order, Product, euros
from shop.orders import place_order


class ShopTestCase(TestCase):
    """With a real payment gateway, which listens on a free port and charges at once."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.enterClassContext(mock.patch("gateway.server._Handler.log_message"))
        cls.gateway = cls.enterClassContext(Gateway(0, Ledger(Path("another for each test"))))
        thread = threading.Thread(target=cls.gateway.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        cls.addClassCleanup(thread.join)
        cls.addClassCleanup(cls.gateway.shutdown)

    @classmethod
    def setUpTestData(cls) -> None:
        cls.assam = Product.objects.create(sku="ASSAM", name="Assam <100 g>", price_cents=890, stock=5)
        cls.pot = Product.objects.create(sku="POT", name="Teapot", price_cents=4990, stock=1)

    def setUp(self) -> None:
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.gateway.ledger = Ledger(self.directory / "ledger.jsonl")
        self.enterContext(
            override_settings(
                GATEWAY_URL=self.gateway.url,
                GATEWAY_LEDGER=self.gateway.ledger.path,
                MAIL_DIR=self.directory / "mail",
                PACKING_TIME=timedelta(),
                INVOICE_DIR=self.directory / "invoices",
                REPORT_DIR=self.directory / "reports",
                WAREHOUSE_DIR=self.directory / "warehouse",
            )
        )
        self.enterContext(mock.patch("shop.mails.MAIL_SERVER_LATENCY", (0, 0)))
        logging.disable()  # workers report what these tests make fail
        self.addCleanup(logging.disable, logging.NOTSET)

    def order(self, card: str = Order.Card.PAYS, **quantities: int) -> Order:
        products = {getattr(self, name): quantity for name, quantity in quantities.items()}
        return place_order("Zoë O'Brien", "zoe@example.com", products, card)

    def work(self) -> None:
        """Do what a worker would do until there is nothing left to do now."""
        while Worker(heartbeat=False).run_once():
            pass

    def work_again(self, order: Order) -> None:
        """Do the next attempt of an order's checkout, as if the pause before it were over."""
        queue.reschedule(order.jobs[0], timedelta())
        self.work()

    def stock(self, product: Product) -> int:
        return Product.objects.get(pk=product.pk).stock

    def outcomes(self) -> list[str]:
        """Return what the gateway has done."""
        return [record["outcome"] for record in self.gateway.ledger]

    def letters(self) -> list[str]:
        """Return the Message-IDs of what was mailed."""
        return [message.extra_headers["Message-ID"] for message in mail.outbox]

    def assert_status(self, order: Order, status: Order.Status, job: Job.Status = Job.Status.DONE) -> None:
        order.refresh_from_db()
        self.assertEqual((order.status, order.jobs[0].status), (status, job), order.jobs[0].last_error)


class PlacingTests(ShopTestCase):
    def test_an_order_comes_with_its_job(self) -> None:
        order = self.order(assam=2, pot=1)
        self.assertEqual(order.total, euros(6770))
        job = order.jobs.get()
        self.assertEqual((job.task_name, job.queue_name, job.args), ("shop.tasks.checkout", "checkout", [order.pk]))
        self.assertEqual(tasks.checkout.using(idempotency_key=f"checkout:{order.pk}").enqueue(order.pk), job)

    def test_a_rollback_takes_the_job_with_it(self) -> None:
        class ChangedTheirMind(Exception):
            pass

        with self.assertRaises(ChangedTheirMind), transaction.atomic():
            self.order(assam=2)
            self.assertEqual(Job.objects.count(), 1)
            raise ChangedTheirMind
        self.assertEqual((Order.objects.count(), Job.objects.count()), (0, 0))


class CheckoutTests(ShopTestCase):
    def test_an_order_is_charged_packed_and_confirmed(self) -> None:
        order = self.order(assam=2)
        self.work()
        self.assert_status(order, Order.Status.CONFIRMED)
        [charge] = self.gateway.ledger
        self.assertEqual((charge["id"], charge["order"], charge["cents"]), (order.charge_id, order.number, 1780))
        self.assertEqual(self.stock(self.assam), 3)
        pack = json.loads((self.directory / "warehouse" / f"{order.number}.json").read_text())
        self.assertEqual(pack["pack"], {"ASSAM": 2})
        [receipt] = mail.outbox
        self.assertEqual(receipt.to, ["zoe@example.com"])
        self.assertIn("Zoë O'Brien", receipt.body)
        self.assertIn(euros(1780), receipt.body)
        self.assertEqual(self.letters(), [mails.receipt_id(order.pk)])
        self.assertTrue(order.invoice.path.exists())

    def test_it_sleeps_until_the_order_is_packed(self) -> None:
        order = self.order(assam=1)
        with override_settings(PACKING_TIME=timedelta(hours=1)):
            self.work()
        self.assert_status(order, Order.Status.PAID, Job.Status.SCHEDULED)
        self.assertEqual((order.jobs[0].attempts, self.letters()), (0, []))  # asleep, which is no attempt

    def test_a_crash_after_the_charge_does_not_charge_again(self) -> None:
        order = self.order(assam=1)
        with mock.patch("shop.warehouse.notify", side_effect=OSError):
            self.work()
        self.assert_status(order, Order.Status.PAID, Job.Status.SCHEDULED)
        self.work_again(order)
        self.assert_status(order, Order.Status.CONFIRMED)
        self.assertEqual((self.outcomes(), self.stock(self.assam)), (["charged"], 4))
        self.assertEqual((len(self.letters()), Invoice.objects.count()), (1, 1))

    def test_a_charge_whose_answer_was_lost_is_found(self) -> None:
        def charge(*args: Any) -> None:
            payments_charge(*args)
            raise ConnectionResetError

        payments_charge = payments.charge
        order = self.order(assam=1)
        with mock.patch("shop.payments.charge", charge):
            self.work()
        self.assert_status(order, Order.Status.CONFIRMED)
        self.assertEqual(self.outcomes(), ["charged"])

    def order_whose_charge_nobody_knows(self) -> tuple[Order, RunJournalEntry]:
        order = self.order(assam=1)
        with mock.patch("shop.payments.charge", side_effect=TimeoutError):
            self.work()
        self.assert_status(order, Order.Status.RESERVED, Job.Status.BLOCKED)
        return order, RunJournalEntry.objects.get(status=EntryStatus.IN_DOUBT)

    def test_a_charge_that_is_not_there_may_be_on_its_way(self) -> None:
        order, entry = self.order_whose_charge_nobody_knows()
        self.assertIn(f"manage.py gateway --lookup {order.number}", str(entry.error))
        self.work()
        self.assertEqual(self.outcomes(), [])  # it does not run again by itself
        arrived = self.gateway.ledger.add(order.number, order.total_cents, "charged")
        gnlqueue.resolve(entry, gnlqueue.Happened(arrived["id"]), by="ada", reason="it is in the ledger now")
        self.work()
        self.assert_status(order, Order.Status.CONFIRMED)
        self.assertEqual((order.charge_id, self.outcomes()), (arrived["id"], ["charged"]))

    def test_a_charge_that_did_not_happen_happens_now(self) -> None:
        order, entry = self.order_whose_charge_nobody_knows()
        gnlqueue.resolve(entry, gnlqueue.NotHappened(), by="ada", reason="the gateway was down all day")
        self.work()
        self.assert_status(order, Order.Status.CONFIRMED)
        self.assertEqual(self.outcomes(), ["charged"])

    def test_a_gateway_that_is_down_is_tried_again(self) -> None:
        order = self.order(assam=1)
        with mock.patch("http.client.HTTPConnection.connect", side_effect=ConnectionRefusedError):
            self.work()
        self.assert_status(order, Order.Status.RESERVED, Job.Status.SCHEDULED)
        self.work_again(order)
        self.assert_status(order, Order.Status.CONFIRMED)
        self.assertEqual((self.outcomes(), self.stock(self.assam)), (["charged"], 4))

    def test_a_declined_card_ends_the_order(self) -> None:
        order = self.order(Order.Card.DECLINED, assam=2)
        self.work()
        self.assert_status(order, Order.Status.DECLINED)
        self.assertEqual((self.outcomes(), self.stock(self.assam)), (["declined"], 5))
        self.assertEqual(self.letters(), [mails.regrets_id(order.pk)])
        self.assertIn("the card was declined, insufficient funds", mail.outbox[0].body)
        self.assertEqual(Invoice.objects.count(), 0)

    def test_the_branch_of_a_declined_card_is_taken_again(self) -> None:
        order = self.order(Order.Card.DECLINED, assam=2)
        with mock.patch("shop.transitions.call_off", side_effect=OperationalError):
            self.work()
        self.assert_status(order, Order.Status.RESERVED, Job.Status.SCHEDULED)
        with mock.patch("shop.payments.charge", side_effect=AssertionError("not again")):
            self.work_again(order)
        self.assert_status(order, Order.Status.DECLINED)
        self.assertEqual((self.outcomes(), self.stock(self.assam)), (["declined"], 5))

    def test_the_last_one_may_go_meanwhile(self) -> None:
        first, second = self.order(pot=1), self.order(assam=1, pot=1)
        self.work()
        self.assert_status(first, Order.Status.CONFIRMED)
        self.assert_status(second, Order.Status.SOLD_OUT)
        self.assertEqual((self.outcomes(), self.stock(self.pot), self.stock(self.assam)), (["charged"], 0, 5))
        self.assertIn("Teapot is not in stock any more", mail.outbox[1].body)

    def test_a_receipt_that_may_be_out_is_not_sent_again(self) -> None:
        order = self.order(assam=1)
        with mock.patch("django.core.mail.EmailMessage.send", side_effect=ConnectionResetError):
            self.work()
        self.assert_status(order, Order.Status.PAID, Job.Status.BLOCKED)
        entry = RunJournalEntry.objects.get(status=EntryStatus.IN_DOUBT)
        gnlqueue.resolve(entry, gnlqueue.Happened(), by="ada", reason="the customer has it")
        self.work()
        self.assert_status(order, Order.Status.CONFIRMED)
        self.assertEqual(self.letters(), [])

    def test_a_checkout_of_nothing_is_given_up(self) -> None:
        job = tasks.checkout.enqueue(12345)
        self.work()
        self.assertEqual(queue.get(job).status, Job.Status.DEAD)


class GatewayTests(ShopTestCase):
    def test_whoever_charges_twice_has_charged_twice(self) -> None:
        ids = {payments.charge("order-1", Order.Card.PAYS, 890) for _ in range(2)}
        self.assertEqual((self.outcomes(), len(ids)), (["charged", "charged"], 2))

    def test_what_a_lookup_may_conclude(self) -> None:
        question = ("order-1", Order.Card.PAYS, 890)
        self.assertEqual(payments.find_charge(*question), gnlqueue.Unknown())
        with self.assertRaisesMessage(payments.CardDeclined, "insufficient funds"):
            payments.charge("order-1", Order.Card.DECLINED, 890)
        self.assertEqual(payments.find_charge(*question), gnlqueue.NotHappened())
        charge_id = payments.charge(*question)
        self.assertEqual(payments.find_charge(*question), gnlqueue.Happened(charge_id))

    def test_nonsense_is_refused(self) -> None:
        with self.assertRaises(payments.GatewayTrouble):
            payments.charge("order-1", Order.Card.PAYS, 0)
        self.assertEqual(self.outcomes(), [])


class DecisionTests(ShopTestCase):
    """Of the demo's reader."""

    def setUp(self) -> None:
        super().setUp()
        self.lost = self.order(assam=1)
        with mock.patch("shop.payments.charge", side_effect=TimeoutError):
            self.work()

    def decide(self, *typed: str | type[BaseException]) -> str:
        """Let the reader type something, and return what the demo showed."""
        shown = StringIO()
        with mock.patch("builtins.input", side_effect=typed), mock.patch("shop.demo.decisions.PATIENCE", 0):
            decisions.ask(Screen(OutputWrapper(shown), no_style()))
        return shown.getvalue()

    def test_it_happened(self) -> None:
        charge = self.gateway.ledger.add(self.lost.number, 890, "charged")
        self.assertIn(f"the ledger now has {euros(890)}, charged at", self.decide("what?", "h"))
        self.work()
        self.assert_status(self.lost, Order.Status.CONFIRMED)
        self.assertEqual((self.lost.charge_id, self.outcomes()), (charge["id"], ["charged"]))

    def test_it_did_not_happen(self) -> None:
        self.assertIn("the ledger now has no trace of it", self.decide("h", "N"))
        self.work()
        self.assert_status(self.lost, Order.Status.CONFIRMED)
        self.assertEqual(self.outcomes(), ["charged"])

    def test_it_is_for_later(self) -> None:
        for typed in ("", EOFError):
            self.decide(typed)
            self.assert_status(self.lost, Order.Status.RESERVED, Job.Status.BLOCKED)
        [doubt] = decisions.Doubt.all()
        call_command("gnlqueue", *doubt.suggestion(), stdout=StringIO())
        self.work()
        self.assert_status(self.lost, Order.Status.CONFIRMED)

    def test_the_ledger_can_be_looked_into(self) -> None:
        for words, said in [((), "nothing on"), (("charged",), euros(890))]:
            for outcome in words:
                self.gateway.ledger.add(self.lost.number, 890, outcome)
            shown = StringIO()
            call_command("gateway", "--lookup", self.lost.number, stdout=shown)
            self.assertIn(said, shown.getvalue())


class PageTests(ShopTestCase):
    def check_out(self, card: str = Order.Card.PAYS, **quantities: Any) -> Any:
        named = {f"quantity_{getattr(self, name).pk}": quantity for name, quantity in quantities.items()}
        data = {"customer": "<b>Zoë</b>", "email": "zoe@example.com", "card": card, **named}
        return self.client.post(reverse("shop:checkout"), data)

    def test_the_storefront_lists_products(self) -> None:
        self.assertContains(self.client.get("/"), "Assam &lt;100 g&gt;")

    def test_checkout_leads_to_the_order(self) -> None:
        response = self.check_out(assam=1)
        order = Order.objects.get()
        self.assertRedirects(response, order.get_absolute_url())
        self.assertEqual(Job.objects.count(), 1)

    def test_checkout_says_what_is_wrong(self) -> None:
        for quantities, message in [
            ({}, "Choose at least one product."),
            ({"assam": 6}, "Ensure this value is less than or equal to 5."),
            ({"assam": -1}, "Ensure this value is greater than or equal to 0."),
            ({"assam": "many"}, "Enter a whole number."),
            ({"assam": 1, "card": "my neighbour's"}, "Select a valid choice."),
        ]:
            with self.subTest(quantities):
                self.assertContains(self.check_out(**quantities), message, status_code=422)
        self.assertEqual((Order.objects.count(), Job.objects.count()), (0, 0))

    def test_an_order_shows_how_far_it_is(self) -> None:
        self.check_out(assam=1)
        url = Order.objects.get().get_absolute_url()
        page = self.client.get(url)
        self.assertContains(page, "&lt;b&gt;Zoë&lt;/b&gt;")
        self.assertContains(page, "shop.tasks.checkout")
        self.assertContains(page, "being charged")
        self.assertContains(page, "No worker is running")
        self.assertContains(page, 'http-equiv="refresh"')
        self.work()
        page = self.client.get(url)
        self.assertContains(page, "charged, ch_")
        self.assertContains(page, "tell the warehouse")
        self.assertContains(page, "sent to zoe@example.com")
        self.assertContains(page, "INV-")
        self.assertNotContains(page, 'http-equiv="refresh"')
        invoice = self.client.get(f"{url}invoice/")
        self.assertIn("Assam <100 g>", b"".join(invoice.streaming_content).decode())

    def test_a_declined_order_says_so(self) -> None:
        self.check_out(Order.Card.DECLINED, assam=1)
        self.work()
        page = self.client.get(Order.objects.get().get_absolute_url())
        self.assertContains(page, "declined; nothing was charged")
        self.assertNotContains(page, 'http-equiv="refresh"')

    def test_an_order_that_waits_for_a_decision_says_how_to_decide(self) -> None:
        self.check_out(assam=1)
        with mock.patch("shop.payments.charge", side_effect=TimeoutError):
            self.work()
        order, entry = Order.objects.get(), RunJournalEntry.objects.get(status=EntryStatus.IN_DOUBT)
        page = self.client.get(order.get_absolute_url())
        self.assertContains(page, "Waiting for a decision.")
        self.assertContains(page, f"manage.py gateway --lookup {order.number}")
        self.assertContains(page, f"manage.py gnlqueue resolve {entry.pk}")
        self.assertNotContains(page, 'http-equiv="refresh"')

    def test_a_worker_that_is_there_is_seen(self) -> None:
        order = self.order(assam=1)
        job = queue.claim("checkout", worker_id="w")
        self.assertContains(self.client.get(order.get_absolute_url()), "No worker is running")
        WorkerProcess.objects.create(
            worker_id="w", hostname="h", pid=1, queues=["checkout"], concurrency=1, started_at=job.last_attempted_at,
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
    def test_an_invoice_is_the_same_however_often_the_task_runs(self) -> None:
        order = self.order(assam=2)
        numbers = {tasks.make_invoice(order.pk) for _ in range(2)}
        invoice = Invoice.objects.get()
        self.assertEqual(numbers, {invoice.number})
        self.assertIn("2 x Assam <100 g>", invoice.path.read_text())
        self.assertEqual([invoice.path], list(invoice.path.parent.iterdir()))

    def test_the_stock_report_counts_what_was_sold(self) -> None:
        self.order(assam=1)
        self.order(assam=2)
        self.order(Order.Card.DECLINED, assam=1)
        self.work()
        result = tasks.stock_report()
        with (self.directory / "reports" / "stock.csv").open() as report:
            rows = list(csv.DictReader(report))
        self.assertEqual(result, {"orders": 2, "revenue": euros(2670)})
        self.assertEqual([row["sold"] for row in rows], ["3", "0"])
        self.assertEqual([row["in_stock"] for row in rows], ["2", "1"])
