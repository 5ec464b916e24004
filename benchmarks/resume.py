"""How long a run of many steps takes to get back to where it was: the second attempt replays them from the journal.

python benchmarks/resume.py --steps 10000
"""

import helper


def main() -> None:
    parser = helper.parser(__doc__, helper.POSTGRESQL, helper.MYSQL, helper.SQLITE)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    with helper.project(options.database):
        from noops.tasks import many_steps

        job = many_steps.enqueue(options.steps)
        with helper.workers(helper.runworker()):
            helper.until(lambda: helper.waiting() == 0, lambda: job.entries.count())
        # The task marks when each attempt began, and when it was through.
        first, failed, second, through = (at for _, at, _ in helper.marks())
        helper.say(
            f"{options.steps:,} steps",
            taken_in_seconds=(failed - first) / 1e9,
            replayed_in_seconds=(through - second) / 1e9,
        )


if __name__ == "__main__":
    main()
