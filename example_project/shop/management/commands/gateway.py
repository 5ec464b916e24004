"""`manage.py gateway`: run the payment gateway, or look into its ledger."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management import BaseCommand, CommandError
from gateway.ledger import Ledger
from gateway.server import Gateway

from shop.models import euros


class Command(BaseCommand):
    help = "Run the payment gateway, or look up an order in its ledger (as if in the gateway's own dashboard)."
    requires_system_checks = []  # it is another company's, and has nothing to do with the shop's settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--lookup", metavar="ORDER", help="only show what the ledger has on this order, such as order-17"
        )
        parser.add_argument(
            "--port", type=int, default=urlsplit(settings.GATEWAY_URL).port, help="0: any (default: %(default)s)"
        )
        parser.add_argument(
            "--latency", type=float, default=0.5, help="seconds that a charge takes (default: %(default)s)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        ledger = Ledger(Path(settings.GATEWAY_LEDGER))
        if options["lookup"]:
            self._show(ledger, options["lookup"])
        else:
            self._serve(ledger, options["port"], options["latency"])

    def _show(self, ledger: Ledger, order: str) -> None:
        records = ledger.of(order)
        for record in records:
            self.stdout.write(f"{record['at']}  {record['outcome']}  {euros(record['cents'])}  {record['id']}")
        if not records:
            self.stdout.write(f"The ledger has nothing on {order}.")

    def _serve(self, ledger: Ledger, port: int, latency: float) -> None:
        try:
            server = Gateway(port, ledger, latency)
        except OSError as error:
            raise CommandError(f"The gateway cannot listen on port {port}: {error.strerror}.") from None
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        # The one line on stdout; what is charged is logged on stderr.
        self.stdout.write(f"The payment gateway listens on {server.url}")
        self.stdout.flush()
        with server:  # which waits for the charges that it has accepted
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                self.stderr.write("stopped")
