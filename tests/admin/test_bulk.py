"""One verb for many jobs: what the page freezes, what happens to the others, and what a crash leaves."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.backends.utils import CursorWrapper
from django.test import Client
from django.utils import timezone

from gnlqueue import bulk, queue
from gnlqueue.admin import preview
from gnlqueue.admin.words import in_words
from gnlqueue.finding import Argument, Criteria, Span, pages
from gnlqueue.models import EntryStatus, Job, JobStatus, OperatorAction, RunJournalEntry, RunLock
from gnlqueue.tasks import run_operator_action
from gnlqueue.worker.loop import Worker
from tests.admin.conftest import LogIn
from tests.admin.pages import messages, text_of
from tests.durable.conftest import on_sqlite
from tests.queue.conftest import NOON, count
from tests.queue.test_plans import analyze, cursor, fill  # noqa: F401  cursor is a fixture

JOBS = "/admin/gnlqueue/job/"
BULK = f"{JOBS}bulk/"


def dead_ones(number: int, task_name: str = "demo") -> list[int]:
    """The numbers of jobs that have just died; the cut-off goes by the database's clock."""
    return [die(task_name) for _ in range(number)]


def die(task_name: str) -> int:
    queue.enqueue(task_name)
    job = queue.claim(worker_id="w1")
    assert job is not None
    return queue.fail(job, "no use", final=True).pk


def token_of(response: Any) -> str:
    found = re.search(r'name="token" value="([^"]+)"', response.content.decode())
    assert found is not None, text_of(response.content.decode())
    return found[1]


def ask(client: Client, verb: str = "retry", **criteria: Any) -> Any:
    """The page that says what would happen to all that match."""
    return client.get(BULK, {"verb": verb, "criteria": json.dumps(criteria)})


def confirm(client: Client, asked: Any, **data: Any) -> Any:
    return client.post(BULK, {"token": token_of(asked), **data}, follow=True)


def action_of(alias: str) -> OperatorAction:
    return OperatorAction.objects.using(alias).get()


def test_the_ticked_ones(alias: str, admin: Client) -> None:
    first, second, third = dead_ones(3)
    queue.enqueue("demo")
    done = queue.claim(worker_id="w1")
    assert done is not None
    queue.complete(done)
    asked = admin.post(
        f"{JOBS}?status=dead", {"action": "retry", "_selected_action": [first, second, done.id], "index": "0"}
    )
    page = text_of(asked.content.decode())
    assert "2 jobs" in page
    assert "1 of those you ticked is in another status" in page
    assert count(JobStatus.DEAD) == 3  # nothing has happened yet
    response = confirm(admin, asked, why="the gateway is back", next=f"{JOBS}?status=dead")
    assert response.request["PATH_INFO"] + "?" + response.request["QUERY_STRING"] == f"{JOBS}?status=dead"
    assert "2 jobs were changed" in messages(response)
    assert [queue.get(id).status for id in (first, second, third)] == ["ready", "ready", "dead"]
    action = action_of(alias)
    assert (action.by, action.verb, action.target, action.done, action.skipped) == ("root", "retry", "2 jobs", 2, 0)
    assert action.why == "the gateway is back"
    assert action.finished_at is not None


def test_the_page_says_what_will_happen(alias: str, admin: Client) -> None:
    ids = dead_ones(3)
    RunJournalEntry.objects.using(alias).create(
        run_id=f"job:{ids[0]}", position=1, key="charge card", key_hash="1", kind="step", status=EntryStatus.DONE,
        lease_token=1, started_at=NOON,
    )  # fmt: skip
    page = text_of(ask(admin, statuses=["dead"]).content.decode())
    for said in ("3 jobs", "demo", f"job {ids[2]}", "1 job has steps", "charge card", "Enqueued just now"):
        assert said in page


def test_all_that_match_are_those_that_were_there(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 2)  # so that a background job does it
    monkeypatch.setattr(bulk, "CHUNK", 2)
    ids = dead_ones(5)
    (other,) = dead_ones(1, "other")
    asked = ask(admin, statuses=["dead"], task_name="demo")
    assert "in the background" in text_of(asked.content.decode())
    later = dead_ones(2)
    Job.objects.using(alias).filter(pk__in=later).update(finished_at=NOON + timedelta(days=40000))
    earlier = Job.objects.using(alias).get(pk=ids[0])
    queue.retry(earlier)  # somebody was faster
    response = confirm(admin, asked)
    action = action_of(alias)
    assert action.runner_id is not None
    assert f"Job {action.runner_id} does this in the background" in messages(response)
    assert "waiting for a worker" in text_of(admin.get("/admin/gnlqueue/operatoraction/").content.decode())
    assert count(JobStatus.DEAD) == 7

    Job.objects.using(alias).filter(status=JobStatus.READY).exclude(pk=action.runner_id).update(queue_name="rest")
    assert run_worker() == JobStatus.DONE
    statuses = {id: queue.get(id).status for id in (*ids, *later, other)}
    assert statuses == {**dict.fromkeys(ids, "ready"), **dict.fromkeys([*later, other], "dead")}
    action = action_of(alias)
    assert (action.done, action.skipped) == (4, 1)
    assert action.finished_at is not None
    assert "finished" in text_of(admin.get("/admin/gnlqueue/operatoraction/").content.decode())


def run_worker() -> str:
    """Let a worker run one job; how it ended."""
    ran = Worker(["default"], heartbeat=False).run_once()
    assert ran is not None
    return ran.status


def test_what_changed_between_the_page_and_the_deed_is_left_alone_and_counted(alias: str, admin: Client) -> None:
    ids = dead_ones(4)
    asked = ask(admin, statuses=["dead"])
    queue.cancel(ids[1])
    queue.retry(ids[2])
    Job.objects.using(alias).filter(pk=ids[3]).delete()
    response = confirm(admin, asked)
    assert "1 job was changed. 3 had changed meanwhile" in messages(response)
    assert [queue.get(id).status for id in ids[:3]] == ["ready", "cancelled", "ready"]
    assert action_of(alias).done == 1


def begin(alias: str, verb: str, criteria: Criteria, **options: Any) -> int:
    """An action that stands in the log and has not begun."""
    action = OperatorAction.objects.using(alias).create(
        at=NOON, by="ann", verb=verb, target="many", where=bulk.freeze(criteria, **options)
    )
    return action.pk


def test_a_runner_that_dies_is_followed_by_one_that_goes_on(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 2)
    ids = dead_ones(7)
    id = begin(alias, "cancel", Criteria(statuses=("dead",)))

    class Killed(BaseException):
        pass

    def die_in_the_third_chunk() -> None:
        if OperatorAction.objects.using(alias).get(pk=id).done == 4:
            raise Killed

    with pytest.raises(Killed):
        bulk.run(id, using=alias, go_on=die_in_the_third_chunk)
    assert count(JobStatus.CANCELLED) == 4
    action = bulk.run(id, using=alias)
    assert (action.done, action.skipped) == (7, 0)
    assert count(JobStatus.CANCELLED) == len(ids)


def test_a_chunk_that_fails_leaves_nothing_half_done(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = dead_ones(3)
    id = begin(alias, "retry", Criteria(statuses=("dead",)))
    act = bulk.act

    def fail_at_the_last(verb: str, job: Any, **options: Any) -> Any:
        if job == ids[0]:
            raise OSError("power cut")
        return act(verb, job, **options)

    monkeypatch.setattr(bulk, "act", fail_at_the_last)
    with pytest.raises(OSError, match="power cut"):
        bulk.run(id, using=alias)
    assert count(JobStatus.DEAD) == 3
    monkeypatch.setattr(bulk, "act", act)
    assert bulk.run(id, using=alias).done == 3


def test_two_runners_at_once_do_nothing_twice(
    alias: str, run_threads: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 3)
    dead_ones(20)
    id = begin(alias, "retry", Criteria(statuses=("dead",)))
    run_threads(3, lambda _: bulk.run(id, using=alias))
    action = action_of(alias)
    assert (action.done, action.skipped) == (20, 0)
    assert count(JobStatus.READY) == 20


def test_workers_that_claim_meanwhile_are_not_disturbed(
    alias: str, run_threads: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling what waits, while others claim and complete it: each job ends one way."""
    monkeypatch.setattr(bulk, "CHUNK", 4)
    for _ in range(40):
        queue.enqueue("demo")
    id = begin(alias, "cancel", Criteria(statuses=("ready",)))

    def work(number: int) -> int:
        if number == 0:
            bulk.run(id, using=alias)
            return 0
        done = 0
        while (job := queue.claim(worker_id=f"w{number}")) is not None:
            queue.complete(job)
            done += 1
        return done

    done = sum(run_threads(3, work))
    assert count(JobStatus.DONE) == done
    assert count(JobStatus.DONE) + count(JobStatus.CANCELLED) == 40
    action = action_of(alias)
    assert (
        action.done
        == count(JobStatus.CANCELLED)
        + Job.objects.using(alias).filter(status=JobStatus.DONE, cancel_requested_at__isnull=False).count()
    )


def test_spread_over_minutes(alias: str, admin: Client) -> None:
    ids = dead_ones(20)
    confirm(admin, ask(admin, statuses=["dead"]), minutes="60")
    rows = Job.objects.using(alias).filter(pk__in=ids)
    assert set(rows.values_list("status", flat=True)) == {JobStatus.SCHEDULED}
    times = sorted(rows.values_list("run_at", flat=True))
    assert timedelta(minutes=10) < times[-1] - times[0] <= timedelta(hours=1)
    for wrong in ("-1", "x", "100000000"):
        dead_ones(1)
        response = confirm(admin, ask(admin, statuses=["dead"]), minutes=wrong)
        assert response.status_code == 200
        assert count(JobStatus.DEAD) > 0


def test_reschedule_many(alias: str, admin: Client) -> None:
    queue.enqueue("demo")
    queue.enqueue("demo", run_after=timedelta(days=1))
    confirm(admin, ask(admin, "reschedule"), run_at="2031-01-01T00:00:00")
    times = {at.isoformat() for at in Job.objects.using(alias).values_list("run_at", flat=True)}
    assert times == {"2031-01-01T00:00:00+00:00"}


def test_cancel_reaches_every_status_that_can_be_cancelled(alias: str, admin: Client) -> None:
    for status in JobStatus:
        job = queue.get(queue.enqueue("demo"))
        ended = job.enqueued_at if status in ("done", "dead", "cancelled") else None
        Job.objects.using(alias).filter(pk=job.pk).update(status=status, finished_at=ended)
    asked = ask(admin, "cancel")
    assert "5 jobs" in text_of(asked.content.decode())
    confirm(admin, asked)
    assert count(JobStatus.CANCELLED) == 5
    assert count(JobStatus.DONE) == 1
    assert action_of(alias).done == 5


def test_more_than_anybody_counts(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "CAP", 3)
    dead_ones(5)
    page = text_of(ask(admin, statuses=["dead"]).content.decode())
    assert "3+ jobs" in page
    assert "Counting stopped here" in page


def test_more_than_anybody_counts_are_estimated(
    alias: str,
    admin: Client,
    monkeypatch: pytest.MonkeyPatch,
    cursor: CursorWrapper,  # noqa: F811
) -> None:
    monkeypatch.setattr(preview, "CAP", 100)
    fill(cursor, 1_000, JobStatus.READY)
    fill(cursor, 1_000, JobStatus.DEAD, finished_at="'2026-01-01 12:00:00'")
    analyze(cursor)
    said = r"" if alias == "default" else r" \((about (1,[89]|2,[012])00)\)"
    assert re.search(rf" 100\+ jobs{said} ?\. ", text_of(ask(admin, "cancel").content.decode()))  # of both statuses
    searched = ask(admin, "cancel", task_name="demo")  # no statistics of all databases tell how many
    assert searched.context["preview"].count == (100, True, None)


def test_each_verb_needs_its_permission_at_each_step(alias: str, log_in: LogIn, admin: Client) -> None:
    dead_ones(2)
    may_cancel = log_in("view_job", "cancel_job")
    assert ask(may_cancel, "retry").status_code == 403
    asked = ask(admin, "retry")
    assert may_cancel.post(BULK, {"token": token_of(asked)}).status_code == 403
    may_retry = log_in("view_job", "retry_job", name="bob")
    assert may_retry.post(BULK, {"token": token_of(asked)}).status_code == 403  # another's page
    assert log_in("view_job", name="eve").post(BULK, {"token": token_of(asked)}).status_code == 403
    assert count(JobStatus.DEAD) == 2
    assert OperatorAction.objects.using(alias).count() == 0


@on_sqlite
def test_an_action_of_the_list_needs_its_permission(alias: str, log_in: LogIn) -> None:
    (id,) = dead_ones(1)
    client = log_in("view_job", "cancel_job")
    response = client.post(JOBS, {"action": "retry", "_selected_action": [id], "index": "0"}, follow=True)
    assert 'name="token"' not in response.content.decode()


@on_sqlite
def test_a_page_that_was_tampered_with_does_nothing(alias: str, admin: Client) -> None:
    dead_ones(1)
    response = admin.post(BULK, {"token": token_of(ask(admin)) + "x"}, follow=True)
    assert "nothing was changed" in messages(response)
    assert count(JobStatus.DEAD) == 1


@on_sqlite
@pytest.mark.parametrize(
    "criteria",
    [
        *("{", "[]", '{"nonsense": 1}', '{"enqueued": ["x", null]}', '{"ids": ["x"]}', '{"statuses": ["x"]}', "5"),
        *('{"worker_id": {"a": 1}}', '{"queue_name": ["a"]}', '{"ids": [1e30]}', '{"key": "a\\u0000b"}'),
        *('{"arguments": [["x", {}]]}', '{"arguments": [["x", 1e999]]}', '{"arguments": [["x", "\\ud800"]]}'),
        *('{"arguments": [["\\ud800", 1]]}', '{"errors": [[]]}', "[" * 100_000, '{"enqueued": ["0001-01-01", null]}'),
    ],
)
def test_criteria_that_are_none(alias: str, admin: Client, criteria: str) -> None:
    assert admin.get(BULK, {"verb": "retry", "criteria": criteria}).status_code in (200, 404)
    assert admin.get(BULK, {"verb": "enqueue_again"}).status_code == 404


@on_sqlite
def test_searching_by_arguments_needs_the_permission_here_too(alias: str, log_in: LogIn) -> None:
    client = log_in("view_job", "retry_job")
    assert ask(client, arguments=[["card", 1]]).status_code == 403


def test_nothing_to_do(alias: str, admin: Client) -> None:
    assert "There is nothing to do" in text_of(ask(admin, statuses=["done"]).content.decode())


@on_sqlite
def test_the_whole_table_is_not_an_action_s_selection(alias: str, admin: Client) -> None:
    (id, _) = dead_ones(2)
    data = {"action": "cancel", "_selected_action": [id], "index": "0", "select_across": "1"}
    assert admin.post(JOBS, data).status_code == 404


def test_criteria_are_the_same_after_they_were_stored() -> None:
    criteria = Criteria(
        statuses=("dead",),
        queue_name="a",
        errors=("-",),
        enqueued=Span(NOON),
        arguments=(Argument("x", 1),),
        ids=(1, 2),
        as_of=NOON,
    )
    assert Criteria.from_json(json.loads(json.dumps(criteria.as_json()))) == criteria
    assert Criteria.from_json(Criteria().as_json()) == Criteria()


@pytest.mark.parametrize("value", ["\ud800", "a\0b", float("inf"), 2**63, {}, []])
def test_an_argument_is_what_every_database_can_compare(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Criteria.from_json({"arguments": [["x", value]]})


@pytest.fixture
def in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs are more than anybody counts, and are done two at a time: what is frozen is the filter."""
    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    monkeypatch.setattr(bulk, "CHUNK", 2)
    monkeypatch.setattr(bulk, "COUNT_CHUNK", 2)
    monkeypatch.setattr(preview, "CAP", 2)


@pytest.mark.usefixtures("in_small_chunks")
@pytest.mark.parametrize("minutes", ["0", "600"])
@pytest.mark.parametrize(
    ("verb", "wait", "run_at"),
    [("reschedule", 0, "2031-01-01T00:00:00"), ("reschedule", 24, "2020-01-01T00:00:00"), ("run_now", 1, "")],
)
def test_a_job_is_met_once_though_the_verb_moves_it_in_its_index(
    alias: str, admin: Client, verb: str, wait: int, run_at: str, minutes: str
) -> None:
    for _ in range(9):
        queue.enqueue("demo", run_after=timedelta(hours=wait))
    confirm(admin, ask(admin, verb, task_name="demo"), run_at=run_at, minutes=minutes)
    action = bulk.run(action_of(alias).pk, using=alias)
    assert (action.done, action.skipped) == (9, 0)
    times = set(Job.objects.using(alias).filter(task_name="demo").values_list("run_at", flat=True))
    assert len(times) == (9 if minutes == "600" else 1)


@pytest.mark.usefixtures("in_small_chunks")
def test_what_ran_and_waits_again_meanwhile_is_not_met_again(alias: str, admin: Client) -> None:
    for _ in range(3):
        queue.enqueue("demo", run_after=timedelta(days=1))
    confirm(admin, ask(admin, "reschedule", task_name="demo"), run_at="2020-01-01T00:00:00")
    id = action_of(alias).pk
    Job.objects.using(alias).filter(task_name=run_operator_action.name).update(queue_name="rest")
    ran: list[Any] = []

    def run_one_that_was_met() -> None:
        if not ran and action_of(alias).done:
            job = queue.claim(worker_id="w1")
            assert job is not None
            ran.append(queue.fail(job, OSError(), after=timedelta(days=3)))

    action = bulk.run(id, using=alias, go_on=run_one_that_was_met)
    assert (action.done, action.skipped) == (3, 0)
    assert queue.get(ran[0].pk).run_at == ran[0].run_at


@pytest.mark.usefixtures("in_small_chunks")
def test_cancel_follows_jobs_that_move_on(alias: str, admin: Client) -> None:
    """One is promoted and claimed; one, that was running, fails and waits again where the walk has been already."""
    ids = [queue.enqueue("demo", run_after=timedelta(hours=1)).pk for _ in range(5)]
    queue.enqueue("demo", priority=9)
    running = queue.claim(worker_id="w1")
    assert running is not None
    confirm(admin, ask(admin, "cancel", task_name="demo"))
    moved: list[Any] = []

    def move() -> None:
        if moved or action_of(alias).done < 2:
            return
        claimable = Job.objects.using(alias).filter(pk=ids[-1])
        moved.append(claimable.update(status=JobStatus.READY, priority=9, run_at=NOON - timedelta(days=9999)))
        moved.append(queue.claim(worker_id="w1"))
        queue.fail(running, OSError(), after=timedelta(0))

    action = bulk.run(action_of(alias).pk, using=alias, go_on=move)
    assert moved[1].id == ids[-1]
    assert (action.done, action.skipped) == (6, 0)
    rows = Job.objects.using(alias).filter(task_name="demo")
    assert rows.filter(status=JobStatus.CANCELLED).count() == 5
    assert [job.pk for job in rows.filter(cancel_requested_at__isnull=False)] == [ids[-1]]


@on_sqlite
def test_nobody_guesses_hidden_arguments_by_the_address(alias: str, admin: Client, settings: Any) -> None:
    queue.enqueue("demo", kwargs={"card": "4711", "order": 1})
    assert ask(admin, "cancel", arguments=[["order", 1]]).status_code == 200
    asked = ask(admin, "cancel", arguments=[["card", "4711"]])
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    assert ask(admin, "cancel", arguments=[["card", "4711"]]).status_code == 403
    assert admin.post(BULK, {"token": token_of(asked)}).status_code == 403
    assert ("argument card", "***") in in_words(Criteria(arguments=(Argument("card", "4711"),)), may_see_payload=True)


def test_all_jobs_with_recorded_steps_are_counted(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "LOOKED_AT", 8)
    ids = dead_ones(5)
    kinds = ["step", "step", "atomic_step", "sleep"]
    RunJournalEntry.objects.using(alias).bulk_create(
        RunJournalEntry(
            run_id=f"job:{id}", position=place, key=f"charge {place}", key_hash=f"{id}-{place}", kind=kind,
            status=EntryStatus.DONE, lease_token=1, started_at=NOON,
        )
        for id in ids[:4] for place, kind in enumerate(kinds)
    )  # fmt: skip
    found = ask(admin).context["preview"]
    assert found.jobs_with_steps == 4
    assert len(found.steps) == 5


@pytest.mark.usefixtures("in_small_chunks")
def test_many_numbers_are_done_in_the_background_too(alias: str, admin: Client) -> None:
    ids = dead_ones(3)
    asked = ask(admin, ids=ids)
    assert "in the background" in text_of(asked.content.decode())
    confirm(admin, asked)
    assert (action_of(alias).done, action_of(alias).finished_at) == (0, None)
    assert bulk.run(action_of(alias).pk, using=alias).done == 3


@pytest.mark.parametrize("number", [2, 4])
def test_a_page_that_is_sent_again_does_nothing_twice(
    alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 3)
    dead_ones(number)
    asked = ask(admin, task_name="demo")
    first, second = confirm(admin, asked), confirm(admin, asked)
    assert messages(first) in messages(second)
    assert "already submitted" in messages(second)
    assert action_of(alias).done == (2 if number == 2 else 0)
    assert Job.objects.using(alias).filter(task_name=run_operator_action.name).count() == (number == 4)
    assert RunLock.objects.using(alias).count() == 0
    dead_ones(1)
    confirm(admin, ask(admin, task_name="demo"))  # another page is another action
    assert OperatorAction.objects.using(alias).count() == 2


def test_a_double_click_does_nothing_twice(alias: str, admin: Client, run_threads: Callable[..., list[Any]]) -> None:
    dead_ones(3)
    token = token_of(ask(admin))

    def send(_: int) -> Any:
        client = Client()
        client.cookies = admin.cookies
        return client.post(BULK, {"token": token})

    responses = run_threads(4, send)
    assert {response.status_code for response in responses} == {302}
    assert (action_of(alias).done, action_of(alias).skipped) == (3, 0)


@on_sqlite
@pytest.mark.usefixtures("in_small_chunks")
@pytest.mark.parametrize(
    ("fate", "said"),
    [("cancelled", "is cancelled"), ("dead", "is dead"), ("pruned", "is gone"), ("done", "finished")],
)
def test_the_log_says_that_a_runner_stopped(alias: str, admin: Client, fate: str, said: str) -> None:
    dead_ones(3)
    confirm(admin, ask(admin))
    runner = Job.objects.using(alias).filter(pk=action_of(alias).runner_id)
    runner.delete() if fate == "pruned" else runner.update(status=fate, finished_at=NOON)
    page = text_of(admin.get("/admin/gnlqueue/operatoraction/").content.decode())
    assert said in page
    assert "under way" not in page
    assert ("stopped" in page) == (fate != "done")


@pytest.mark.usefixtures("in_small_chunks")
def test_what_carries_out_an_action_is_not_meant_by_all_that_match(alias: str, admin: Client) -> None:
    dead_ones(3)
    confirm(admin, ask(admin))
    runner = action_of(alias).runner_id
    for _ in range(3):
        queue.enqueue("demo")
    asked = ask(admin, "cancel", statuses=["ready"])
    assert runner not in asked.context["preview"].ids
    confirm(admin, asked)
    latest = OperatorAction.objects.using(alias).latest("pk")
    assert bulk.run(latest.pk, using=alias).done == 3
    assert queue.get(runner).status == JobStatus.READY  # type: ignore[arg-type]
    named = ask(admin, "cancel", ids=[runner])
    assert named.context["preview"].ids == [runner]


@on_sqlite
def test_who_may_see_only_dead_jobs_may_retry_them(alias: str, log_in: LogIn) -> None:
    first, second = dead_ones(2)
    client = log_in("view_deadjob", "retry_job")
    deadjob = "/admin/gnlqueue/deadjob/"
    asked = client.post(deadjob, {"action": "retry", "_selected_action": [first], "index": "0"})
    assert confirm(client, asked).status_code == 200
    assert queue.get(first).status == JobStatus.READY
    confirmed = client.post(BULK, {"token": token_of(ask(client, statuses=["dead"]))})
    assert confirmed.headers["Location"] == deadjob
    assert queue.get(second).status == JobStatus.READY
    assert ask(client).status_code == 403
    assert ask(client, statuses=["dead", "cancelled"]).status_code == 403


@on_sqlite
def test_one_ticked_job_s_own_page_tells_of_it(alias: str, admin: Client) -> None:
    (id,) = dead_ones(1)
    asked = admin.post(JOBS, {"action": "retry", "_selected_action": [id], "index": "0"})
    confirm(admin, asked, why="the gateway is back")
    assert action_of(alias).job_id == id
    assert "the gateway is back" in text_of(admin.get(f"{JOBS}{id}/change/").content.decode())


def test_all_that_match_may_lie_beyond_what_was_looked_at(
    alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages.look, "__kwdefaults__", {"at_most": 4})
    (wanted,) = dead_ones(1, "rare")
    dead_ones(9)
    listed = admin.get(f"{JOBS}?task_name=rare&status=dead")
    assert "All jobs that match" in listed.content.decode()
    asked = ask(admin, task_name="rare", statuses=["dead"])
    assert "None were found among the jobs that were looked at" in text_of(asked.content.decode())
    confirm(admin, asked)
    assert bulk.run(action_of(alias).pk, using=alias).done == 1
    assert queue.get(wanted).status == JobStatus.READY


@on_sqlite
@pytest.mark.parametrize(
    ("hours", "said"), [([50, 3], "Enqueued between 2 d ago and 3 h ago ."), ([3.1, 3.2], "Enqueued 3 h ago .")]
)
def test_the_page_says_how_old_they_are(alias: str, admin: Client, hours: list[float], said: str) -> None:
    for id, age in zip(dead_ones(2), hours, strict=True):
        Job.objects.using(alias).filter(pk=id).update(enqueued_at=timezone.now() - timedelta(hours=age))
    assert said in text_of(ask(admin, statuses=["dead"]).content.decode())
