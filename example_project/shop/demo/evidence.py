"""What happened in the world outside, whatever the database says: counted at the source."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from django.conf import settings
from gateway.ledger import CHARGED, Ledger

_MESSAGE_ID = re.compile(rb"^Message-ID: (<[^>]+>)", re.MULTILINE)


def ledger() -> Ledger:
    """Return the gateway's ledger."""
    return Ledger(Path(settings.GATEWAY_LEDGER))


def charges() -> Counter[str]:
    """Count how often each order was charged, by its number."""
    return Counter(record["order"] for record in ledger() if record["outcome"] == CHARGED)


def mails() -> Counter[str]:
    """Count the mails by their Message-ID."""
    files = (path.read_bytes() for path in Path(settings.MAIL_DIR).glob("*"))
    return Counter(found.decode() for file in files for found in _MESSAGE_ID.findall(file))
