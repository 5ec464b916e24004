"""A worker that goes on claiming where it left off misses nothing that stands before."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

import gnlqueue
from gnlqueue.queue import ClaimedJob, claiming, crashes, leases
from gnlqueue.queue.transitions import release_many
from gnlqueue.worker import floors, intake
from gnlqueue.worker.floors import Floors
from gnlqueue.worker.holdings import Holdings
from gnlqueue.worker.intake import Intake
from gnlqueue.worker.table import LeaseTable
from tests.app.tasks import nothing
from tests.worker.conftest import fails_once

on_postgresql = pytest.mark.parametrize("alias", ["postgresql"], indirect=True)


def taking(alias: str, name: str = "w1", holdings: Holdings | None = None, among: Floors | None = None) -> Intake:
    """A worker's intake; `among` are the floors that it shares with others."""
    return Intake(
        ["default"],
        Holdings(LeaseTable(1000)) if holdings is None else holdings,
        among or Floors(["default"]),
        worker_id=name,
        database=alias,
        lease=60,
        concurrency=4,
        prefetches=True,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each claim, whether it looked only beyond the last one."""
    asked: list[bool] = []
    claim: Callable[..., list[ClaimedJob]] = claiming.claim_ready

    def noted(*args: Any, **kwargs: Any) -> list[ClaimedJob]:
        asked.append(kwargs.get("beyond") is not None)
        return claim(*args, **kwargs)

    monkeypatch.setattr(claiming, "claim_ready", noted)
    return asked


@pytest.fixture
def never_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the whole queue only where there is less than was asked for."""
    monkeypatch.setattr(floors, "SCANS", 1e-6)
    monkeypatch.setattr(floors, "SCAN_EVERY", 1000.0)


@on_postgresql
def test_claims_go_on_where_the_last_one_ended_until_there_is_less(
    alias: str, asked: list[bool], never_due: None
) -> None:
    ids = gnlqueue.enqueue_many(nothing.bind() for _ in range(7))
    mine = taking(alias)
    claimed = [[job.id for job in mine.claim(2)] for _ in range(3)]
    high = nothing.using(priority=1).enqueue().pk
    last = [[job.id for job in mine.claim(2)] for _ in range(3)]

    assert claimed == [ids[:2], ids[2:4], ids[4:6]]
    assert last == [[ids[6]], [high], []]
    assert asked == [False, True, True, True, False, False]


@on_postgresql
def test_what_came_back_before_is_found_at_once_where_nothing_is_beyond(
    alias: str, asked: list[bool], never_due: None
) -> None:
    nothing.enqueue()
    places = Floors(["default"])
    mine = taking(alias, among=places)
    (job,) = mine.claim(1)
    release_many([job])
    gnlqueue.enqueue_many(nothing.bind() for _ in range(2))
    floor = (0, job.run_at, job.id)
    places.go_on("default", floor, (0, job.run_at, job.id + 1))

    assert [each.id for _ in range(3) for each in mine.claim(1)][-1] == job.id
    assert asked == [False, True, True, True, False]


@on_postgresql
def test_a_higher_priority_is_found_when_the_time_has_come_to_look_at_all(
    alias: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch, never_due: None
) -> None:
    gnlqueue.enqueue_many(nothing.bind() for _ in range(10))
    places = Floors(["default"])
    mine = taking(alias, among=places)
    mine.claim(1)
    high = nothing.using(priority=1).enqueue().pk
    (job,) = mine.claim(1)
    assert job.id != high
    places.begin("default", (0, job.run_at, job.id), looked=0.0)

    assert [job.id for job in mine.claim(1)] == [high]
    assert asked == [False, True, False]


@on_postgresql
def test_workers_of_one_supervisor_go_on_where_one_of_them_ended(
    alias: str, asked: list[bool], never_due: None
) -> None:
    ids = gnlqueue.enqueue_many(nothing.bind() for _ in range(9))
    places = Floors(["default"])
    mine, theirs = taking(alias, "w1", among=places), taking(alias, "w2", among=places)
    claimed = [[job.id for job in each.claim(2)] for each in (mine, theirs, mine, theirs)]

    assert claimed == [ids[:2], ids[2:4], ids[4:6], ids[6:8]]
    assert asked == [False, True, True, True]
    assert [job.id for job in mine.claim(2)] == ids[8:]  # less than it asked for
    assert theirs.claim(2) == []
    assert asked[4:] == [True, False]


@on_postgresql
def test_all_go_on_with_what_a_look_has_found_though_others_were_claiming_further_on(
    alias: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch, never_due: None
) -> None:
    low = gnlqueue.enqueue_many(nothing.bind() for _ in range(8))
    places = Floors(["default"])
    mine, theirs = taking(alias, "w1", among=places), taking(alias, "w2", among=places)
    (job, *_) = mine.claim(2)
    high = gnlqueue.enqueue_many(nothing.using(priority=1).bind() for _ in range(6))
    claim, found = claiming.claim_ready, list[int]()

    def slow(*args: Any, **kwargs: Any) -> list[ClaimedJob]:
        claimed = claim(*args, **kwargs)
        monkeypatch.setattr(claiming, "claim_ready", claim)
        places.begin("default", (0, job.run_at, job.id), looked=0.0)  # the time has come
        found.extend(each.id for each in mine.claim(2))
        return claimed

    monkeypatch.setattr(claiming, "claim_ready", slow)

    assert [each.id for each in theirs.claim(2)] == low[2:4]
    assert found == high[:2]
    assert [[each.id for each in each_of.claim(2)] for each_of in (theirs, mine)] == [high[2:4], high[4:]]
    assert asked == [False, True, False, True, True]


@on_postgresql
def test_times_without_a_zone_do(alias: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """With `USE_TZ` off, which the checks call an error, what was claimed must not be lost."""
    claim = claiming.claim_ready

    def naive(*args: Any, **kwargs: Any) -> list[ClaimedJob]:
        return [each._replace(run_at=timezone.make_naive(each.run_at)) for each in claim(*args, **kwargs)]

    monkeypatch.setattr(claiming, "claim_ready", naive)
    ids = gnlqueue.enqueue_many(nothing.bind() for _ in range(4))
    mine = taking(alias)

    assert [[job.id for job in mine.claim(2)] for _ in range(2)] == [ids[:2], ids[2:]]


@on_postgresql
@pytest.mark.parametrize("how", ["given back", "lost with its worker", "of a higher priority"])
def test_what_comes_before_is_found_within_a_second_however_much_is_beyond(
    alias: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """By a worker that always gets as many as it asks for, and whose look at the whole queue takes ten seconds."""
    clock = [0.0]
    claim = claiming.claim_ready

    def slow(*args: Any, **kwargs: Any) -> list[ClaimedJob]:
        clock[0] += 0.01 if kwargs.get("beyond") else 10.0
        return claim(*args, **kwargs)

    for module in (intake, floors):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(claiming, "claim_ready", slow)
    first = nothing.enqueue()
    (other,) = claiming.claim_many(worker_id="other", limit=1)
    gnlqueue.enqueue_many(nothing.bind() for _ in range(200))
    mine = taking(alias)
    asked.clear()
    mine.claim(1)
    looked_at = clock[0]
    if how == "given back":
        release_many([other])
    elif how == "lost with its worker":
        crashes.end_crashed("other", [other.pair], alias=alias)
    else:
        first = nothing.using(priority=1).enqueue()

    while mine.claim(1)[0].id != first.pk:
        assert clock[0] < looked_at + 1.02

    assert asked.count(True) >= 90
    assert asked.count(False) == 2


def test_claim_that_is_committed_after_the_worker_has_looked_for_it_goes_back(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have been about to commit it when the connection broke; nobody would renew such a lease."""
    clock = [100.0]
    monkeypatch.setattr(intake, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    mine = taking(alias)
    fails_once(monkeypatch, claiming, "claim_ready", when="before")
    with pytest.raises(OperationalError):
        mine.claim(1)
    assert mine.claim(1) == []

    job = nothing.using(max_attempts=1).enqueue()
    (late,) = claiming.claim_many(worker_id="w1", limit=1)

    assert mine.claim(1) == []  # it looks once a second, however often it claims

    clock[0] += intake.LOOK_EVERY
    (claimed,) = mine.claim(1)
    assert (claimed.id, claimed.attempts, claimed.lease_token) == (job.pk, 1, late.lease_token + 1)

    monkeypatch.setattr(intake, "LOOK_EVERY", 1000.0)
    nothing.enqueue()
    (late,) = claiming.claim_many(worker_id="w1", limit=1)
    mine.release_unheard()  # too soon
    assert gnlqueue.queue.get(late).status == "in_progress"
    mine.release_unheard(at_once=True)
    assert gnlqueue.queue.get(late).status == "ready"

    clock[0] += 1000  # more than a lease
    mine.claim(1)
    monkeypatch.setattr(leases, "held_by", None)  # nobody asks any more
    clock[0] += intake.LOOK_EVERY
    mine.claim(1)


def test_nothing_is_lost_or_claimed_twice(alias: str, asked: list[bool]) -> None:
    """Whatever priorities there are, however many claim, and whatever is given back."""
    ids = gnlqueue.enqueue_many(nothing.using(priority=number % 3).bind() for number in range(300))
    shared = Floors(["default"])

    def consume(number: int) -> list[int]:
        holdings, done, rounds = Holdings(LeaseTable(10)), list[int](), 0
        mine = taking(alias, f"w{number}", holdings, shared if number % 2 else None)
        while claimed := mine.claim(7):
            rounds += 1
            back = claimed[::5] if rounds < 5 else []
            release_many(back)
            holdings.drop(claimed)
            done += [job.id for job in claimed if job not in back]
        connections.close_all()
        return done

    with ThreadPoolExecutor(4) as pool:
        found = [id for ids in pool.map(consume, range(4)) for id in ids]

    assert sorted(found) == ids
    assert any(asked) is (connections[alias].vendor == "postgresql")
