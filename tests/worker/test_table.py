"""The table in shared memory through which a worker and its heartbeat talk."""

import os
from typing import Any

import pytest

from gnlqueue.worker.holdings import Holdings
from gnlqueue.worker.table import LeaseTable, Owner, Stage


class Claimed:
    """As much of a claimed job as a table asks for."""

    def __init__(self, id: int, lease_token: int = 1) -> None:
        self.id = id
        self.lease_token = lease_token
        self.pair = id, lease_token
        self.is_suspect = False


def job(id: int, token: int = 1) -> Any:
    return Claimed(id, token)


def pairs(table: LeaseTable) -> set[tuple[int, int]]:
    return {held.pair for held in table}


@pytest.fixture
def table() -> LeaseTable:
    made = LeaseTable(3)
    made.assign("host-1-ab")
    return made


def test_what_is_held_is_published(table: LeaseTable) -> None:
    table.hold(job(7, 3))
    table.hold(job(2**60, 2**50))
    table.advance(job(7, 3), Stage.BEGUN)

    assert [(held.pair, held.stage) for held in table] == [((7, 3), Stage.BEGUN), ((2**60, 2**50), Stage.HELD)]
    assert table.worker_id == "host-1-ab"
    table.drop(job(7, 3))
    assert pairs(table) == {(2**60, 2**50)}


def test_a_job_never_goes_back(table: LeaseTable) -> None:
    """Its thread and the loop may both have something to say of it."""
    table.hold(job(7))
    table.advance(job(7), Stage.OVERDUE)
    table.advance(job(7), Stage.ENDED)
    assert [held.stage for held in table] == [Stage.OVERDUE]

    table.drop(job(7))
    table.hold(job(7, 2))
    assert [held.stage for held in table] == [Stage.HELD]


def test_places_are_used_again(table: LeaseTable) -> None:
    for number in range(100):
        table.hold(job(number))
        table.hold(job(1000 + number))
        table.drop(job(number))
        table.drop(job(1000 + number))
    assert pairs(table) == set()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # pytest's; the child does no more than this
def test_another_process_sees_what_is_written(table: LeaseTable) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        table.hold(job(5, 2))
        table.owner = Owner.STOPPED
        os.write(writing, b"x")
        os._exit(0)
    os.read(reading, 1)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)

    assert pairs(table) == {(5, 2)}
    assert table.owner is Owner.STOPPED


def test_cleared_table_is_free_for_another_worker(table: LeaseTable) -> None:
    table.owner, table.pid = Owner.CRASHED, 12
    table.hold(job(5, 2))

    table.clear()
    assert (table.owner, table.pid, table.worker_id, list(table)) == (Owner.NONE, 0, "", [])
    table.assign("x" * 200)

    assert table.worker_id == "x" * 100
    table.hold(job(5, 2))
    assert pairs(table) == {(5, 2)}


def test_a_job_that_is_held_twice_is_dropped_once(table: LeaseTable) -> None:
    """A worker that lost a lease unawares has claimed the job again, and its first attempt ends now."""
    first, again = job(7, 1), job(7, 2)
    holdings = Holdings(table)
    holdings.add(first)
    holdings.add(again)
    holdings.drop([first])
    assert (len(holdings), pairs(table)) == (1, {again.pair})
