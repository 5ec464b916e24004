"""What a function hides is nowhere to be seen: on no page, in no file, in what no command writes."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

import gnlqueue
from gnlqueue.models import Job
from tests.admin.pages import IN_DOUBT, decision_url, job_url
from tests.admin.test_bulk import ask, confirm
from tests.admin.test_search import found
from tests.durable.conftest import attempt, entry, jobs, on_sqlite, play

__all__ = ["play"]  # a fixture

SECRET = "42x42"


@pytest.fixture
def doubtful(play: Callable[..., Job], settings: Any) -> Job:
    """A job that was given a card, has recorded it, and came back with what cannot be stored."""
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": lambda name: "card" in name}

    def pay(context: gnlqueue.JobContext, card: str) -> None:
        context.step("look up", lambda: {"card_no": card})
        context.step("charge", lambda: {"paid", card})

    job = attempt(play(pay, SECRET))
    jobs().filter(pk=job.pk).update(kwargs={"id": 5, "card": SECRET, "lines": [{"old_card": SECRET}]})
    return job


def written(*words: Any) -> str:
    """What the command writes."""
    out = io.StringIO()
    call_command("gnlqueue", *map(str, words), stdout=out, no_color=True)
    return out.getvalue()


@on_sqlite
def test_what_a_function_hides_is_nowhere(admin: Client, doubtful: Job) -> None:
    job, step, charge = f"/admin/gnlqueue/job/{doubtful.pk}", entry(doubtful, "look up"), entry(doubtful, "charge")
    by_id = {"arguments": [["id", 5]]}
    pages = {
        url: admin.get(url).content.decode()
        for url in (
            job_url(doubtful),
            f"{job}/payload/",
            f"{job}/verb/enqueue_again/",
            f"{job}/verb/cancel/",
            "/admin/gnlqueue/job/?q=arg.id:5",
            IN_DOUBT,
            decision_url(charge),
            f"{IN_DOUBT}{step.pk}/result/",
        )
    }
    pages["blocked"] = written("blocked")
    pages["bulk"] = ask(admin, "cancel", **by_id).content.decode()
    gnlqueue.resolve(charge, gnlqueue.FailJob(), by="ada", reason="it was refused")
    pages["dead letters"] = admin.get("/admin/gnlqueue/deadjob/").content.decode()
    pages["dead"] = written("dead") + written("dead", "--json")
    confirm(admin, ask(admin, "cancel", **by_id))
    pages["log"] = admin.get("/admin/gnlqueue/operatoraction/").content.decode()

    assert {name for name, page in pages.items() if SECRET in page} == set()
    for name in (job_url(doubtful), f"{job}/payload/", f"{job}/verb/enqueue_again/", "blocked", "dead"):
        assert "***" in pages[name], name
    assert f"/{doubtful.pk}/" in pages["bulk"]
    # Nor does a search tell who guesses: it lists the same for every value.
    assert found(admin, f"arg.card:{SECRET}") == found(admin, "arg.card:1") == [doubtful.pk]
    assert ask(admin, "cancel", arguments=[["card", SECRET]]).status_code == 403
