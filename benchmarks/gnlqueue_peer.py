"""gnlqueue's adapter for a harness that measures many queues in the same way; see README.md."""

import os

from common import Peer as Base
from common import clone, django_setup, mark, scalar

SETTINGS = {
    "default": {"conn_max_age": 0},
    "best": {"conn_max_age": None},
    "async": {"conn_max_age": None},
}
django_setup(["gnlqueue"], conn_max_age=SETTINGS[os.environ.get("BENCH_CONFIG", "default")]["conn_max_age"])

from django.core.management import call_command  # noqa: E402

import gnlqueue  # noqa: E402


@gnlqueue.task
def noop(n):
    mark(n)


@gnlqueue.task
async def async_noop(n):
    mark(n)


class Peer(Base):
    package = "gnlqueue"
    configs = SETTINGS
    notes = {
        "default": "manage.py runworker, as shipped (4 threads, CONN_MAX_AGE 0)",
        "best": "--concurrency 1 --verbosity 0, sync tasks",
        "async": "--concurrency 100 --verbosity 0, async tasks",
    }
    flags = {
        "default": {},
        "best": {"concurrency": 1, "verbosity": 0},
        "async": {"concurrency": 100, "verbosity": 0},
    }
    tables = ["gnlqueue_job"]

    @property
    def task(self):
        return async_noop if self.config == "async" else noop

    def setup(self):
        call_command("migrate", verbosity=0)

    def enqueue(self, n):
        self.task.enqueue(n)

    def enqueue_many(self, ns):
        gnlqueue.enqueue_many(self.task.bind(n) for n in ns)

    def work(self):
        call_command("runworker", **self.flags[self.config])

    def pending(self):
        return scalar("SELECT count(*) FROM gnlqueue_job WHERE finished_at IS NULL")

    def history(self, n):
        clone(
            "gnlqueue_job",
            n,
            "status = 'done'",
            id="nextval(pg_get_serial_sequence('gnlqueue_job', 'id'))",
            finished_at="s.finished_at - g * interval '1 second'",
        )
