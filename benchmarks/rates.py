"""How fast jobs are enqueued, how soon an idle worker starts one, and how fast one and more processes drain a queue.

    python benchmarks/rates.py --database sqlite: --processes 1 4 --beside huey
    python benchmarks/rates.py --database mysql://root@127.0.0.1:3306/mysql --beside dj-queue

Each rate stands with its ratio to Y, a bare loop on the same database just before and after; see `helper.yardstick`.
"""

import random
import time

import beside
import helper


def enqueueing(queue: beside.Queue, count: int) -> None:
    """Measure enqueues one by one."""
    queue.empty()
    queue.enqueue(0)
    yard = helper.yardstick()
    began = time.perf_counter()
    for number in range(count):
        queue.enqueue(number)
    rate = count / (time.perf_counter() - began)
    helper.say(f"{queue.name}: enqueue", a_second=rate, Y=rate / ((yard + helper.yardstick()) / 2))


def enqueueing_many(count: int) -> None:
    """Measure `enqueue_many`, which the others do not have."""
    helper.empty()
    helper.fill(1)
    began = time.perf_counter()
    helper.fill(count)
    helper.say("gnlqueue: enqueue_many", a_second=count / (time.perf_counter() - began))


def picking_up(queue: beside.Queue, count: int) -> None:
    """Measure the time from the return of an enqueue to the start of its task, on an idle worker."""
    queue.empty()
    helper.forget_marks()
    command, times = queue.worker(1)
    with helper.workers(command, times):
        queue.enqueue(0)
        helper.until(lambda: bool(helper.marked()))
        time.sleep(2)
        returned = {}
        for number in range(1, count + 1):
            time.sleep(0.2 + random.uniform(-0.04, 0.04))  # so that the phases of polling are all met
            queue.enqueue(number)
            returned[number] = time.monotonic_ns()
        helper.until(lambda: helper.marked() > count)
    waits = [(at - returned[number]) / 1e6 for number, at, _ in helper.marks() if number in returned]
    helper.say(f"{queue.name}: pick-up, ms", p50=helper.median(waits), p99=helper.percentile(waits, 0.99))


def main() -> None:
    parser = helper.parser(__doc__, helper.SQLITE, helper.MYSQL, helper.POSTGRESQL)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--jobs", type=int, default=20_000, help="of a drain; a tenth of it for the others")
    parser.add_argument("--beside", choices=beside.QUEUES, help="measure this one too, in the same run")
    parser.add_argument("--rounds", type=int, default=1, help="one queue after the other, so often")
    options = parser.parse_args()
    beside.use(options.beside)
    with helper.project(options.database):
        queues = [beside.ours(), *([beside.QUEUES[options.beside]()] if options.beside else [])]
        for _ in range(options.rounds):
            for queue in queues:
                ours = queue.name == "gnlqueue"
                enqueueing(queue, options.jobs // 10)
                if ours:
                    enqueueing_many(options.jobs)
                picking_up(queue, 50)
                for processes in options.processes:
                    count = options.jobs if ours else options.jobs // 10
                    queue.empty()
                    queue.fill(count)
                    rate = helper.drain(count, *queue.worker(processes), to_the_end=ours)
                    helper.say(f"{queue.name}: drain, {processes} processes", **rate)


if __name__ == "__main__":
    main()
