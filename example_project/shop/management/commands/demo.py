"""`manage.py demo`: 300 orders, two machines that work for them, and somebody who pulls the plugs."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError
from django.db import connection

from shop.demo import fresh_start
from shop.demo.machines import Casualties, Machine
from shop.demo.next_steps import next_steps
from shop.demo.results import Progress, Results
from shop.demo.screen import Screen, bar, counted, shown
from shop.tasks import stock_report

GIVE_UP_AFTER = 60.0  # seconds of work; some 10 are enough
LOOK_EVERY = 0.1  # seconds
#: The share of the receipts that are out when a worker is killed, and when a whole machine is.
KILL_WORKER_AT, KILL_MACHINE_AT = 0.2, 0.5


class Command(BaseCommand):
    help = "Place 300 orders, start workers, kill some of them with SIGKILL, and count what came out."

    def handle(self, *args: Any, **options: Any) -> None:
        self.screen = Screen(self.stdout, self.style)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that what is started is stopped
        try:
            self._fill_the_shop()
            with ExitStack() as stack:
                machines = [self._start(name, stack) for name in ("A", "B")]
                self._work(*machines)
        except KeyboardInterrupt:
            self.screen.say("stopped", "and so is every process that the demo started", style="WARNING")
            sys.exit(128 + signal.SIGINT)
        results = Results.now()
        self.screen.plain()
        self.screen.table(results.rows())
        self.screen.plain()
        self.screen.plain("What to try next:")
        for line in next_steps(results):
            self.screen.plain(f"  {line}")
        if results.receipts < results.orders or results.dead:
            logs = shown(settings.VAR_DIR / "worker-*.log")
            raise CommandError(f"Not every order has its receipt, or a job is dead; {logs} say why.")

    def _fill_the_shop(self) -> None:
        fresh_start.empty_everything()
        fresh_start.create_admin()
        fresh_start.fill_shelves()
        name = connection.settings_dict["NAME"]
        version = ".".join(map(str, connection.get_database_version()))
        place = shown(name) if connection.vendor == "sqlite" else name
        self.screen.say("database", f"{place}, new, on {connection.display_name} {version}")
        began = time.monotonic()
        self.orders = 0
        for _ in fresh_start.place_orders():
            self.orders += 1
            self.screen.progress(f"placing orders {self.orders}")
        stock_report.enqueue()
        took = time.monotonic() - began
        self.screen.say("orders", f"{self.orders} placed in {took:.1f} s, each in one transaction with its two jobs:")
        self.screen.say("", "mail the receipt, write the invoice")

    def _start(self, name: str, stack: ExitStack) -> Machine:
        machine = Machine(name)
        stack.callback(machine.stop)
        self.screen.say(
            f"machine {name}",
            f"PID {machine.pid}, 2 worker processes, log {shown(machine.log)}",
        )
        return machine

    def _work(self, first: Machine, second: Machine) -> None:
        """Kill one worker of the first machine, then all of the second, and wait until every job is done."""
        deadline = time.monotonic() + GIVE_UP_AFTER
        worker: Casualties | None = None
        machine: Casualties | None = None
        waiting: list[Casualties] = []
        while (progress := Progress.now()).unfinished and time.monotonic() < deadline:
            self.screen.progress(
                f"receipts {bar(progress.receipts, self.orders)}  invoices {bar(progress.invoices, self.orders)}  "
                f"running {progress.in_progress}"
            )
            for casualties in [each for each in waiting if not each.still_hold()]:
                waiting.remove(casualties)
                self._say_recovered(casualties)
            if worker is None and progress.receipts >= KILL_WORKER_AT * self.orders:
                worker = first.kill_a_worker()
                if worker:
                    waiting.append(worker)
                    self._say_killed(worker)
            elif machine is None and not waiting and progress.receipts >= KILL_MACHINE_AT * self.orders:
                machine = second.kill_all()
                if machine:
                    waiting.append(machine)
                    self._say_killed(machine)
            if not first.is_running():
                raise CommandError(f"Machine A ended by itself; {shown(first.log)} says why.")
            time.sleep(LOOK_EVERY)
        if progress.unfinished:
            left = counted(progress.unfinished, "job")
            self.screen.say("giving up", f"{left} not done after {GIVE_UP_AFTER:.0f} s", style="ERROR")

    def _say_killed(self, casualties: Casualties) -> None:
        jobs = casualties.jobs
        self.screen.say("kill -9", f"{casualties.who}, in the middle of {counted(len(jobs), 'job')}:", style="ERROR")
        for task in sorted({job.task_name for job in jobs}):
            self.screen.say("", f"{task} {', '.join(str(job.pk) for job in jobs if job.task_name == task)}")
        self.screen.say("", casualties.outlook)

    def _say_recovered(self, casualties: Casualties) -> None:
        took = time.monotonic() - casualties.at
        self.screen.say("rescued", f"{counted(len(casualties.jobs), 'job')} after {took:.1f} s", style="SUCCESS")
