"""The queue of decisions: what a person is shown, what the decision does, and who is told what."""

import itertools
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

import gnlqueue
from gnlqueue import queue
from gnlqueue.admin import doubt, waiting
from gnlqueue.durable.entries import LONGEST_NOTE
from gnlqueue.models import EntryStatus, Job, JobStatus, OperatorAction, RunJournalEntry, StepNote, WorkerProcess
from gnlqueue.worker import identity
from tests.admin.conftest import LogIn
from tests.admin.pages import IN_DOUBT, decision_url, job_url, look
from tests.durable.conftest import PAST, attempt, crashing, entries, entry, jobs, leave_started, notes, on_sqlite, play

__all__ = ["play"]  # a fixture

Play = Callable[..., Job]
HOW = "Look for order 4711 in the gateway."


def ask(context: Any, *args: Any) -> Any:
    """A task whose step asks for its decision."""
    return context.using(how_to_check=HOW).step("charge card", lambda: {"id": "ch_1"})


@pytest.fixture
def doubtful(play: Play) -> RunJournalEntry:
    """A step that was caught in a crash; its job is blocked."""
    return block(play(ask, 4711))


def block(job: Job) -> RunJournalEntry:
    """Let a worker die in the middle of the job's step, and another one ask."""
    leave_started(job, "charge card")
    assert attempt(job).status == JobStatus.BLOCKED
    return entry(job)


@pytest.fixture
def misfit(play: Play) -> RunJournalEntry:
    """A step that the code asks for under another name now; its job is blocked."""
    job = play(crashing(lambda context: context.step("old", lambda: 5)))
    attempt(job)
    play(ask, run_after=timedelta(days=1))
    assert attempt(job).blocked_reason == "mismatch"
    return entry(job)


def decide(client: Client, row: RunJournalEntry, choice: str, **fields: str) -> Any:
    """Post a decision, as the form does."""
    page = client.get(decision_url(row))
    seen = page.context["case"].seen if page.status_code == 200 else ""
    return client.post(decision_url(row), {"choice": choice, "reason": "seen in the dashboard", "seen": seen, **fields})


def job_of(row: RunJournalEntry) -> Job:
    return queue.get(row.job_id or 0)


# --- the list --------------------------------------------------------------------------------------------------------


@on_sqlite
def test_an_empty_list_says_what_would_be_in_it(admin: Client) -> None:
    assert "Nothing waits for a decision." in look(admin, IN_DOUBT)


def test_what_waits_is_listed_longest_first(play: Play, admin: Client, alias: str) -> None:
    first, second = block(play(ask)), block(play(ask))
    RunJournalEntry.objects.using(alias).filter(pk=second.pk).update(started_at=PAST)
    content = admin.get(IN_DOUBT).content.decode()
    assert content.index(decision_url(second)) < content.index(decision_url(first))
    said = look(admin, IN_DOUBT)
    assert f"How to check: {HOW}" in said
    assert f"job {first.job_id} tests.durable.tasks.play blocked" in said


def test_mismatches_are_listed(admin: Client, misfit: RunJournalEntry) -> None:
    said = look(admin, IN_DOUBT)
    assert "The code does not fit the journal old" in said
    assert "the code asks for 'charge card'" in said


def test_a_doubt_for_which_nobody_waits_says_so(admin: Client, doubtful: RunJournalEntry) -> None:
    decide(admin, doubtful, "fail_job")
    assert "dead it is not waiting; if retried, it asks again" in look(admin, IN_DOUBT)


def test_a_run_outside_of_a_job_is_listed(alias: str, admin: Client) -> None:
    def raise_something() -> None:
        raise OSError("timed out")

    with pytest.raises(gnlqueue.RunBlocked), gnlqueue.durable_run("import:1") as run:
        run.step("fetch", raise_something)
    assert "the run import:1, outside a job" in look(admin, IN_DOUBT)
    row = entries().get()
    assert "Fail the job" not in look(admin, decision_url(row))
    assert decide(admin, row, "happened", result="5").status_code == 302
    assert entries().get().result == "5"


def test_pages_follow_each_other(play: Play, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ON_A_PAGE", 2)
    rows = [block(play(ask)) for _ in range(3)]
    first = admin.get(IN_DOUBT)
    after = first.context["next_after"]
    assert [each.entry.pk for each in first.context["doubtful"]] == [rows[0].pk, rows[1].pk]
    second = admin.get(IN_DOUBT, {"after": after})
    assert [each.entry.pk for each in second.context["doubtful"]] == [rows[2].pk]
    assert "Longest waiting" in second.content.decode()
    assert admin.get(IN_DOUBT, {"after": "nonsense,x"}).status_code == 200
    for after in ("2026-13-45T00:00:00+00:00,1", "0001-01-01T00:00:00+23:59,1", f"2026-01-01T00:00:00Z,{'9' * 30}"):
        assert admin.get(IN_DOUBT, {"after": after}).status_code == 200


@on_sqlite
def test_pages_of_mismatches_follow_each_other(play: Play, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ON_A_PAGE", 2)
    rows = []
    for _ in range(3):
        job = play(crashing(lambda context: context.step("old", lambda: 5)))
        attempt(job)
        play(ask, run_after=timedelta(days=1))
        assert attempt(job).blocked_reason == "mismatch"
        rows.append(entry(job))
    first = admin.get(IN_DOUBT)
    assert [each.entry.pk for each in first.context["mismatches"]] == [rows[0].pk, rows[1].pk]
    content = first.content.decode()
    assert "There are more than these 2." in content
    assert f'href="?after_job={rows[1].job_id}"' in content
    second = admin.get(IN_DOUBT, {"after_job": rows[1].job_id})
    assert [each.entry.pk for each in second.context["mismatches"]] == [rows[2].pk]
    assert "Longest waiting" in second.content.decode()
    assert admin.get(IN_DOUBT, {"after_job": "9" * 30}).status_code == 200


def test_the_number_of_queries_of_the_list_does_not_grow(play: Play, admin: Client, alias: str) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connections[alias]) as captured:
            admin.get(IN_DOUBT)
        return len(captured)

    block(play(ask))
    one = queries()
    for _ in range(3):
        block(play(ask))
    assert queries() == one == 4 + (2 if alias == "default" else 0)  # the clock, steps, their jobs, mismatches


# --- one decision ----------------------------------------------------------------------------------------------------


def test_the_page_says_what_is_known(admin: Client, doubtful: RunJournalEntry) -> None:
    said = look(admin, decision_url(doubtful))
    assert f"How to check {HOW}" in said
    assert "w1 is no longer on the list of workers" in said  # it began the step, and not the one that asked
    assert "Worker w1 Lease token 1" in said
    assert "4711" in said
    assert "“It is not there” does not mean “it did not happen”." in said


@on_sqlite
def test_nothing_is_chosen_beforehand(admin: Client, doubtful: RunJournalEntry) -> None:
    content = admin.get(decision_url(doubtful)).content.decode()
    assert content.count('type="radio"') == 3
    assert " checked" not in content


def test_the_idempotency_key_is_the_one_that_the_step_gets(play: Play, admin: Client) -> None:
    keys = []
    job = play(lambda context: keys.append(context.effect_key("charge card")) or ask(context))
    row = block(job)
    assert keys[0] in look(admin, decision_url(row))


def test_the_worker_that_began_it_may_still_run(admin: Client, doubtful: RunJournalEntry, alias: str) -> None:
    identity.register("w1", ["default"], 1, alias, lease=60)
    url = decision_url(doubtful)
    assert "Yes, it could. w1 is alive" in look(admin, url)
    WorkerProcess.objects.using(alias).update(heartbeat_at=PAST)
    assert "Yes, it could. w1 has not been heard from lately." in look(admin, url)
    identity.forget("w1", alias)
    assert "w1 is no longer on the list of workers" in look(admin, url)


def test_a_step_that_raised_does_not_run_any_more(play: Play, admin: Client, log_in: LogIn) -> None:
    def time_out() -> None:
        raise TimeoutError("30 s")

    job = play(lambda context: context.step("charge card", time_out))
    attempt(job)
    said = look(admin, decision_url(entry(job)))
    assert "The step's function has ended" in said
    assert "builtins.TimeoutError: 30 s" in said
    said = look(log_in("view_stepindoubt"), decision_url(entry(job)))
    assert "builtins.TimeoutError Its text is shown to those who may see arguments and results." in said


def test_evidence_of_a_late_worker_is_shown(admin: Client, doubtful: RunJournalEntry, log_in: LogIn) -> None:
    note = StepNote(entry=doubtful, lease_token=1, kind="evidence", by="token 1", at=PAST)
    note.why, note.value = "A worker came back.", '{"id":"ch_late"}'
    note.save(using=doubtful._state.db)
    said = look(admin, decision_url(doubtful))
    assert "A worker came back. " in said
    assert '{"id":"ch_late"}' in said
    assert "ch_late" not in look(log_in("view_stepindoubt"), decision_url(doubtful))


@on_sqlite
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"card":"42x42"}', '{ "card": "***" }'),
        ("<card 42x42>", "hidden by GNLQUEUE['REDACT']"),
        ("<id 7>", "<id 7>"),
        ('{"card":"42x42"}'.ljust(LONGEST_NOTE), "hidden by GNLQUEUE['REDACT']"),  # as long as what was cut
    ],
    ids=["JSON", "no JSON", "nothing to hide", "cut"],
)
def test_evidence_is_masked(admin: Client, doubtful: RunJournalEntry, settings: Any, value: str, said: str) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    note = StepNote(entry=doubtful, lease_token=1, kind="evidence", by="token 1", at=PAST, why="It came back.")
    note.value = value
    note.save(using=doubtful._state.db)
    page = look(admin, decision_url(doubtful))
    assert said in page
    assert "42x42" not in page


def test_it_happened(admin: Client, doubtful: RunJournalEntry) -> None:
    response = decide(admin, doubtful, "happened", result='{"id": "ch_9"}')
    assert response.status_code == 302
    assert response["Location"] == IN_DOUBT
    job = job_of(doubtful)
    assert job.status == JobStatus.READY
    assert attempt(job).result == {"id": "ch_9"}
    (note,) = notes("resolution")
    assert (note.by, note.why) == ("root", "seen in the dashboard")
    action = OperatorAction.objects.using(note._state.db).get()
    assert (action.verb, action.by, action.job_id, action.why) == ("resolve", "root", job.pk, "seen in the dashboard")
    assert "It happened" in action.target


def test_it_did_not_happen(admin: Client, doubtful: RunJournalEntry) -> None:
    decide(admin, doubtful, "not_happened")
    assert attempt(job_of(doubtful)).result == {"id": "ch_1"}


def test_the_job_is_failed(admin: Client, doubtful: RunJournalEntry) -> None:
    decide(admin, doubtful, "fail_job")
    job = job_of(doubtful)
    assert job.status == JobStatus.DEAD
    assert "seen in the dashboard" in (job.last_error or "")
    assert "retried, it asks again" in look(admin, job_url(job))


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"choice": ""}, "Choose one of these."),
        ({"choice": "go_on"}, "Select a valid choice."),
        ({"reason": "  "}, "Say why"),
        ({"choice": "happened", "result": ""}, "Enter what the step would have returned"),
        ({"choice": "happened", "result": "{"}, "This is not JSON"),
        ({"choice": "happened", "result": "NaN"}, "NaN is not JSON"),
        ({"choice": "happened", "result": "[" * 40 + "]" * 40}, "nested more than"),
        ({"choice": "happened", "result": "[" * 100_000}, "This is not JSON"),
        ({"choice": "happened", "result": '"\\u0000"'}, "NUL"),
    ],
)
def test_an_answer_that_is_none_is_asked_for_again(
    admin: Client, doubtful: RunJournalEntry, fields: dict[str, str], said: str
) -> None:
    response = decide(admin, doubtful, **{"choice": "not_happened", **fields})
    assert response.status_code == 422
    assert said in response.content.decode()
    assert entry(job_of(doubtful)).status == EntryStatus.IN_DOUBT
    assert not OperatorAction.objects.using(doubtful._state.db).exists()


def test_the_second_of_two_reads_who_decided_what(admin: Client, log_in: LogIn, doubtful: RunJournalEntry) -> None:
    second = log_in("view_stepindoubt", "resolve_runjournalentry", name="bea")
    seen = second.get(decision_url(doubtful)).context["case"].seen
    decide(admin, doubtful, "happened", result="1")
    response = decide(second, doubtful, "not_happened", seen=seen)
    assert response.status_code == 409
    assert "root decided first: it happened. seen in the dashboard" in response.content.decode()
    assert entry(job_of(doubtful)).status == EntryStatus.DONE


def test_two_who_decide_in_the_same_instant(
    admin: Client, doubtful: RunJournalEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_slower(*args: Any, **kwargs: Any) -> Any:
        gnlqueue.resolve(doubtful, gnlqueue.Happened(1), by="ada", reason="seen")
        return gnlqueue.resolve(*args, **kwargs)

    monkeypatch.setattr(doubt, "resolve", be_slower)
    response = decide(admin, doubtful, "not_happened")
    assert response.status_code == 409
    assert "ada decided first: it happened. seen" in response.content.decode()


def test_who_decides_on_a_page_of_before_somebody_elses_decision_is_told(
    play: Play, admin: Client, log_in: LogIn
) -> None:
    """All ordered pairs; what leaves the question open is asked again, on the page as it is then."""
    second = log_in("resolve_runjournalentry", name="bea")
    words = {"happened": "it happened", "not_happened": "it did not happen", "fail_job": "fail the job"}
    for first, then in itertools.product(words, repeat=2):
        row = block(play(ask))
        seen = second.get(decision_url(row)).context["case"].seen
        assert decide(admin, row, first, result="1").status_code == 302
        before = entry(job_of(row)), job_of(row).status, len(notes("resolution"))
        response = decide(second, row, then, result="2", seen=seen)
        assert response.status_code == 409
        content = response.content.decode()
        assert f"root decided first: {words[first]}. seen in the dashboard" in content
        assert ("That leaves the question open" in content) == (first == "fail_job")
        assert (entry(job_of(row)), job_of(row).status, len(notes("resolution"))) == before
        if first == "fail_job":
            again = response.context["case"].seen
            response = decide(second, row, then, result="2", seen=again)
            assert response.status_code == (422 if then == "fail_job" else 302)  # a dead job cannot be failed
        queue.cancel(row.job_id or 0)


def test_who_decides_in_the_instant_in_which_somebody_fails_the_job_is_told(
    play: Play, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_slower(*args: Any, **kwargs: Any) -> Any:
        gnlqueue.resolve(entry(job_of(row)), gnlqueue.FailJob(), by="ada", reason="enough")
        return gnlqueue.resolve(*args, **kwargs)

    monkeypatch.setattr(doubt, "resolve", be_slower)
    for choice in ("happened", "not_happened", "fail_job"):
        row = block(play(ask))
        response = decide(admin, row, choice, result="1")
        assert response.status_code == 409
        content = response.content.decode()
        assert "ada decided first: fail the job. enough. That leaves the question open. The job" in content
        assert "seen in the dashboard" in content  # what one had written is still there
        assert (entry(job_of(row)).status, job_of(row).status) == (EntryStatus.IN_DOUBT, JobStatus.DEAD)


@on_sqlite
def test_a_job_that_was_failed_and_asks_again_is_decided_on_a_new_page(
    admin: Client, doubtful: RunJournalEntry
) -> None:
    decide(admin, doubtful, "fail_job")
    of_the_dead = admin.get(decision_url(doubtful)).context["case"].seen
    attempt(queue.retry(job_of(doubtful)))
    content = decide(admin, doubtful, "not_happened", seen=of_the_dead).content.decode()
    assert "Something has happened since you opened this page." in content
    assert "was faster" not in content
    assert decide(admin, doubtful, "fail_job").status_code == 302


@on_sqlite
@pytest.mark.parametrize("seen", ["in_doubt-1-0-1", "", "²-in_doubt-1-0-1"])
@pytest.mark.parametrize("choice", ["happened", "fail_job"])
def test_a_page_of_another_version_does_not_tell_whether_somebody_was_faster(
    admin: Client, doubtful: RunJournalEntry, seen: str, choice: str
) -> None:
    decide(admin, doubtful, choice, result="1")
    response = decide(admin, doubtful, "not_happened", seen=seen)
    assert response.status_code == 409
    assert "was faster" not in response.content.decode()


@on_sqlite
def test_a_page_of_before_the_job_was_cancelled(admin: Client, doubtful: RunJournalEntry) -> None:
    """Also where that happens in the very instant."""
    news = "The job is not waiting for a decision now, but you may still say what became of the step."
    seen = admin.get(decision_url(doubtful)).context["case"].seen
    queue.cancel(job_of(doubtful))
    response = decide(admin, doubtful, "fail_job", seen=seen)
    assert response.status_code == 409
    assert news in response.content.decode()
    assert decide(admin, doubtful, "happened", result="1", seen=response.context["case"].seen).status_code == 302


@on_sqlite
def test_who_fails_the_job_in_the_instant_in_which_it_is_cancelled(
    admin: Client, doubtful: RunJournalEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_slower(*args: Any, **kwargs: Any) -> Any:
        queue.cancel(job_of(doubtful))
        return gnlqueue.resolve(*args, **kwargs)

    monkeypatch.setattr(doubt, "resolve", be_slower)
    response = decide(admin, doubtful, "fail_job")
    assert response.status_code == 409
    assert "The job is not waiting for a decision now" in response.content.decode()


@on_sqlite
def test_the_slower_of_two_sees_no_result_that_is_not_for_them(
    log_in: LogIn, doubtful: RunJournalEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_slower(*args: Any, **kwargs: Any) -> Any:
        gnlqueue.resolve(doubtful, gnlqueue.Happened({"iban": "DE4711"}), by="ada", reason="seen")
        return gnlqueue.resolve(*args, **kwargs)

    monkeypatch.setattr(doubt, "resolve", be_slower)
    content = decide(log_in("resolve_runjournalentry"), doubtful, "not_happened").content.decode()
    assert "ada decided first: it happened. seen" in content
    assert "DE4711" not in content


def test_who_decides_on_an_old_page_is_shown_what_is_new(admin: Client, doubtful: RunJournalEntry) -> None:
    seen = admin.get(decision_url(doubtful)).context["case"].seen
    note = StepNote(entry=doubtful, kind="evidence", by="token 1", at=PAST, why="A worker came back.")
    note.save(using=doubtful._state.db)
    response = decide(admin, doubtful, "not_happened", seen=seen)
    assert response.status_code == 409
    content = response.content.decode()
    assert "Something has happened since you opened this page." in content
    assert "A worker came back." in content
    assert "seen in the dashboard" in content  # what one had written is still there
    assert entry(job_of(doubtful)).status == EntryStatus.IN_DOUBT
    assert decide(admin, doubtful, "not_happened").status_code == 302


def test_a_step_that_was_decided_says_how(admin: Client, doubtful: RunJournalEntry) -> None:
    decide(admin, doubtful, "not_happened")
    said = look(admin, decision_url(doubtful))
    assert "It is not waiting for a decision." in said
    assert "root: it did not happen" in said


def test_there_is_no_such_step(admin: Client, alias: str) -> None:
    for id in ("77", "x", "9" * 30):
        assert admin.get(f"/admin/gnlqueue/stepindoubt/{id}/change/").status_code == 404


# --- a mismatch ------------------------------------------------------------------------------------------------------


@on_sqlite
def test_a_mismatch_shows_what_was_expected_and_got(admin: Client, misfit: RunJournalEntry) -> None:
    said = look(admin, decision_url(misfit))
    assert "Step old charge card" in said
    assert "Its recorded result: 5" in said
    content = admin.get(decision_url(misfit)).content.decode()
    assert [name in content for name in ("go_on", "use_recorded", "fail_job", "happened")] == [True, True, True, False]


@on_sqlite
def test_a_step_that_the_code_no_longer_asks_for(play: Play, admin: Client) -> None:
    job = play(crashing(lambda context: context.using(key="5").step("charge", lambda: 5)))
    attempt(job)
    play(lambda context: context.using(key="5").step("bill", send_bill), run_after=timedelta(days=1))
    assert attempt(job).blocked_reason == "mismatch"
    row = entry(job, "charge[5]")
    said = look(admin, decision_url(row))
    assert "The code no longer asks for this step" in said
    assert "You have put the code right, or what it did instead may stay." in said
    assert "Use the recorded result" not in said
    assert decide(admin, row, "use_recorded").status_code == 422
    assert decide(admin, row, "go_on").status_code == 302
    assert attempt(job).result == 6


def test_a_step_that_looks_like_a_new_one_under_another_name(play: Play, admin: Client) -> None:
    job = play(crashing(lambda context: context.using(key="5").step("charge", send_bill)))
    attempt(job)
    play(lambda context: context.using(key="5").step("bill", send_bill), run_after=timedelta(days=1))
    assert attempt(job).blocked_reason == "mismatch"
    row = entry(job, "charge[5]")
    said = look(admin, decision_url(row))
    assert said.count("tests.admin.test_doubt.send_bill") == 3  # expected, got, and what is known of the step
    assert "It is another step" in said
    assert "It may arrive after you looked" not in said
    assert decide(admin, row, "use_recorded").status_code == 302
    assert attempt(job).result == 6
    assert entry(job).key == "charge[5]"


def send_bill() -> int:
    return 6


def test_going_on_compares_again(admin: Client, misfit: RunJournalEntry) -> None:
    assert decide(admin, misfit, "go_on").status_code == 302
    assert attempt(job_of(misfit)).blocked_reason == "mismatch"


def test_the_recorded_result_is_used(admin: Client, misfit: RunJournalEntry) -> None:
    assert decide(admin, misfit, "use_recorded").status_code == 302
    assert attempt(job_of(misfit)).result == 5


@on_sqlite
def test_what_the_verb_refuses_is_said(admin: Client, misfit: RunJournalEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ValueError("it has a record of its own")

    monkeypatch.setattr(doubt, "resolve", refuse)
    response = decide(admin, misfit, "use_recorded")
    assert response.status_code == 422
    assert "it has a record of its own" in response.content.decode()


# --- who may ---------------------------------------------------------------------------------------------------------


@on_sqlite
def test_who_may_only_look_sees_no_form_and_gets_403(log_in: LogIn, doubtful: RunJournalEntry) -> None:
    client = log_in("view_stepindoubt")
    said = look(client, decision_url(doubtful))
    assert "You may see this, but not decide." in said
    assert 'type="radio"' not in client.get(decision_url(doubtful)).content.decode()
    assert decide(client, doubtful, "not_happened").status_code == 403
    assert entry(job_of(doubtful)).status == EntryStatus.IN_DOUBT


@on_sqlite
def test_who_may_decide_may_look(log_in: LogIn, doubtful: RunJournalEntry) -> None:
    client = log_in("resolve_runjournalentry")
    assert client.get(IN_DOUBT).status_code == 200
    assert decide(client, doubtful, "not_happened").status_code == 302


@on_sqlite
def test_others_see_nothing(log_in: LogIn, doubtful: RunJournalEntry) -> None:
    client = log_in("view_queuestate")
    for url in (IN_DOUBT, decision_url(doubtful), f"{IN_DOUBT}{doubtful.pk}/result/"):
        assert client.get(url).status_code == 403
    assert client.post(decision_url(doubtful), {"choice": "not_happened", "reason": "x"}).status_code == 403


def test_looking_changes_nothing(admin: Client, doubtful: RunJournalEntry, alias: str) -> None:
    with CaptureQueriesContext(connections[alias]) as captured:
        admin.get(decision_url(doubtful), {"choice": "not_happened", "reason": "x"})
        admin.get(IN_DOUBT)
    assert {query["sql"].split()[0].lstrip("(").upper() for query in captured} == {"SELECT"}
    assert jobs().filter(status=JobStatus.BLOCKED).count() == 1


@on_sqlite
def test_all_of_a_long_text_can_be_read(admin: Client, doubtful: RunJournalEntry, log_in: LogIn, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    note = StepNote(entry=doubtful, lease_token=1, kind="evidence", by="token 1", at=PAST)
    note.why = "It came back. " * 100 + "the end of why"
    note.value = json.dumps({"card": "42x42", "lines": list(range(1000)), "last": "the end of the value"})
    note.save(using=doubtful._state.db)
    said = look(admin, decision_url(doubtful))
    for text in ("the end of why", "the end of the value", "All 1,414 characters"):
        assert text in said
    assert "42x42" not in said
    said = look(log_in("view_stepindoubt"), decision_url(doubtful))
    assert "the end of why" not in said
    assert "the end of the value" not in said
