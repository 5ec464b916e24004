"""Many jobs in the background: what changed meanwhile is left alone and counted, and one sees how far it is."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from gnlqueue import bulk, queue
from gnlqueue.admin import preview
from gnlqueue.dialects import read_clock
from gnlqueue.models import Job, JobStatus, OperatorAction, WorkerProcess
from tests.admin.pages import job_url, look, messages, text_of
from tests.admin.test_bulk import JOBS, action_of, ask, confirm, dead_ones, run_worker
from tests.durable.conftest import on_sqlite
from tests.queue.conftest import NOON

LOG = "/admin/gnlqueue/operatoraction/"


@pytest.fixture(params=[2, 1000], ids=["filter", "numbers"])
def in_background(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Three jobs are many; they are frozen as a filter, or by their numbers. The fixture tells which."""
    for name in ("AT_ONCE", "CHUNK", "COUNT_CHUNK"):
        monkeypatch.setattr(bulk, name, 2)
    monkeypatch.setattr(preview, "CAP", request.param)
    return bool(request.param == 1000)


def run_action(alias: str, go_on: Callable[[], None] = lambda: None) -> OperatorAction:
    """Do what the log's only row asks for."""
    return bulk.run(action_of(alias).pk, using=alias, go_on=go_on)


def is_counted(alias: str) -> bool:
    """Whether an action on a filter has counted what it is about."""
    return not (action_of(alias).where or {}).get("counting")


@pytest.mark.parametrize("when", ["before", "between"])
def test_what_left_the_filter_meanwhile_is_counted(alias: str, admin: Client, in_background: bool, when: str) -> None:
    """Between the page and the job's beginning only numbers tell; later, the count too."""
    ids = dead_ones(9)
    asked = ask(admin, statuses=["dead"], task_name="demo")
    confirm(admin, asked)
    faster: list[int] = []

    def be_faster() -> None:
        if not faster and is_counted(alias):
            faster.extend(ids[:3])
            queue.retry(ids[0])
            queue.cancel(ids[1])
            Job.objects.using(alias).filter(pk=ids[2]).delete()

    if when == "before" and in_background:
        be_faster()
    action = run_action(alias, be_faster)
    assert (action.done, action.skipped) == (6, 3)
    assert [queue.get(id).status for id in ids[3:]] == [JobStatus.READY] * 6
    assert queue.get(ids[1]).status == JobStatus.CANCELLED
    page = look(admin, LOG)
    assert "6 3 had changed meanwhile finished" in page


def test_one_is_told_between_which_times_nobody_counted(alias: str, admin: Client, in_background: bool) -> None:
    ids = dead_ones(9)
    asked = ask(admin, statuses=["dead"])
    told = "the operator log says between which times"
    assert (told in text_of(asked.content.decode())) is not in_background
    confirm(admin, asked)
    queue.cancel(ids[0])
    assert "not counted" not in look(admin, LOG)
    action = run_action(alias)
    page = look(admin, LOG)
    if in_background:
        assert (action.done, action.skipped, bulk.uncounted(action.where)) == (8, 1, None)
        assert "not counted" not in page
        return
    assert (action.done, action.skipped) == (8, 0)
    cancelled_at, span = queue.get(ids[0]).finished_at, bulk.uncounted(action.where)
    assert cancelled_at is not None
    assert span is not None
    assert span[0] < cancelled_at < span[1]
    since, until = (f"{timezone.localtime(each):%Y-%m-%d %H:%M:%S}" for each in span)
    assert f"not counted those that left the filter between {since} and {until}, before their turn" in page


@on_sqlite
def test_inline_tells_it_at_once(alias: str, admin: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((bulk, "AT_ONCE"), (preview, "CAP")):
        monkeypatch.setattr(module, name, 2)
    dead_ones(3)
    settings.GNLQUEUE = {**settings.GNLQUEUE, "INLINE": True}
    assert "3 jobs were changed. Not counted: those that left" in messages(confirm(admin, ask(admin)))


def test_the_job_s_result_says_what_was_not_changed(alias: str, admin: Client, in_background: bool) -> None:
    ids = dead_ones(5)
    confirm(admin, ask(admin, statuses=["dead"]))
    if in_background:
        queue.cancel(ids[0])
    Job.objects.using(alias).filter(status=JobStatus.READY).exclude(pk=action_of(alias).runner_id).update(
        queue_name="rest"
    )
    assert run_worker() == JobStatus.DONE
    action = action_of(alias)
    runner = queue.get(action.runner_id or 0)
    if in_background:
        assert runner.result == {"changed": 4, "skipped": 1}
        return
    span = bulk.uncounted(action.where)
    assert span is not None
    assert runner.result == {"changed": 5, "skipped": 0, "uncounted": [each.isoformat() for each in span]}


@pytest.mark.usefixtures("in_background")
def test_the_log_shows_how_far_it_is(alias: str, admin: Client) -> None:
    dead_ones(5)
    confirm(admin, ask(admin, statuses=["dead"]))
    seen: list[str] = []
    run_action(alias, lambda: seen.append(look(admin, LOG)))
    assert any("2 of 5" in page for page in seen)


def test_what_only_later_matches_is_not_meant_by_numbers(
    alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    ids = [queue.enqueue("demo").pk for _ in range(3)]
    later = queue.enqueue("demo", run_after=timedelta(days=1))
    confirm(admin, ask(admin, "cancel", statuses=["ready"], task_name="demo"))
    Job.objects.using(alias).filter(pk=later.pk).update(status=JobStatus.READY)
    action = run_action(alias)
    assert (action.done, action.skipped) == (3, 0)
    assert [queue.get(id).status for id in ids] == [JobStatus.CANCELLED] * 3
    assert queue.get(later).status == JobStatus.READY


def test_ten_thousand_numbers_travel_through_the_form(alias: str, admin: Client) -> None:
    """Their page, their row in the log and each chunk are of a size that any server takes."""
    template = queue.get(queue.enqueue("demo"))
    Job.objects.using(alias).bulk_create(
        (
            Job(
                task_name="demo", status=JobStatus.DEAD, run_at=NOON, enqueued_at=NOON, finished_at=template.enqueued_at
            )
            for _ in range(preview.CAP)
        ),
        batch_size=500,
    )
    asked = ask(admin, statuses=["dead"])
    assert len(asked.context["preview"].ids) == preview.CAP
    assert len(asked.content) < 200_000
    confirm(admin, asked)
    kept = action_of(alias).where or {}
    assert kept["matched"] == len(kept["filter"]["ids"]) == preview.CAP

    class Enough(Exception):
        pass

    def stop() -> None:
        raise Enough

    with pytest.raises(Enough):
        run_action(alias, stop)
    assert action_of(alias).done == bulk.CHUNK


@pytest.mark.usefixtures("in_background")
def test_the_page_says_that_no_worker_would_do_it(alias: str, admin: Client) -> None:
    dead_ones(3)
    asked = ask(admin, statuses=["dead"])
    stuck, command = "No live worker serves the queue default", "python manage.py runworker"
    page = text_of(asked.content.decode())
    assert stuck in page
    assert f"Start one: {command} " in page
    confirm(admin, asked)
    page = look(admin, LOG)
    assert stuck in page
    assert "waiting for a worker" in page

    worker = serve(alias, ["other"])
    for response in (ask(admin, statuses=["dead"]), admin.get(LOG)):
        assert f"{command} --queues default" in text_of(response.content.decode())
    WorkerProcess.objects.using(alias).filter(pk=worker.pk).update(queues=["other", "default"])
    for response in (ask(admin, statuses=["dead"]), admin.get(LOG)):
        assert stuck not in text_of(response.content.decode())
    assert "under way" in look(admin, LOG)

    queue.pause("default")
    for response in (ask(admin, statuses=["dead"]), admin.get(LOG)):
        assert "The queue default is paused" in text_of(response.content.decode())
    page = look(admin, LOG)
    assert "waiting: its queue is paused" in page
    assert "waiting for a worker" not in page


def serve(alias: str, queues: list[str]) -> WorkerProcess:
    """Let a live worker serve some queues."""
    now = read_clock(alias)
    return WorkerProcess.objects.using(alias).create(
        worker_id="w1", hostname="web-1", pid=1, queues=queues, concurrency=1, started_at=now, heartbeat_at=now
    )


@on_sqlite
@pytest.mark.usefixtures("in_background")
def test_inline_needs_no_worker(alias: str, admin: Client, settings: Any) -> None:
    dead_ones(3)
    settings.GNLQUEUE = {**settings.GNLQUEUE, "INLINE": True}
    asked = ask(admin, statuses=["dead"])
    assert "No live worker" not in text_of(asked.content.decode())
    told = messages(confirm(admin, asked))
    assert "3 jobs were changed." in told
    assert "in the background" not in told


@on_sqlite
def test_a_few_jobs_need_no_worker(alias: str, admin: Client) -> None:
    dead_ones(1)
    assert "No live worker" not in text_of(ask(admin, statuses=["dead"]).content.decode())
    confirm(admin, ask(admin, statuses=["dead"]))
    assert "No live worker" not in look(admin, LOG)


@on_sqlite
def test_one_ticked_job_that_had_changed_is_not_told_to_be_changed(alias: str, admin: Client) -> None:
    (id,) = dead_ones(1)
    asked = admin.post(JOBS, {"action": "retry", "_selected_action": [id], "index": "0"})
    queue.cancel(id)
    queue.retry(id)
    confirm(admin, asked)
    assert (action_of(alias).done, action_of(alias).skipped) == (0, 1)
    assert "root: Retry, skipped: it had changed meanwhile" in look(admin, job_url(queue.get(id)))
    assert "0 1 had changed meanwhile" in look(admin, LOG)


# --- counting --------------------------------------------------------------------------------------------------------


@pytest.fixture
def by_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs are more than anybody counts on the page."""
    for name in ("AT_ONCE", "CHUNK", "COUNT_CHUNK", "IDS_IN_STATEMENT"):
        monkeypatch.setattr(bulk, name, 1)
    monkeypatch.setattr(preview, "CAP", 1)


@pytest.mark.usefixtures("by_filter")
def test_what_is_as_the_verb_makes_it_has_not_changed_meanwhile(alias: str, admin: Client) -> None:
    for _ in range(4):
        queue.enqueue("demo")
        job = queue.claim(worker_id="w1")
        assert job is not None
    queue.cancel(job.id)  # asked to stop already
    confirm(admin, ask(admin, "cancel", statuses=["in_progress"]))
    action = run_action(alias)
    assert (action.done, action.skipped) == (3, 0)


@pytest.mark.usefixtures("by_filter")
def test_one_that_moves_on_while_it_is_counted_is_not_counted_twice(alias: str, admin: Client) -> None:
    for _ in range(3):
        queue.enqueue("demo")
    confirm(admin, ask(admin, "cancel", statuses=["ready", "in_progress"]))
    seen: list[tuple[int, int]] = []
    claimed: list[Any] = []

    def claim_one() -> None:
        if not claimed and not is_counted(alias):
            claimed.append(queue.claim(worker_id="w1"))
        for done, of in re.findall(r"(\d+) of (\d+)", look(admin, LOG)):
            seen.append((int(done), int(of)))

    action = run_action(alias, claim_one)
    assert claimed
    assert (action.done, action.skipped) == (3, 0)
    assert seen
    assert [each for each in seen if each[0] > each[1]] == []


# --- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [0, 2])
def test_a_long_list_of_numbers_is_not_kept_for_ever(
    alias: str, admin: Client, in_background: bool, changed: int
) -> None:
    if in_background is False:
        pytest.skip("a filter has no numbers")
    ids = dead_ones(13)
    confirm(admin, ask(admin, ids=ids))
    for id in ids[:changed]:
        queue.cancel(id)
        queue.retry(id)
    kept: list[Any] = []
    action = run_action(alias, lambda: kept.append(action_of(alias).where))
    assert len(kept) > 2
    assert all(each == kept[0] for each in kept)  # nothing of it is written again with each chunk
    assert (action.done, action.skipped) == (13 - changed, changed)
    assert len((action.where or {})["filter"]["ids"]) == bulk.FIRST_IDS
    page = look(admin, LOG)
    assert "and 10 more" in page
    assert "13 jobs" in page


@pytest.mark.usefixtures("in_background")
def test_one_comes_back_to_the_list_as_it_was(alias: str, admin: Client) -> None:
    dead_ones(3)
    address = f"{JOBS}?status=dead&o=6"
    page = admin.get(address)
    assert page.context["cl"].get_ordering_field_columns() == {6: "asc"}
    assert f'name="next" value="{escape(address)}"' in page.content.decode()
    asked = admin.get(
        f"{JOBS}bulk/", {"verb": "retry", "criteria": page.context["cl"].criteria_as_json, "next": address}
    )
    assert asked.context["back"] == address
    response = confirm(admin, asked, next=address)
    assert action_of(alias).runner_id is not None
    assert response.redirect_chain == [(address, 302)]
    assert response.context["cl"].get_ordering_field_columns() == {6: "asc"}
