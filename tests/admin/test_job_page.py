"""One job's page: what happened, why it isn't running, what its steps did."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

import gnlqueue
from gnlqueue import queue
from gnlqueue.admin import job_facts, job_page, waterfall
from gnlqueue.dialects import read_clock
from gnlqueue.models import EntryStatus, Job, JobStatus, RunJournalEntry, WorkerProcess
from gnlqueue.worker import identity
from tests.admin.conftest import LogIn
from tests.admin.pages import decision_url, job_url, look
from tests.app import tasks as app_tasks
from tests.durable.conftest import (
    PAST,
    attempt,
    claim,
    crashing,
    end_lease,
    entry,
    jobs,
    leave_started,
    on_sqlite,
    play,
)

__all__ = ["play"]  # a fixture

Play = Callable[..., Job]
LATER = timedelta(days=3)


@pytest.fixture
def worker(alias: str) -> str:
    """A worker that lives, and serves the default queue."""
    identity.register("vm-1", ["default"], 4, alias, lease=60)
    return "vm-1"


# --- why isn't this running? -----------------------------------------------------------------------------------------


def test_a_scheduled_job_waits_for_its_time(admin: Client, worker: str) -> None:
    job = app_tasks.nothing.using(run_after=LATER).enqueue()
    said = look(admin, job_url(job))
    assert "It is scheduled for later. in 2 d" in said
    assert "No worker" not in said


def test_a_failed_job_waits_before_its_next_attempt(admin: Client, worker: str) -> None:
    job = app_tasks.nothing.enqueue()
    queue.fail(claim(job), "no paper", after=LATER)
    said = look(admin, job_url(job))
    assert "Its last attempt failed, and it waits before the next one." in said
    assert "Attempt 1 failed on w1 no paper" in said


def test_a_sleeping_run_says_so(play: Play, admin: Client, worker: str) -> None:
    job = play(lambda context: context.sleep("cool down", LATER))
    attempt(job)
    said = look(admin, job_url(job))
    assert "Its run is asleep (cool down), and goes on later." in said
    assert "Went to sleep: cool down" in said
    assert "An attempt began that did not count" in said


def test_a_scheduled_job_that_is_due_says_what_makes_it_ready(admin: Client, worker: str) -> None:
    job = app_tasks.nothing.using(run_after=LATER).enqueue()
    jobs().filter(pk=job.pk).update(run_at=PAST)
    assert "It is due, and a worker makes it ready at its next poll." in look(admin, job_url(job))


def test_without_any_worker_there_is_the_command_to_start_one(admin: Client) -> None:
    said = look(admin, job_url(app_tasks.nothing.enqueue()))
    assert "No worker is running at all. Start one: python manage.py runworker --queues default" in said


def test_a_silent_worker_is_none(admin: Client, worker: str, alias: str) -> None:
    WorkerProcess.objects.using(alias).update(heartbeat_at=PAST)
    assert "No worker is running at all." in look(admin, job_url(app_tasks.nothing.enqueue()))


def test_a_queue_that_no_worker_serves_is_named(admin: Client, worker: str) -> None:
    said = look(admin, job_url(app_tasks.work_elsewhere.enqueue()))
    assert "No running worker serves its queue other." in said
    assert "runworker --queues other" in said


def test_a_paused_queue_is_named(admin: Client, worker: str) -> None:
    queue.pause("default")
    said = look(admin, job_url(app_tasks.nothing.enqueue()))
    assert "Its queue default is paused." in said
    assert "a worker with a free slot" not in said


def test_jobs_that_come_first_are_counted(admin: Client, worker: str) -> None:
    for priority in (5, 5, 0):
        app_tasks.nothing.using(priority=priority).enqueue()
    job = app_tasks.nothing.enqueue()
    assert "3 jobs in its queue come first, 2 of them with a higher priority." in look(admin, job_url(job))


def test_jobs_that_come_first_are_counted_up_to_a_cap(
    admin: Client, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_facts, "FARTHEST", 2)
    for _ in range(3):
        app_tasks.nothing.enqueue()
    job = app_tasks.nothing.enqueue()
    assert "More than 2 jobs in its queue come first" in look(admin, job_url(job))


def test_a_job_that_was_claimed_meanwhile_is_not_behind_others(alias: str) -> None:
    job = app_tasks.nothing.enqueue()
    assert queue.claim("default", worker_id="w1") is not None
    assert job_facts._place(job, alias) == (0, 0)


@on_sqlite
def test_numbers_are_written_as_the_reader_writes_them(
    admin: Client, worker: str, alias: str, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "de"
    now = read_clock(alias)
    jobs().bulk_create(Job(task_name="demo", queue_name="default", run_at=PAST, enqueued_at=now) for _ in range(1001))
    job = app_tasks.nothing.enqueue()
    assert "More than 1.000 jobs in its queue come first" in look(admin, job_url(job))


def test_the_next_job_is_told_so(admin: Client, worker: str) -> None:
    said = look(admin, job_url(app_tasks.nothing.enqueue()))
    assert "It is next in its queue" in said


def test_a_task_that_this_process_does_not_know_is_named(admin: Client, worker: str) -> None:
    job = queue.enqueue("shop.tasks.gone")
    assert "This process does not know the task shop.tasks.gone." in look(admin, job_url(job))


def test_a_task_that_no_worker_knew_says_until_when(admin: Client, worker: str) -> None:
    job = queue.enqueue("shop.tasks.gone", run_after=LATER)
    jobs().filter(pk=job.pk).update(unknown_since=datetime(2026, 1, 1, 12, tzinfo=UTC))
    said = look(admin, job_url(job))
    assert "No worker that saw it knows its task shop.tasks.gone." in said
    assert "before 2026-01-01 13:00 UTC" in said


def test_a_suspect_is_claimed_alone(admin: Client, worker: str) -> None:
    job = app_tasks.nothing.enqueue()
    jobs().filter(pk=job.pk).update(crashes=2)
    assert "It crashed its worker 2 times in a row, so it is claimed alone" in look(admin, job_url(job))


def test_a_job_in_progress_says_where(admin: Client, worker: str) -> None:
    job = app_tasks.nothing.enqueue()
    claim(job, worker)
    said = look(admin, job_url(job))
    assert "What is it doing? It runs on vm-1." in said
    assert "Attempt 1 began on vm-1 and is still running" in said


def test_an_expired_lease_is_told(admin: Client) -> None:
    job = app_tasks.nothing.enqueue()
    claim(job, "vm-2")
    jobs().filter(pk=job.pk).update(lease_expires_at=PAST)
    said = look(admin, job_url(job))
    assert "Its lease has run out: vm-2 died or lost contact." in said
    assert "No worker is running at all." in said


def test_a_silent_holder_is_told(admin: Client, worker: str, alias: str) -> None:
    job = app_tasks.nothing.enqueue()
    claim(job, worker)
    WorkerProcess.objects.using(alias).update(heartbeat_at=PAST)
    assert "vm-1 has it, but has not been heard from lately." in look(admin, job_url(job))


def test_a_request_to_cancel_is_told(admin: Client, worker: str) -> None:
    job = app_tasks.nothing.enqueue()
    claim(job, worker)
    queue.cancel(job)
    said = look(admin, job_url(job))
    assert "It stops at its next step or context.check()" in said
    assert "Its cancellation was requested" in said


def test_a_blocked_job_leads_to_the_decision(play: Play, admin: Client) -> None:
    def raise_something() -> None:
        raise OSError("timed out")

    job = play(lambda context: context.step("charge card", raise_something))
    attempt(job)
    said = look(admin, job_url(job))
    assert "Nobody knows whether its step “charge card” happened." in said
    assert "it raised builtins.OSError" in said
    assert f'href="{decision_url(entry(job))}"' in admin.get(job_url(job)).content.decode()


def test_a_job_that_does_not_fit_its_journal_leads_to_the_decision(play: Play, admin: Client) -> None:
    job = play(crashing(lambda context: context.step("old", int)))
    attempt(job)
    play(lambda context: context.step("new", int), run_after=LATER)
    attempt(job)
    said = look(admin, job_url(job))
    assert "The code does not fit what its journal recorded at “old”." in said
    assert "The code did not fit the journal at “old”" in said


def test_a_job_blocked_by_other_code_says_how_to_go_on(admin: Client) -> None:
    job = app_tasks.nothing.enqueue()
    queue.block(claim(job), "mystery")
    said = look(admin, job_url(job))
    assert "It was blocked (mystery)" in said
    assert f"gnlqueue.queue.unblock({job.pk})" in said


def test_a_dead_job_says_why_and_what_a_retry_keeps(play: Play, admin: Client) -> None:
    def fail(context: Any) -> None:
        raise RuntimeError("no paper")

    job = play(fail, max_attempts=1)
    attempt(job)
    said = look(admin, job_url(job))
    assert "It is dead: its only attempt is used up." in said
    assert f"python manage.py gnlqueue retry {job.pk}" in said
    assert said.index("Attempt 1 failed: builtins.RuntimeError") < said.index("Dead RuntimeError: no paper")
    assert "Traceback Traceback (most recent call last)" in said


def test_a_job_given_up_says_after_how_many_attempts(admin: Client) -> None:
    job = app_tasks.nothing.enqueue()
    queue.fail(claim(job), "the order is gone", final=True)
    assert "It is dead: it was given up after 1 of 5 attempts." in look(admin, job_url(job))


def test_a_cancelled_and_a_done_job(admin: Client) -> None:
    job = app_tasks.nothing.enqueue()
    queue.cancel(job)
    assert "It was cancelled." in look(admin, job_url(job))
    done = app_tasks.nothing.enqueue()
    queue.complete(claim(done))
    assert "this running?" not in look(admin, job_url(done))


# --- what happened ---------------------------------------------------------------------------------------------------


def test_a_lost_worker_and_who_took_over(admin: Client) -> None:
    job = app_tasks.nothing.enqueue()
    claim(job, "vm-1")
    end_lease(job)
    queue.complete(claim(job, "vm-2"))
    said = look(admin, job_url(job))
    assert "Attempt 1 failed on vm-1 The worker vm-1 died or lost contact" in said
    assert "Attempt 2 began on vm-2 lease token 2 taken over from vm-1" in said
    assert said.index("Enqueued in the queue") < said.index("Attempt 1 began") < said.index("Attempt 2 began")


def test_claims_that_left_no_record_are_counted(admin: Client) -> None:
    job = app_tasks.nothing.enqueue()
    queue.release(claim(job))
    queue.release(claim(job))
    queue.complete(claim(job))
    assert "2 claims in between left no record" in look(admin, job_url(job))


def test_a_decision_is_told_with_who_took_it(play: Play, admin: Client) -> None:
    job = play(lambda context: context.step("charge card", int))
    leave_started(job, "charge card")
    attempt(job)
    gnlqueue.resolve(entry(job), gnlqueue.NotHappened(), by="ada", reason="not in the dashboard")
    said = look(admin, job_url(job))
    assert "ada decided about “charge card”: it did not happen not in the dashboard" in said


def test_what_people_did_has_the_name_of_its_button(admin: Client) -> None:
    job = app_tasks.nothing.using(run_after=LATER).enqueue()
    admin.post(f"/admin/gnlqueue/job/{job.pk}/verb/run_now/")
    said = look(admin, job_url(job))
    assert "root: Run now" in said
    assert "run_now" not in said


def test_origin_and_copies_are_linked(admin: Client) -> None:
    old = app_tasks.nothing.enqueue()
    admin.post(f"/admin/gnlqueue/job/{old.pk}/verb/enqueue_again/", {"args": "[]", "kwargs": "{}", "why": "once more"})
    new = jobs().get(origin=old.pk)
    assert f'href="{job_url(old)}"' in admin.get(job_url(new)).content.decode()
    assert f"Enqueued again as job {new.pk}" in look(admin, job_url(old))
    assert f'href="{job_url(new)}"' in admin.get(job_url(old)).content.decode()


def test_copies_that_code_made_are_linked_too(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    old = app_tasks.nothing.enqueue()
    first, second = (queue.enqueue_again(old).job for _ in range(2))
    assert f"Enqueued again as job {first.pk} , job {second.pk} " in look(admin, job_url(old))
    monkeypatch.setattr(job_page, "MOST_MADE", 1)
    assert f"Enqueued again as job {first.pk} and more" in look(admin, job_url(old))
    queue.cancel(first)
    queue.prune(timedelta(0), statuses=[JobStatus.CANCELLED])
    assert f"Enqueued again as job {second.pk} " in look(admin, job_url(old))


# --- steps -----------------------------------------------------------------------------------------------------------


def test_steps_are_drawn_and_listed(play: Play, admin: Client) -> None:
    def handler(context: Any) -> None:
        context.step("first", lambda: {"id": "ch_1"})
        context.idempotent_step("second", int)
        if context.attempt == 1:
            raise OSError("crash")
        context.atomic_step("third", str)

    job = play(handler)
    attempt(job)
    attempt(job)
    said = look(admin, job_url(job))
    assert "first step done" in said
    assert '{"id":"ch_1"}' in said
    assert said.count("replayed once") == 2
    content = admin.get(job_url(job)).content.decode()
    assert content.count('class="gqj-bar-ran"') == 3  # two steps, and the legend
    assert content.count('class="gqj-replay"') == 3


@on_sqlite
def test_a_wait_and_a_doubt_are_drawn_differently(play: Play, admin: Client) -> None:
    job = play(lambda context: context.sleep("cool down", LATER))
    attempt(job)
    leave_started(job, "charge card")
    page = admin.get(job_url(job)).content.decode()
    for looks in ("wait", "doubt"):
        drawn = re.findall(rf'<rect class="gqj-bar-{looks}"[^>]*fill="url\(#gqj-fill-{looks}\)"', page)
        assert len(drawn) == 2, looks  # one, and the legend
    patterns = dict(re.findall(r'<pattern id="gqj-fill-(wait|doubt)"[^>]*>(.*?)</pattern>', page))
    assert patterns["wait"] != patterns["doubt"]


@on_sqlite
def test_a_long_key_is_shown_whole(play: Play, admin: Client) -> None:
    job = play(lambda context: context.using(key="k" * 200).step("n" * 200, int))
    attempt(job)
    key = f"{'n' * 200}[{'k' * 200}]"
    for url in (job_url(job), decision_url(entry(job)), f"/admin/gnlqueue/job/{job.pk}/verb/enqueue_again/"):
        assert key in look(admin, url)


def test_a_long_result_is_cut_and_can_be_downloaded(play: Play, admin: Client) -> None:
    job = play(lambda context: context.step("big", lambda: "x" * 1000) and None)
    attempt(job)
    assert "… 1,002 characters in all Download" in look(admin, job_url(job))
    response = admin.get(f"/admin/gnlqueue/stepindoubt/{entry(job).pk}/result/")
    assert json.loads(response.content) == "x" * 1000
    assert response["Content-Disposition"].startswith("attachment")


def test_more_steps_than_a_page_holds(play: Play, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_page, "MOST_STEPS", 2)
    job = play(lambda context: [context.step(name, int) for name in "abcd"] and None)
    attempt(job)
    said = look(admin, job_url(job))
    assert "c step done" in said
    assert "b step done" not in said
    earlier = look(admin, f"{job_url(job)}?steps_before=3")
    assert "a step done" in earlier
    assert "c step done" not in earlier
    assert "c step done" in look(admin, f"{job_url(job)}?steps_before=nonsense")


# --- payload ---------------------------------------------------------------------------------------------------------


def test_payload_needs_its_permission(play: Play, log_in: LogIn) -> None:
    job = play(lambda context, secret: context.step("first", lambda: "hidden result"), "hidden argument")
    attempt(job)
    client = log_in("view_job")
    said = look(client, job_url(job))
    assert "hidden" not in said
    assert "You may not see arguments and results." in said
    assert client.get(f"/admin/gnlqueue/stepindoubt/{entry(job).pk}/result/").status_code == 403
    assert "hidden argument" in look(log_in("view_job", "view_job_payload", name="bea"), job_url(job))


def test_progress_needs_it_too_and_is_redacted(play: Play, log_in: LogIn, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["customer"]}
    job = play(lambda context: context.set_progress({"done": "120 of 500", "customer": "Ada"}))
    attempt(job)
    assert "120 of 500" not in look(log_in("view_job"), job_url(job))
    said = look(log_in("view_job", "view_job_payload", name="bea"), job_url(job))
    assert 'Progress { "done": "120 of 500", "customer": ' in said
    assert "Ada" not in said


def test_why_there_is_evidence_needs_it_too(play: Play, log_in: LogIn) -> None:
    job = attempt(play(lambda context: context.step("charge", lambda: {"42x42": b"x"})))  # which no JSON can carry
    pages = (job_url(job), decision_url(entry(job)))
    ann, bea = log_in("view_job", "view_stepindoubt"), log_in("view_job", "view_job_payload", name="bea")
    for url in pages:
        said = look(ann, url)
        assert "42x42" not in said
        assert "Its text is shown to those who may see arguments and results." in said
    assert "42x42" in look(bea, pages[0])


def test_texts_of_errors_need_it_too(play: Play, log_in: LogIn, alias: str) -> None:
    def decline() -> None:
        raise ValueError("card 42x42 declined")

    job = play(lambda context: context.using(final_errors=ValueError).step("charge", decline), max_attempts=1)
    assert attempt(job).status == "dead"
    pages = (job_url(job), "/admin/gnlqueue/job/", "/admin/gnlqueue/deadjob/")
    ann = log_in("view_job", "view_deadjob")
    for url in pages:
        said = ann.get(url).content.decode()
        assert "42x42" not in said, url
        assert "Its text is shown to those who may see arguments and results." in said, url
        assert "StepFailed" in said, url
    bea = log_in("view_job", "view_deadjob", "view_job_payload", name="bea")
    for url in pages:
        assert "42x42" in bea.get(url).content.decode(), url


def test_named_values_are_masked(play: Play, admin: Client, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    job = play(lambda context, order: context.step("first", lambda: {"card": "42x42", "id": 1}), {"card": "42x42"})
    attempt(job)
    said = look(admin, job_url(job))
    assert "42x42" not in said
    assert '"card": "***"' in said
    assert b"42x42" not in admin.get(f"/admin/gnlqueue/stepindoubt/{entry(job).pk}/result/").content


def test_a_masked_result_that_is_cut_is_not_shown(play: Play, admin: Client, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    job = play(lambda context: context.step("first", lambda: {"card": "42x42" * 200}) and None)
    attempt(job)
    said = look(admin, job_url(job))
    assert "42x42" not in said
    assert "characters in all Download" in said


# --- cost ------------------------------------------------------------------------------------------------------------


def test_the_number_of_queries_does_not_grow(play: Play, admin: Client, worker: str, alias: str) -> None:
    def steps(n: int) -> Callable[..., None]:
        return crashing(lambda context: [context.step(f"step {i}", int) for i in range(n)])

    def queries(job: Job) -> int:
        queue.reschedule(job, LATER)
        with CaptureQueriesContext(connections[alias]) as captured:
            assert admin.get(job_url(job)).status_code == 200
        return len(captured)

    small, big = play(steps(1)), play(steps(1), run_after=LATER)
    attempt(small)
    play(steps(12), run_after=LATER)
    for _ in range(3):
        attempt(big)
    of_who_asks = 2 if alias == "default" else 0  # the session and the user
    assert queries(small) == queries(big) == 10 + of_who_asks


# --- the axis --------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def span(start: float, end: float | None, looks: str = "ran", token: int = 1) -> waterfall.Span:
    row = RunJournalEntry(key="x", lease_token=token, status=EntryStatus.DONE)
    return waterfall.Span(row, looks, at(start), None if end is None else at(end), "")


def drawn(*spans: waterfall.Span, attempts: Any = (), now: float = 100_000) -> list[tuple[str, str]]:
    picture = waterfall.draw(spans, attempts, at(now))
    assert picture is not None
    return [(row.x, row.width) for row in picture.rows]


def test_steps_stand_where_they_ran() -> None:
    assert drawn(span(0, 1), span(1, 4)) == [("0.000%", "25.000%"), ("25.000%", "75.000%")]


def test_a_long_wait_takes_no_more_room_than_the_work() -> None:
    assert drawn(span(0, 1), span(86_400, 86_401)) == [("0.000%", "25.000%"), ("75.000%", "25.000%")]


def test_a_step_that_runs_is_drawn_until_now() -> None:
    assert drawn(span(0, 1), span(1, None, "running"), now=2) == [("0.000%", "50.000%"), ("50.000%", "50.000%")]


def test_what_took_no_time_can_be_seen() -> None:
    assert drawn(span(0, 0)) == [("0.000%", "0.800%")]


def test_only_a_later_attempt_replays() -> None:
    picture = waterfall.draw([span(0, 1), span(3, 4, token=2)], [(1, at(0)), (2, at(2))], at(9))
    assert picture is not None
    assert [len(row.replays) for row in picture.rows] == [1, 0]


def test_nothing_is_drawn_without_steps() -> None:
    assert waterfall.draw([], [], NOON) is None
