"""The verbs on one job: who may, what happens, what is written down, and where one is afterwards."""

from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gnlqueue import queue
from gnlqueue.admin.verbs import VERBS
from gnlqueue.models import EntryStatus, Job, JobStatus, OperatorAction, RunJournalEntry
from gnlqueue.worker.loop import Worker
from tests.admin.conftest import LogIn
from tests.admin.pages import messages
from tests.app import tasks
from tests.durable.conftest import on_sqlite
from tests.queue.conftest import NOON, after, claimed, dead

JOBS = "/admin/gnlqueue/job/"
LATER = {"run_at": "2031-02-03T04:05:06"}


def verb_url(job: Any, verb: str) -> str:
    return f"{JOBS}{job.pk}/verb/{verb}/"


def job_in(status: JobStatus) -> Job:
    """A job in this status."""
    job = queue.enqueue("demo", [1], now=NOON)
    rows = Job.objects.using(job._state.db).filter(pk=job.pk)
    rows.update(status=status, lease_token=1, finished_at=NOON if status in ("done", "dead", "cancelled") else None)
    return rows.get()


def log(alias: str) -> list[tuple[str, str, int | None, str]]:
    """What the operator log says."""
    return list(OperatorAction.objects.using(alias).order_by("id").values_list("by", "verb", "job_id", "why"))


APPLIES = [(name, status) for name in VERBS for status in JobStatus if status in VERBS[name].applies_to]
DOES_NOT = [(name, status) for name in VERBS for status in JobStatus if status not in VERBS[name].applies_to]


@pytest.mark.parametrize(("name", "status"), APPLIES)
def test_a_verb_applies_in_its_statuses_and_is_written_down(
    alias: str, admin: Client, name: str, status: JobStatus
) -> None:
    job = job_in(status)
    response = admin.post(verb_url(job, name), {"why": "because", **LATER, "args": "[1]"}, follow=True)
    assert response.status_code == 200
    assert log(alias) == [("root", name, job.pk, "because")]


@on_sqlite
@pytest.mark.parametrize(("name", "status"), DOES_NOT)
def test_a_verb_does_not_apply_in_other_statuses(alias: str, admin: Client, name: str, status: JobStatus) -> None:
    job = job_in(status)
    response = admin.post(verb_url(job, name), {"why": "because", **LATER, "args": "[1]"}, follow=True)
    assert response.status_code == 200
    assert "does not apply" in messages(response)
    assert log(alias) == []
    assert queue.get(job.pk).status == status


@on_sqlite
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_needs_its_own_permission(alias: str, log_in: LogIn, name: str) -> None:
    job = job_in(next(iter(VERBS[name].applies_to)))
    others = [verb.permission for verb in VERBS.values() if verb.name != name]
    without = log_in("view_job", *others, name="without")
    own = VERBS[name].permission
    blind = log_in(own, name="blind")  # may do it, but not see jobs
    for client in (without, blind):
        assert client.get(verb_url(job, name)).status_code == 403
        assert client.post(verb_url(job, name), LATER).status_code == 403
    assert queue.get(job.pk).status == job.status
    assert log(alias) == []
    assert log_in("view_job", own, name="with").post(verb_url(job, name), LATER).status_code == 302
    assert len(log(alias)) == 1


@on_sqlite
def test_who_is_not_logged_in_is_asked_to(alias: str) -> None:
    job = dead()
    response = Client().post(verb_url(job, "retry"))
    assert response.status_code == 302
    assert "/login/" in response.headers["Location"]
    assert queue.get(job.pk).status == JobStatus.DEAD


@on_sqlite
@pytest.mark.parametrize("name", VERBS)
def test_looking_changes_nothing(alias: str, admin: Client, name: str) -> None:
    job = job_in(next(iter(VERBS[name].applies_to)))
    with CaptureQueriesContext(connections[alias]) as captured:
        assert admin.get(verb_url(job, name)).status_code == 200
    assert not [query for query in captured if not query["sql"].lstrip("(").startswith("SELECT")]


def test_retry(alias: str, admin: Client) -> None:
    job = dead()
    response = admin.post(verb_url(job, "retry"), follow=True)
    assert "ready again" in messages(response)
    assert queue.get(job.pk).status == JobStatus.READY


def test_run_now_lets_a_worker_take_it_at_once(alias: str, admin: Client) -> None:
    job = tasks.give.using(run_after=after(days=1000)).enqueue("x")
    admin.post(verb_url(job, "run_now"))
    worker = Worker(["default"], heartbeat=False)
    assert worker.run_once() is not None
    assert queue.get(job.pk).status == JobStatus.DONE


def test_reschedule_asks_for_a_time(alias: str, admin: Client) -> None:
    job = queue.enqueue("demo", now=NOON)
    response = admin.post(verb_url(job, "reschedule"), {"run_at": "soon"})
    assert "Enter a valid date" in response.content.decode()
    admin.post(verb_url(job, "reschedule"), LATER)
    job = queue.get(job.pk)
    assert (job.status, job.run_at.isoformat()) == (JobStatus.SCHEDULED, "2031-02-03T04:05:06+00:00")


def test_cancelling_a_job_that_runs_asks_it_to_stop(alias: str, admin: Client) -> None:
    job = queue.get(claimed())
    response = admin.post(verb_url(job, "cancel"), follow=True)
    assert "asked to stop" in messages(response)
    assert queue.get(job.pk).cancel_requested_at is not None


def test_enqueue_again_shows_what_will_happen_again_and_takes_other_arguments(alias: str, admin: Client) -> None:
    job = tasks.give.enqueue("x")
    RunJournalEntry.objects.using(alias).create(
        run_id=job.run_id, position=1, key="charge card", key_hash="1", kind="step", status=EntryStatus.DONE,
        lease_token=1, started_at=NOON,
    )  # fmt: skip
    page = admin.get(verb_url(job, "enqueue_again")).content.decode()
    assert "happen again" in page
    assert "charge card" in page
    response = admin.post(verb_url(job, "enqueue_again"), {"args": "[]", "kwargs": '{"value": [1]}'}, follow=True)
    new = Job.objects.using(alias).get(origin=job)
    assert (new.args, new.kwargs) == ([], {"value": [1]})
    assert f"job {new.pk}" in messages(response)
    (action,) = OperatorAction.objects.using(alias)
    assert action.where == {"new_job": new.pk}


@on_sqlite
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ("[1, 2, 3]", "{}", "too many positional arguments"),
        ("[1]", '{"other": 1}', "got an unexpected keyword argument"),
        ("[1", "{}", "Enter a valid JSON"),
        ("{}", "{}", ""),
        ('{"a": 1}', "{}", "This must be a list"),
        ("[1]", "[1]", "This must be an object"),
        ("[NaN]", "{}", "JSON cannot carry"),
        ('["\\u0000"]', "{}", "NUL"),
    ],
)
def test_arguments_have_to_fit(alias: str, admin: Client, args: str, kwargs: str, message: str) -> None:
    job = tasks.give.enqueue("x")
    response = admin.post(verb_url(job, "enqueue_again"), {"args": args, "kwargs": kwargs})
    assert response.status_code == 200
    assert message in response.content.decode()
    assert Job.objects.using(alias).count() == 1


def test_hidden_values_stay_what_they_were(alias: str, admin: Client, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    job = tasks.give.enqueue(value={"card": 471108154711, "cents": [1, {"card": 1}]})
    page = admin.get(verb_url(job, "enqueue_again")).content.decode()
    assert "471108154711" not in page
    kwargs = '{"value": {"card": "***", "cents": [2, {"card": "***"}]}}'
    admin.post(verb_url(job, "enqueue_again"), {"args": "[]", "kwargs": kwargs})
    new = Job.objects.using(alias).get(origin=job)
    assert new.kwargs == {"value": {"card": 471108154711, "cents": [2, {"card": 1}]}}


@on_sqlite
def test_who_may_not_see_arguments_enqueues_the_same_ones(alias: str, log_in: LogIn) -> None:
    job = tasks.give.enqueue("secret")
    client = log_in("view_job", "enqueue_job_again")
    assert "secret" not in client.get(verb_url(job, "enqueue_again")).content.decode()
    client.post(verb_url(job, "enqueue_again"), {"args": '["other"]', "kwargs": "{}"})
    assert Job.objects.using(alias).get(origin=job).args == ["secret"]


@on_sqlite
@pytest.mark.parametrize(
    ("next", "where"),
    [
        ("/admin/gnlqueue/job/?status=dead&after=5", "/admin/gnlqueue/job/?status=dead&after=5"),
        ("https://elsewhere.example/", None),
        ("//elsewhere.example/", None),
        ("/\\elsewhere.example/", None),
        ("javascript:alert(1)", None),
        ("", None),
    ],
)
def test_one_is_back_where_one_came_from(alias: str, admin: Client, next: str, where: str | None) -> None:
    job = dead()
    response = admin.post(verb_url(job, "retry"), {"next": next})
    assert response.headers["Location"] == (where or f"{JOBS}{job.pk}/change/")


def test_two_people_retry_a_job_and_one_is_told(alias: str, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job = dead()
    retry = queue.retry

    def somebody_is_faster(id: Any, **options: Any) -> Job:
        retry(id, **options)
        return retry(id, **options)

    monkeypatch.setattr("gnlqueue.bulk.queue.retry", somebody_is_faster)
    response = admin.post(verb_url(job, "retry"), follow=True)
    assert "cannot be retried" in messages(response)
    assert log(alias) == []


@on_sqlite
def test_a_refusal_uses_the_words_of_the_pages(alias: str, admin: Client) -> None:
    response = admin.post(verb_url(job_in(JobStatus.IN_PROGRESS), "retry"), follow=True)
    assert "is in progress now" in messages(response)


@on_sqlite
def test_there_is_no_other_verb(alias: str, admin: Client) -> None:
    assert admin.post(verb_url(dead(), "delete")).status_code == 404


@on_sqlite
def test_a_job_is_not_added_changed_or_deleted_by_hand(alias: str, admin: Client) -> None:
    job = dead()
    for url in (f"{JOBS}add/", f"{JOBS}{job.pk}/delete/"):
        assert admin.post(url, {"post": "yes"}).status_code == 403
    admin.post(f"{JOBS}{job.pk}/change/", {"status": "done"})
    assert queue.get(job.pk).status == JobStatus.DEAD
