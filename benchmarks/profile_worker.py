"""Where a job's time goes: one worker in this process, under cProfile, drains a queue.

    python benchmarks/profile_worker.py --jobs 20000 --task async_noop

cProfile makes calls dearer than they are, and its times include waiting: look at the order. For the true shares sample
a real worker, for example with `py-spy record --gil --subprocesses`.
"""

import cProfile
import pstats
import threading

import helper


def stop_at_the_end(worker, jobs: int) -> None:
    """Stop the worker when all jobs have begun. A worker with `drain=True` would claim no more than it can begin."""
    helper.until(lambda: helper.marked() >= jobs, helper.marked, every=0.5)
    worker.stop()


def main() -> None:
    parser = helper.parser(__doc__, helper.POSTGRESQL, helper.MYSQL, helper.SQLITE)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--task", default="noop", choices=["noop", "async_noop"])
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--by", default="tottime", choices=["tottime", "cumtime"])
    options = parser.parse_args()
    with helper.project(options.database):
        from gnlqueue.worker import Worker

        helper.fill(options.jobs, options.task)
        worker = Worker(heartbeat=False)
        threading.Thread(target=stop_at_the_end, args=[worker, options.jobs]).start()
        profile = cProfile.Profile()
        profile.runcall(worker.run)
        pstats.Stats(profile).sort_stats(options.by).print_stats(options.lines)


if __name__ == "__main__":
    main()
