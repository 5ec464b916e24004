"""`manage.py runworker`: run jobs until told to stop."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnlqueue.management.flags import WRONG
from gnlqueue.management.running import add_worker_arguments, run_worker


class Command(BaseCommand):
    help = "Run background jobs until SIGTERM or Ctrl-C."
    requires_system_checks = []  # a worker restarts often; `manage.py check --database …` is for deploys

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_worker_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            status = run_worker(options)
        except WRONG as error:
            raise CommandError(str(error)) from error
        if status:
            sys.exit(status)
