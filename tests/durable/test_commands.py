"""``manage.py gnlqueue blocked`` and ``resolve``."""

import io
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gnlqueue import JobContext, queue
from gnlqueue.durable.resolving import in_doubt
from gnlqueue.models import EntryStatus, Job, JobStatus, StepNote
from gnlqueue.redaction import masked_text
from tests.durable import tasks
from tests.durable.conftest import attempt, end_lease, entry, notes, on_sqlite

Play = Callable[..., Job]


def gnlqueue(*words: Any) -> str:
    """What the command writes."""
    out = io.StringIO()
    call_command("gnlqueue", *map(str, words), stdout=out, no_color=True)
    return out.getvalue()


@pytest.fixture
def doubtful(play: Play) -> Job:
    """A job that charged, and got no answer."""

    def charge() -> None:
        raise TimeoutError("no answer")

    return attempt(play(lambda context: context.using(how_to_check="Ask the bank.").step("charge", charge)))


@pytest.fixture
def mismatched(play: Play) -> Job:
    """A job whose code was changed."""

    def before(context: JobContext) -> None:
        context.step("charge", lambda: "paid")
        raise OSError("crash")

    job = play(before)
    attempt(job)
    tasks.handlers["play"] = lambda context: context.step("charge card", lambda: "paid twice")
    return attempt(job)


def test_blocked_lists_what_waits_and_how_to_decide(doubtful: Job, mismatched: Job) -> None:
    written = gnlqueue("blocked")
    assert (
        f"entry {entry(doubtful).pk}  charge  of {doubtful.run_id}, step, calls {entry(doubtful).function}\n" in written
    )
    assert "    tests.durable.tasks.play(), blocked\n" in written
    assert "it raised builtins.TimeoutError: no answer" in written
    assert "how to check: Ask the bank." in written
    assert f"entry {entry(mismatched).pk}  charge  of {mismatched.run_id}" in written
    assert "the code asks for 'charge card'" in written
    assert "args_hash" not in written
    assert "manage.py gnlqueue resolve ENTRY" in written
    assert gnlqueue("blocked", "--limit", 1).count("entry ") == 1


@pytest.mark.parametrize("hidden", [(), ("card",)], ids=["", "redacted"])
def test_what_a_late_worker_brought_back_is_shown_to_whoever_resolves(
    play: Play, in_thread: Callable[..., Future[Any]], settings: Any, hidden: tuple[str, ...]
) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": hidden}

    def charge() -> dict[str, Any]:
        end_lease(job)
        assert in_thread(attempt, job).result(30).status == JobStatus.BLOCKED
        return {"id": 7, "card": "visa-4111"}

    job = play(lambda context: context.step("charge", charge))
    assert attempt(job).status == JobStatus.BLOCKED

    (doubtful,) = in_doubt()
    (evidence,) = doubtful.notes.all()
    assert (doubtful, evidence.kind, evidence.lease_token) == (entry(job), StepNote.Kind.EVIDENCE, 1)
    assert evidence.value == '{"id":7,"card":"visa-4111"}'
    first = job.failed_attempts.get()
    began, line = [line for line in gnlqueue("blocked").splitlines() if "evidence" in line or "began" in line]
    assert began.endswith(f" UTC under token 1 on {first.worker_id}")  # not that of the claim which found it in doubt
    assert f" UTC, token 1 (attempt 1 on {first.worker_id}): A worker that no longer held the run came back" in line
    assert line.endswith('[{"id": 7, "card": "***"}]' if hidden else '[{"id":7,"card":"visa-4111"}]')


@on_sqlite
def test_what_can_not_be_masked_is_hidden_from_blocked(play: Play, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["card"]}
    attempt(play(lambda context: context.step("charge", lambda: {"card", "visa-4111"})))
    attempt(play(lambda context: context.step("charge", lambda: {"paid"})))

    written = gnlqueue("blocked")
    assert "visa-4111" not in written
    assert "[***]" in written
    assert "[{'paid'}]" in written
    assert masked_text("[" * 2000) == "[" * 2000  # no JSON, or too deep: either way it is only text
    assert masked_text("[" * 2000 + "]" * 2000).startswith("[")


@on_sqlite
def test_long_evidence_is_cut(play: Play) -> None:
    attempt(play(lambda context: context.step("charge", lambda: {"x" * 1000})))
    assert f"[{{'{'x' * 198}… (1,004 characters)]" in gnlqueue("blocked")


@on_sqlite
def test_blocked_says_when_nothing_waits(alias: str) -> None:
    assert gnlqueue("blocked") == "Nothing waits for a decision.\n"


@pytest.mark.parametrize(
    ("answer", "status", "job_status"),
    [
        (["--happened", '{"id": 7}'], EntryStatus.DONE, JobStatus.READY),
        (["--happened", "null"], EntryStatus.DONE, JobStatus.READY),
        (["--not-happened"], EntryStatus.RELEASED, JobStatus.READY),
        (["--fail-job"], EntryStatus.IN_DOUBT, JobStatus.DEAD),
    ],
)
def test_resolve_decides_a_doubt(doubtful: Job, answer: list[str], status: EntryStatus, job_status: JobStatus) -> None:
    charge = entry(doubtful).pk
    written = gnlqueue("resolve", charge, *answer, "--by", "ada", "--reason", "asked the bank")
    assert written == f"entry {charge}  charge of {doubtful.run_id}: {status.label.lower()}\n"
    assert (entry(doubtful).status, queue.get(doubtful).status) == (status, job_status)
    (note,) = notes("resolution")
    assert (note.by, note.why) == ("ada", "asked the bank")


@pytest.mark.parametrize(
    ("answer", "job_status", "result"),
    [("--go-on", JobStatus.BLOCKED, None), ("--use-recorded", JobStatus.DONE, "paid"), ("--fail-job", None, None)],
)
def test_resolve_decides_a_mismatch(mismatched: Job, answer: str, job_status: JobStatus | None, result: Any) -> None:
    gnlqueue("resolve", entry(mismatched).pk, answer, "--reason", "looked at the code")
    if job_status is None:
        assert queue.get(mismatched).status == JobStatus.DEAD
    else:
        after = attempt(mismatched)
        assert (after.status, after.result) == (job_status, result)


@on_sqlite
def test_the_user_of_the_shell_decides_unless_somebody_else_is_named(
    doubtful: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "grace")
    gnlqueue("resolve", entry(doubtful).pk, "--not-happened", "--reason", "sure")
    assert notes("resolution")[0].by == "grace"


@on_sqlite
def test_a_user_without_a_name_says_it(doubtful: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no username")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert "entry" in gnlqueue("blocked")
    with pytest.raises(CommandError, match="--by NAME"):
        gnlqueue("resolve", entry(doubtful).pk, "--not-happened", "--reason", "sure")
    gnlqueue("resolve", entry(doubtful).pk, "--not-happened", "--reason", "sure", "--by", "ada")


@on_sqlite
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--happened", "{paid}", "--reason", "sure"], "takes the step's result as JSON"),
        (["--happened", "NaN", "--reason", "sure"], "cannot carry"),
        (["--not-happened", "--reason", ""], "Say who decides"),
        (
            ["--go-on", "--reason", "sure"],
            "is no mismatch. .*--happened JSON.*--not-happened.*--fail-job",
        ),
        (["--not-happened"], "--reason"),
        (["--reason", "sure"], "one of the arguments"),
        (["--not-happened", "--fail-job", "--reason", "sure"], "not allowed with"),
        (["--not-happened", "--reason", "sure", "--database", "nowhere"], "no alias 'nowhere'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(doubtful: Job, words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        gnlqueue("resolve", entry(doubtful).pk, *words)
    assert refused.value.returncode == 1
    assert entry(doubtful).status == EntryStatus.IN_DOUBT
    assert notes("resolution") == []


@on_sqlite
def test_an_entry_that_is_not_there_is_refused(alias: str) -> None:
    with pytest.raises(CommandError, match="no journal entry 5"):
        gnlqueue("resolve", 5, "--not-happened", "--reason", "sure")


def test_the_second_of_two_is_told_so(doubtful: Job) -> None:
    gnlqueue("resolve", entry(doubtful).pk, "--not-happened", "--by", "ada", "--reason", "asked the bank")
    with pytest.raises(CommandError, match="has been resolved by ada"):
        gnlqueue("resolve", entry(doubtful).pk, "--happened", "1", "--by", "bob", "--reason", "sure")


@on_sqlite
def test_a_job_that_somebody_failed_says_that_it_asks_again_once_it_is_retried(doubtful: Job) -> None:
    gnlqueue("resolve", entry(doubtful).pk, "--fail", "--by", "ada", "--reason", "too old")
    assert f"it asks again once it is retried: manage.py gnlqueue retry {doubtful.pk}" in gnlqueue("blocked")
    with pytest.raises(CommandError, match=r"by ada .* Retry the job"):
        gnlqueue("resolve", entry(doubtful).pk, "--happened", "1", "--by", "bob", "--reason", "sure")


@on_sqlite
def test_a_job_that_nobody_failed_does_not_say_that_it_asks_again(play: Play) -> None:
    """Its step is never asked about: it fails its job."""

    def charge() -> None:
        raise TimeoutError("no answer")

    job = attempt(play(lambda context: context.using(on_doubt="fail").step("charge", charge), max_attempts=1))
    assert (job.status, entry(job).status) == (JobStatus.DEAD, EntryStatus.IN_DOUBT)
    written = gnlqueue("blocked")
    assert f"entry {entry(job).pk}  charge" in written
    assert "asks again" not in written


@on_sqlite
@pytest.mark.parametrize("hidden", [["card"], lambda name: name == "card"], ids=["names", "function"])
def test_the_second_of_two_does_not_read_what_is_to_be_hidden(doubtful: Job, settings: Any, hidden: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": hidden}
    charge = entry(doubtful).pk
    gnlqueue("resolve", charge, "--happened", '{"card": "4111"}', "--by", "ada", "--reason", "asked the bank")
    with pytest.raises(CommandError, match=r"by ada at .* UTC: Happened\(\*\*\*\)\. asked the bank"):
        gnlqueue("resolve", charge, "--not-happened", "--by", "bob", "--reason", "sure")


def test_what_was_decided_before_can_be_read(doubtful: Job, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": lambda name: True}
    gnlqueue("resolve", entry(doubtful).pk, "--fail-job", "--by", "ada", "--reason", "too old")
    assert "UTC, ada: too old [FailJob()]" in gnlqueue("blocked")
