"""Whether more worker processes are faster, or at least not slower: a drain with 1 to 32 of them.

    python benchmarks/processes.py --processes 1 2 4 8 16 32

The queue is paused until all of them are up, so that their start does not count.
"""

import helper


def main() -> None:
    parser = helper.parser(__doc__, helper.POSTGRESQL, helper.MYSQL, helper.SQLITE)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--jobs", type=int, default=60_000)
    options = parser.parse_args()
    with helper.project(options.database):
        from gnlqueue import queue
        from gnlqueue.models import WorkerProcess

        for processes in options.processes:
            helper.empty()
            queue.pause("default")
            helper.fill(options.jobs)
            helper.refresh()

            def begin(processes: int = processes) -> None:
                helper.until(lambda: WorkerProcess.objects.count() == processes, WorkerProcess.objects.count)
                queue.resume("default")

            command = helper.runworker("--processes", str(processes), "--no-backoff")
            helper.say(f"{processes} processes", **helper.drain(options.jobs, command, ready=begin))


if __name__ == "__main__":
    main()
