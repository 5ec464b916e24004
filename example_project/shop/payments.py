"""The shop's side of the payment gateway."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from gnlqueue import Happened, NotHappened, Unknown
from gnlqueue.answers import Answer

TIMEOUT = 10.0  # seconds; after them a charge may have happened, or may yet happen


class CardDeclined(Exception):
    """The gateway's definite answer: nothing was charged, and nothing will be."""


class GatewayTrouble(Exception):
    """Some other answer, which leaves open whether anything was charged."""


def charge(order: str, card: str, cents: int) -> str:
    """Charge a card, and return the charge's id. Called twice it charges twice: the gateway takes no keys.

    Raises `ConnectionRefusedError` if the gateway was not reached, `CardDeclined`, and much else after which nobody
    knows.
    """
    status, answer = _call("POST", "/charges", {"order": order, "card": card, "cents": cents})
    if status == 402:
        raise CardDeclined(f"the card was declined, {answer['error']}")
    if status != 201:
        raise GatewayTrouble(f"The gateway answered {status}: {answer}")
    return str(answer["id"])


def find_charge(order: str, card: str, cents: int) -> Answer:
    """Ask the gateway what became of `charge(order, card, cents)`, to which no answer has come back.

    What is in its ledger has happened, and a call that was declined has arrived, so it is not on its way any more. But
    "there is nothing" is no proof that nothing will be: the call may be waiting for the customer's bank at this moment.
    If we said `NotHappened` then, the customer would pay twice.
    """
    status, records = _call("GET", f"/charges/{order}")
    if status != 200:
        return Unknown()
    for record in records:
        if record["outcome"] == "charged":
            return Happened(record["id"])
    return NotHappened() if records else Unknown()


def _call(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    address = urlsplit(settings.GATEWAY_URL)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
