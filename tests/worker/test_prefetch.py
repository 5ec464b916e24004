"""A worker has at hand what it will have run in a third of a second, and nothing where it cannot tell."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gnlqueue.worker import prefetch
from gnlqueue.worker.prefetch import MAX_PREFETCH, RECENT_TASKS, Prefetch

Pass = Callable[[float], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """``wait(seconds)`` moves the clock on."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(prefetch, "time", clock)
    return lambda seconds: setattr(clock, "now", clock.now + seconds)


def busy(wait: Pass, *, groups: int, jobs: int, every: float, length: float = 0.001, concurrency: int = 4) -> Prefetch:
    """What a worker knows that has written so many groups of outcomes, one after the other."""
    known = Prefetch(concurrency=concurrency, wanted=True)
    known.begin()
    for _ in range(groups):
        wait(every)
        known.note([length] * jobs)
    return known


@pytest.mark.parametrize(
    ("jobs", "every", "size"), [(10, 0.1, 30), (4, 0.01, 120), (100, 0.01, MAX_PREFETCH), (1, 5.0, 0)]
)
def test_a_third_of_a_second_at_the_rate_of_the_worker(wait: Pass, jobs: int, every: float, size: int) -> None:
    assert busy(wait, groups=20, jobs=jobs, every=every).size() == size


def test_the_rate_is_a_recent_one(wait: Pass) -> None:
    known = busy(wait, groups=20, jobs=10, every=0.1)
    for _ in range(20):
        wait(0.02)
        known.note([0.001] * 10)
    assert known.size() == 150


def test_time_without_jobs_says_nothing(wait: Pass) -> None:
    known = busy(wait, groups=20, jobs=10, every=0.1)
    wait(3600)
    known.begin()
    assert known.size() == 0
    wait(0.1)
    known.note([0.001] * 10)
    assert known.size() == 30


@pytest.mark.parametrize("concurrency", [1, 4, 100])
def test_some_durations_are_to_be_known(wait: Pass, concurrency: int) -> None:
    enough = min(concurrency, RECENT_TASKS)
    assert busy(wait, groups=1, jobs=enough - 1, every=0.01, concurrency=concurrency).size() == 0
    assert busy(wait, groups=1, jobs=enough, every=0.01, concurrency=concurrency).size() > 0


def test_long_tasks_are_not_prefetched(wait: Pass) -> None:
    assert busy(wait, groups=20, jobs=10, every=0.1, length=0.03).size() == 0


def test_not_while_draining_and_not_after_jobs_had_to_go_back(wait: Pass) -> None:
    assert Prefetch(concurrency=4, wanted=False).size() == 0
    known = busy(wait, groups=20, jobs=10, every=0.1)
    known.pause()
    assert known.size() == 0
    wait(prefetch.PAUSE)
    assert known.size() == 30
