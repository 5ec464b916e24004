"""Whether a drain stays as fast beside finished, waiting and future jobs, and a claim as cheap under a held snapshot.

    python benchmarks/crowded.py                                        # 300,000 finished, 200,000 waiting, ...
    python benchmarks/crowded.py --cases finished --finished 10000000   # takes minutes, and some 5 GB

PostgreSQL only. Drains beside a crowd and on an empty table take turns, either coming first in half of the pairs; the
ratio is that of their medians.
"""

from contextlib import contextmanager
from datetime import timedelta

import helper


def finished(options) -> None:
    """Add jobs that are done, over the last month."""
    helper.fill(1)
    helper.copies(options.finished, status="'done'", finished_at="now() - g * interval '30 days' / 10000000")


def waiting(options) -> None:
    """Add jobs that come after those that are measured."""
    helper.fill(1, priority=-1)
    helper.copies(options.waiting)


def future(options) -> None:
    """Add jobs of the highest priority that are due in a month."""
    helper.fill(1, priority=100, run_after=timedelta(days=30))
    helper.copies(options.future)


CROWDS = {"finished": finished, "waiting": waiting, "future": future}


def drained(count: int) -> dict[str, float]:
    """Drain so many jobs."""
    helper.fill(count)
    helper.refresh()
    return helper.drain(count)


def beside(crowd: str, options) -> None:
    """Measure drains in turn with and without a crowd, and the pages that a claim reads, which is free of noise."""
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    buffers: dict[bool, float] = {}
    for number in range(options.rounds):
        first = number % 2 == 1
        for is_crowded in (first, not first):
            helper.empty()
            if is_crowded:
                CROWDS[crowd](options)
            helper.refresh()
            buffers[is_crowded] = buffers_of_a_claim()
            runs[is_crowded].append(drained(options.jobs))
    rates = {is_crowded: helper.median([run["a_second"] for run in of_them]) for is_crowded, of_them in runs.items()}
    cpu = {is_crowded: helper.median([run["worker_CPU_ms"] for run in of_them]) for is_crowded, of_them in runs.items()}
    helper.say(
        f"beside {getattr(options, crowd):,} {crowd}",
        a_second_alone=rates[False],
        crowded=rates[True],
        ratio=rates[True] / rates[False],
        worker_CPU_ms_alone=cpu[False],
        crowded_CPU_ms=cpu[True],
        buffers_a_claim_alone=buffers[False],
        crowded_buffers=buffers[True],
    )


@contextmanager
def snapshot():
    """Hold a snapshot open, as a long report does: no row that dies from now on can be removed."""
    from django.db import connections

    other = connections["default"].copy()
    with other.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM gnlqueue_job")
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")
    other.close()


def buffers_of_a_claim(claims: int = 100) -> float:
    """Return how many pages of the jobs' table and its indexes a worker's claim of one job reads."""
    from gnlqueue.worker.floors import Floors
    from gnlqueue.worker.holdings import Holdings
    from gnlqueue.worker.intake import Intake
    from gnlqueue.worker.table import LeaseTable

    helper.fill(claims + 1, priority=-1)
    helper.refresh()
    holdings = Holdings(LeaseTable(claims + 1))
    options = {"worker_id": "benchmark", "database": "default", "lease": 60, "concurrency": 1, "prefetches": False}
    intake = Intake(["default"], holdings, Floors(["default"]), **options)
    assert intake.claim(1)
    before = _buffers()
    for _ in range(claims):
        assert intake.claim(1)
    return (_buffers() - before) / claims


def _buffers() -> int:
    helper.sql("SELECT pg_stat_force_next_flush()")
    helper.sql("SELECT pg_stat_clear_snapshot()")
    counts = "heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit"
    return int(helper.sql(f"SELECT {counts} FROM pg_statio_user_tables WHERE relname = 'gnlqueue_job'")[0][0])


def held(options) -> None:
    """Let jobs pass while a snapshot is held, and see what a claim costs before and after."""
    helper.empty()
    before = buffers_of_a_claim()
    helper.empty()
    with snapshot():
        rate = drained(options.passing)["a_second"]
        after = buffers_of_a_claim()
    helper.say(
        f"{options.passing:,} jobs under a held snapshot",
        buffers_a_claim_before=before,
        after=after,
        ratio=after / before,
        drained_a_second=rate,
    )


def main() -> None:
    parser = helper.parser(__doc__, helper.POSTGRESQL)
    cases = [*CROWDS, "held"]
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases)
    parser.add_argument("--finished", type=int, default=300_000)
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--future", type=int, default=500_000)
    parser.add_argument("--passing", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=60_000, help="of each drain")
    parser.add_argument("--rounds", type=int, default=6, help="drains of each kind")
    options = parser.parse_args()
    with helper.project(options.database):
        for case in options.cases:
            held(options) if case == "held" else beside(case, options)


if __name__ == "__main__":
    main()
