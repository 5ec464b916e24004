"""What a worker costs that has nothing to do, and how much memory its processes take after many jobs.

python benchmarks/idle.py --database postgresql://postgres@127.0.0.1:5432/postgres --jobs 100000
"""

import time

import helper


def queries() -> int | None:
    """How many transactions the database has seen (PostgreSQL); each poll is one."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return None
    helper.sql("SELECT pg_stat_clear_snapshot()")
    return int(
        helper.sql("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [helper.NAME])[0][0]
    )


def main() -> None:
    parser = helper.parser(__doc__, helper.POSTGRESQL, helper.MYSQL, helper.SQLITE)
    parser.add_argument("--jobs", type=int, default=100_000, help="to run before the memory is read again")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=20, help="of idleness")
    options = parser.parse_args()
    with helper.project(options.database):
        for processes in options.processes:
            helper.empty()
            helper.forget_marks()
            with helper.workers(helper.runworker("--processes", str(processes))) as pids:
                helper.fill(1)
                helper.until(lambda: bool(helper.marked()))
                time.sleep(15)  # until it polls as rarely as it ever does
                cpu, seen = helper.cpu_seconds(pids), queries()
                time.sleep(options.seconds)
                used = (helper.cpu_seconds(pids) - cpu) / options.seconds * 100
                asked = None if seen is None else (queries() - seen - 2) / options.seconds
                helper.say(f"{processes} processes, idle", cpu_percent=used, queries_a_second=asked or "-")
                at_first = helper.memory(pids)
                for _ in range(2):
                    helper.fill(options.jobs // 2)
                    helper.until(lambda: helper.waiting() == 0, helper.waiting, every=0.5)
                    helper.say(f"{processes} processes, MiB", idle=at_first, after_jobs=helper.memory(pids))


if __name__ == "__main__":
    main()
