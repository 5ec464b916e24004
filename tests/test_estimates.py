"""About how many jobs match, by the statistics of PostgreSQL, MySQL and MariaDB; SQLite keeps none."""

from django.db import connections
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext

from gnlqueue.finding import Criteria, Span, estimate
from gnlqueue.models import JobStatus
from tests.queue.conftest import NOON, after
from tests.queue.test_plans import analyze, cursor, fill

__all__ = ["cursor"]  # a fixture

SPAN = Span(NOON, after(hours=1))


def is_near(found: int | None, number: int) -> bool:
    """Whether a number is not wrong by much more than the factor of two by which InnoDB may be."""
    return found is not None and number / 2.5 < found < number * 2.5


def test_a_span_of_time(alias: str, cursor: CursorWrapper) -> None:
    """That finished jobs have an end, and only they, is no chance: the one does not thin out the other."""
    fill(cursor, 2_000, JobStatus.DONE, finished_at="'2030-01-01 12:00:00'")
    fill(cursor, 1_000, JobStatus.DEAD, finished_at="'2030-01-01 12:00:00'")
    fill(cursor, 17_000, JobStatus.SCHEDULED)
    analyze(cursor)

    def ended(*statuses: str) -> int | None:
        return estimate(Criteria(statuses=statuses, finished=SPAN), alias)

    due = estimate(Criteria(statuses=("scheduled",), queue_name="default", run=SPAN), alias)
    if alias == "default":
        assert ended() is due is None
        return
    assert is_near(ended(), 3_000)
    assert is_near(ended("done", "dead", "cancelled"), 3_000)
    assert ended("done", "ready") is None
    if alias == "postgresql":  # cannot tell how many of those that ended then are done
        assert ended("done") is due is None
    else:
        assert is_near(ended("done"), 2_000)
        assert is_near(due, 17_000)


def test_what_has_no_estimate_asks_the_database_nothing(alias: str) -> None:
    with CaptureQueriesContext(connections[alias]) as captured:
        for criteria in (Criteria(enqueued=SPAN), Criteria(task_name="demo"), Criteria(errors=("KeyError",))):
            assert estimate(criteria, alias) is None
        assert estimate(Criteria(ids=()), alias) == 0
    assert len(captured) == 0
