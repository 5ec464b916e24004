"""huey's task, in a file beside the tasks' marks."""

import os
from pathlib import Path

from huey import SqliteHuey
from noops.marks import FILE, mark

huey = SqliteHuey("benchmark", filename=str(Path(os.environ[FILE]).with_name("huey.db")), fsync=True)


@huey.task()
def noop(number: int) -> None:
    mark(number)
