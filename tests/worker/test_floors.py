"""Where claims go on is one place for all workers of a supervisor."""

import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gnlqueue.worker import floors
from gnlqueue.worker.floors import Floors

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EARLIER, PLACE, FURTHER = (5, NOON, 9), (0, NOON, 7), (0, NOON, 8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the floors read."""
    clock = [100.0]
    monkeypatch.setattr(floors, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


@pytest.fixture
def places() -> Floors:
    """Of two queues."""
    return Floors(["default", "mail"])


def test_each_queue_has_its_own(places: Floors, clock: list[float]) -> None:
    places.begin("mail", PLACE, looked=1.0)

    assert places.take_turn("mail") == PLACE
    assert places.take_turn("default") is None

    places.forget("mail")
    assert places.take_turn("mail") is None


@pytest.mark.parametrize(
    "place",
    [
        (-(2**31), datetime(1, 1, 2, tzinfo=UTC), 1),
        (2**31 - 1, datetime(9999, 12, 30, 23, 59, 59, 999_999, UTC), 2**63 - 1),
    ],
)
def test_every_place_that_a_job_can_have_is_kept(places: Floors, place: floors.Floor) -> None:
    places.begin("default", place, looked=1.0)

    assert places.take_turn("default") == place


@pytest.mark.parametrize(
    ("other", "further"),
    [
        ((0, NOON, 8), True),
        ((0, NOON + timedelta(microseconds=1), 1), True),
        ((-1, NOON - timedelta(hours=1), 1), True),
        ((0, NOON, 6), False),
        ((1, NOON + timedelta(hours=1), 9), False),
    ],
)
def test_a_claim_that_ends_before_anothers_does_not_take_it_back(
    places: Floors, clock: list[float], other: floors.Floor, further: bool
) -> None:
    places.begin("default", PLACE, looked=1.0)
    places.go_on("default", PLACE, other)

    assert places.take_turn("default") == (other if further else PLACE)


def test_nobody_goes_on_from_what_was_forgotten(places: Floors, clock: list[float]) -> None:
    """There was less than somebody asked for, while a claim of another one went on."""
    places.go_on("default", PLACE, FURTHER)

    assert places.take_turn("default") is None


def test_a_claim_that_began_before_does_not_take_a_look_back(places: Floors, clock: list[float]) -> None:
    """What the look has found, of a higher priority for example, may not be all that stands there."""
    places.begin("default", PLACE, looked=1.0)
    places.begin("default", EARLIER, looked=1.0)
    places.go_on("default", PLACE, FURTHER)

    assert places.take_turn("default") == EARLIER

    places.go_on("default", EARLIER, FURTHER)
    assert places.take_turn("default") == FURTHER


@pytest.mark.parametrize(("looked", "after"), [(0.001, 0.02), (0.05, 1.0), (10.0, 1.0)])
def test_one_looks_at_the_whole_queue_while_the_others_go_on(
    places: Floors, clock: list[float], looked: float, after: float
) -> None:
    places.begin("default", PLACE, looked)
    clock[0] += after * 0.99
    assert places.take_turn("default") == PLACE
    clock[0] += after * 0.02

    assert places.take_turn("default") is None
    assert places.take_turn("default") == PLACE

    clock[0] += floors.SCAN_EVERY  # whoever looked has not come back
    assert places.take_turn("default") is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # pytest's; the child does no more than this
def test_another_process_goes_on_from_there(places: Floors) -> None:
    pid = os.fork()
    if pid == 0:
        places.begin("mail", PLACE, looked=1.0)
        os._exit(0)
    os.waitpid(pid, 0)

    assert places.take_turn("mail") == PLACE
