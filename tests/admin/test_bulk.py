"""One verb for many jobs: what the page freezes, what happens to the others, and what a crash leaves."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from gnlqueue import bulk, queue
from gnlqueue.admin import preview
from gnlqueue.finding import Argument, Criteria, Span
from gnlqueue.models import EntryStatus, Job, JobStatus, OperatorAction, RunJournalEntry
from gnlqueue.worker.loop import Worker
from tests.admin.conftest import LogIn
from tests.admin.pages import text_of
from tests.queue.conftest import NOON, count

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


def messages(response: Any) -> str:
    return " ".join(str(message) for message in response.context["messages"])


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
    for said in ("3 jobs", "demo", f"job {ids[2]}", "1 job has steps", "charge card", "Enqueued between"):
        assert said in page


def test_all_that_match_are_those_that_were_there(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 2)  # so that the filter is frozen, and a background job does it
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
    assert f"job {action.runner_id}" in messages(response)
    assert "under way" in text_of(admin.get("/admin/gnlqueue/operatoraction/").content.decode())
    assert count(JobStatus.DEAD) == 7

    Job.objects.using(alias).filter(status=JobStatus.READY).exclude(pk=action.runner_id).update(queue_name="rest")
    assert run_worker() == JobStatus.DONE
    statuses = {id: queue.get(id).status for id in (*ids, *later, other)}
    assert statuses == {**dict.fromkeys(ids, "ready"), **dict.fromkeys([*later, other], "dead")}
    action = action_of(alias)
    assert (action.done, action.skipped) == (4, 0)
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
    assert "Nobody counted further" in page


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


def test_an_action_of_the_list_needs_its_permission(alias: str, log_in: LogIn) -> None:
    (id,) = dead_ones(1)
    client = log_in("view_job", "cancel_job")
    response = client.post(JOBS, {"action": "retry", "_selected_action": [id], "index": "0"}, follow=True)
    assert 'name="token"' not in response.content.decode()


def test_a_page_that_was_tampered_with_does_nothing(alias: str, admin: Client) -> None:
    dead_ones(1)
    response = admin.post(BULK, {"token": token_of(ask(admin)) + "x"}, follow=True)
    assert "Nothing was changed" in messages(response)
    assert count(JobStatus.DEAD) == 1


@pytest.mark.parametrize(
    "criteria",
    ["{", "[]", '{"nonsense": 1}', '{"enqueued": ["x", null]}', '{"ids": ["x"]}', '{"statuses": ["x"]}', "5"],
)
def test_criteria_that_are_none(alias: str, admin: Client, criteria: str) -> None:
    assert admin.get(BULK, {"verb": "retry", "criteria": criteria}).status_code in (200, 404)
    assert admin.get(BULK, {"verb": "enqueue_again"}).status_code == 404


def test_searching_by_arguments_needs_the_permission_here_too(alias: str, log_in: LogIn) -> None:
    client = log_in("view_job", "retry_job")
    assert ask(client, arguments=[["card", 1]]).status_code == 403


def test_nothing_to_do(alias: str, admin: Client) -> None:
    assert "There is nothing to do" in text_of(ask(admin, statuses=["done"]).content.decode())


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
