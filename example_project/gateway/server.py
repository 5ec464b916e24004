"""The gateway's HTTP interface, on this machine only.

POST /charges            {"order": "order-17", "card": "card-that-pays", "cents": 890}
                         201 and the charge, or 402 and {"error": …} if the card is declined
GET  /charges/order-17   200 and what the ledger has of this order, as a list
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateway.ledger import CHARGED, DECLINED, Ledger

#: Cards for trying out, as real gateways have them. Every other card pays, and takes the usual time.
DECLINED_CARDS = {"card-without-money": "insufficient funds"}
SLOW_CARDS = {"card-of-a-slow-bank": 6.0}  # seconds
LONGEST_REQUEST = 10_000  # bytes


class Gateway(ThreadingHTTPServer):
    """The server; `latency` is how many seconds a charge takes on average. Port 0 takes any free one."""

    daemon_threads = False  # when it is told to stop, it finishes what it has accepted
    request_queue_size = 100

    def __init__(self, port: int, ledger: Ledger, latency: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.ledger = ledger
        self.latency = latency

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        charge = self._charge_asked_for()
        if charge is None:
            self._answer(400, {"error": "POST order, card and cents to /charges, as JSON."})
            return
        # Now the customer's bank is asked. Even if whoever posted this dies now, the charge will happen; and until it
        # has, a lookup finds nothing. So "it is not there" does not mean that it is not on its way.
        latency = SLOW_CARDS.get(charge["card"], self.server.latency * random.uniform(0.5, 1.5))
        time.sleep(0.7 * latency)
        reason = DECLINED_CARDS.get(charge["card"])
        outcome = DECLINED if reason else CHARGED
        record = self.server.ledger.add(charge["order"], charge["cents"], outcome)
        self.log_message("%s %s, %.2f EUR", outcome, charge["order"], charge["cents"] / 100)
        time.sleep(0.3 * latency)  # now it has happened, and whoever posted it does not know yet
        if reason:
            self._answer(402, {"error": reason})
        else:
            self._answer(201, record)

    def do_GET(self) -> None:
        prefix, _, order = self.path.rpartition("/")
        if prefix == "/charges":
            self._answer(200, self.server.ledger.of(order))
        else:
            self._answer(404, {"error": "Look up /charges/ORDER."})

    def log_request(self, *args: Any) -> None:
        """Say nothing of requests as such; what they do is worth a line."""

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S}  {format % args}\n")

    def _charge_asked_for(self) -> dict[str, Any] | None:
        try:
            length = min(int(self.headers.get("Content-Length", 0)), LONGEST_REQUEST)
            asked = json.loads(self.rfile.read(length))
            charge = {"order": str(asked["order"]), "card": str(asked["card"]), "cents": int(asked["cents"])}
        except (ValueError, KeyError, TypeError):
            return None
        return charge if self.path == "/charges" and charge["cents"] > 0 else None

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        with suppress(ConnectionError):  # whoever asked is gone
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
