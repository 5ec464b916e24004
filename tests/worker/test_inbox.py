"""The loop hears of every outcome, and is woken as seldom as it wants."""

import threading
import time
from typing import Any, cast

from gnlqueue.worker.executor import Ending, Outcome
from gnlqueue.worker.inbox import Inbox

OUTCOME = Outcome(cast(Any, None), Ending.DONE)


def later(function: Any, *args: Any) -> threading.Thread:
    timer = threading.Timer(0.05, function, args)
    timer.start()
    return timer


def test_nothing_comes() -> None:
    inbox = Inbox()

    assert not inbox.wait(0.01)
    assert not inbox.wait(-1)
    assert inbox.take() == []


def test_outcomes_are_taken_once() -> None:
    inbox = Inbox()
    inbox.put(OUTCOME)
    inbox.put(OUTCOME)

    assert inbox.wait(0)
    assert len(inbox) == 2
    assert inbox.take() == [OUTCOME, OUTCOME]
    assert not inbox.wait(0.01)


def test_fewer_than_are_awaited_do_not_wake() -> None:
    inbox = Inbox()
    inbox.put(OUTCOME)
    assert inbox.wait(20)
    later(inbox.put, OUTCOME)

    assert not inbox.wait(0.2, outcomes=3)
    later(inbox.put, OUTCOME)
    assert inbox.wait(20, outcomes=3)
    assert len(inbox.take()) == 3


def test_what_else_there_is_wakes_at_any_time() -> None:
    inbox = Inbox()
    inbox.ring()
    assert inbox.wait(20, outcomes=3)
    later(inbox.ring)
    assert inbox.wait(20, outcomes=3)


def test_a_job_with_steps_waits_for_no_others() -> None:
    """Neither where it comes while others are awaited, nor where it came before."""
    inbox, with_steps = Inbox(), OUTCOME._replace(has_steps=True)
    timer = later(inbox.put, with_steps)
    assert inbox.wait(20, outcomes=3)
    timer.join()
    assert inbox.wait(0, outcomes=3)
    assert inbox.take() == [with_steps]

    inbox.put(OUTCOME)
    assert not inbox.wait(0.01, outcomes=3)


def test_no_outcome_is_missed() -> None:
    """However threads and loop fall over each other: nobody waits for a time-out, and each outcome comes once."""
    inbox, number = Inbox(), 20_000
    threads = [
        threading.Thread(target=lambda: [inbox.put(OUTCOME) for _ in range(number // 4)])  # type: ignore[func-returns-value]
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    came, began = 0, time.monotonic()
    while came < number:
        assert inbox.wait(20, outcomes=min(1 + came % 40, number - came))
        came += len(inbox.take())
    assert time.monotonic() - began < 20
    for thread in threads:
        thread.join()
    assert came == number
