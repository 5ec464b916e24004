"""The payment gateway, as a process of its own. Nobody kills this one: it is another company's."""

from __future__ import annotations

import subprocess

from django.core.management import CommandError

from shop.demo.processes import Process
from shop.demo.screen import shown

LATENCY = 0.4  # seconds; long enough to be killed in the middle of a charge


class GatewayProcess(Process):
    """`manage.py gateway` on a free port; `url` is where."""

    def __init__(self) -> None:
        words = ("gateway", "--port=0", f"--latency={LATENCY}")
        super().__init__("gateway", *words, shutdown=5, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line:
            self.stop()
            raise CommandError(f"The payment gateway did not start; {shown(self.log)} says why.")
        self.url = line.split()[-1]
