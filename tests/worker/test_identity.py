"""A worker's id: new each time, whatever it begins with, and short enough for all that it is written to."""

import os
import re

import pytest

from gnlqueue.worker.identity import new_worker_id
from gnlqueue.worker.loop import Worker
from gnlqueue.worker.table import LeaseTable


@pytest.mark.parametrize(
    ("prefix", "begins"),
    [
        pytest.param("blue", "blue", id="short"),
        pytest.param("x" * 100, "x" * 60, id="long"),
        pytest.param("ж" * 58, "ж" * 30, id="two bytes each"),
        pytest.param("x" + "ж" * 58, "x" + "ж" * 29, id="cut in a character"),
        pytest.param("a\udcffb", "ab", id="no UTF-8"),
    ],
)
def test_prefix_is_cut_to_what_a_table_takes(prefix: str, begins: str) -> None:
    worker_id = new_worker_id(prefix)
    table = LeaseTable(1)
    table.assign(worker_id)

    assert re.fullmatch(rf"{begins}-{os.getpid()}-[0-9a-f]{{8}}", worker_id)
    assert table.worker_id == worker_id


def test_one_queue_is_a_list_of_one(django_db_setup: None) -> None:
    """A text is a sequence of letters, each of which could be a queue: the worker would serve those."""
    with pytest.raises(TypeError, match=r"queues must be a list of names, not 'mails'; write \['mails'\]"):
        Worker("mails")


def test_two_workers_of_one_name_have_two_ids(django_db_setup: None) -> None:
    """What stands in a worker's name is given back by it: two must not take each other's jobs."""
    ids = [Worker(worker_id="blue").worker_id for _ in range(2)]

    assert ids[0] != ids[1]
    assert all(each.startswith("blue-") for each in ids)
