"""`manage.py demo`: 120 orders, two machines that work on them, a gateway, and somebody who pulls the plugs."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from itertools import islice
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError
from django.db import connection

from shop.demo import decisions, fresh_start
from shop.demo.gateway import GatewayProcess
from shop.demo.killer import Killer
from shop.demo.machines import Casualties, Machine
from shop.demo.next_steps import next_steps
from shop.demo.results import Progress, Results
from shop.demo.screen import Screen, bar, counted, shown
from shop.tasks import stock_report

GIVE_UP_AFTER = 90.0  # seconds of work; some 15 are enough
LOOK_EVERY = 0.1  # seconds
AT_FIRST, THEN = 40, 2  # orders that are placed before anybody works, and then at each look


class Command(BaseCommand):
    help = "Place 120 orders, start workers, kill some of them with SIGKILL, and count what came out."

    def handle(self, *args: Any, **options: Any) -> None:
        self.screen = Screen(self.stdout, self.style)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that what is started is stopped
        try:
            self._fill_the_shop()
            with ExitStack() as stack:
                gateway = self._start_gateway(stack)
                machines = [self._start_machine(name, gateway, stack) for name in ("A", "B")]
                # First: Ctrl-C in the middle of a BEGIN leaves SQLite's write lock with us, and they need it to stop.
                stack.callback(connection.close)
                self._work(machines)
                results = self._show_results()
                if results.waiting and self.screen.is_interactive:
                    decisions.ask(self.screen)  # while a machine is still there to go on
                    results = self._show_results()
        except KeyboardInterrupt:
            self.screen.say("stopped", "and so is every process that the demo started", style="WARNING")
            sys.exit(128 + signal.SIGINT)
        self.screen.plain("What to try next:")
        for line in next_steps():
            self.screen.plain(f"  {line}")
        if complaint := results.complaint():
            raise CommandError(
                f"This should not have happened: {complaint}. {shown(settings.VAR_DIR / '*.log')} say why."
            )

    def _fill_the_shop(self) -> None:
        fresh_start.empty_everything()
        fresh_start.create_admin()
        fresh_start.fill_shelves()
        name = connection.settings_dict["NAME"]
        version = ".".join(map(str, connection.get_database_version()))
        place = shown(name) if connection.vendor == "sqlite" else name
        self.screen.say("database", f"{place}, new, on {connection.display_name} {version}")
        self.orders = fresh_start.count_orders()
        self.screen.say("orders", f"{self.orders}, each placed in one transaction with its job:")
        self.screen.say("", "reserve, charge, tell the warehouse, sleep, send the receipt")
        self._customers = fresh_start.place_orders()
        self._place(AT_FIRST)

    def _place(self, number: int) -> bool:
        """Place so many more orders; tell whether there were any."""
        return bool(list(islice(self._customers, number)))

    def _start_gateway(self, stack: ExitStack) -> GatewayProcess:
        gateway = GatewayProcess()
        stack.callback(gateway.stop)
        self.screen.say("gateway", f"PID {gateway.pid}, on {gateway.url}; it takes no idempotency keys")
        return gateway

    def _start_machine(self, name: str, gateway: GatewayProcess, stack: ExitStack) -> Machine:
        machine = Machine(name, gateway.url)
        stack.callback(machine.stop)
        self.screen.say(machine.machine, f"PID {machine.pid}, 2 worker processes, log {shown(machine.log)}")
        return machine

    def _work(self, machines: list[Machine]) -> None:
        """Let customers come, pull plugs, and wait until every job is done or asks."""
        deadline = time.monotonic() + GIVE_UP_AFTER
        killer = Killer(machines)
        customers = True
        while True:
            progress = Progress.now()
            if not (customers or progress.unfinished):
                return
            if time.monotonic() > deadline:
                left = counted(progress.unfinished, "job")
                self.screen.say("giving up", f"{left} not done after {GIVE_UP_AFTER:.0f} s", style="ERROR")
                return
            self.screen.progress(
                f"orders {bar(progress.settled, self.orders)}  receipts {progress.receipts:>3}  "
                f"running {progress.in_progress:>2}  asking {progress.waiting}"
            )
            if customers and not self._place(THEN):
                customers = False
                stock_report.enqueue()
            if killed := killer.kill(progress.settled / self.orders):
                self._say_killed(killed)
            for rescued in killer.rescued():
                self._say_rescued(rescued)
            for machine in killer.left:
                if not machine.is_running():
                    raise CommandError(f"The {machine.machine} ended by itself; {shown(machine.log)} says why.")
            time.sleep(LOOK_EVERY)

    def _show_results(self) -> Results:
        results = Results.now()
        self.screen.plain()
        self.screen.table(results.rows())
        self.screen.plain()
        return results

    def _say_killed(self, killed: Casualties) -> None:
        self.screen.say("kill -9", f"{killed.who}, in the middle of {counted(killed.jobs, 'job')}:", style="ERROR")
        for what, orders in sorted(killed.busy.items()):
            self.screen.say("", f"{what:<17} {', '.join(orders)}")
        self.screen.say("", killed.outlook)

    def _say_rescued(self, killed: Casualties) -> None:
        took = time.monotonic() - killed.at
        self.screen.say("rescued", f"{counted(killed.jobs, 'job')} after {took:.1f} s", style="SUCCESS")
