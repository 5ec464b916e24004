"""``manage.py gnlqueue``: what a person, or a script, asks of the queue from a shell."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import OperationalError

from gnlqueue import queue
from gnlqueue.management.commands import gnlqueue as gnlqueue_command
from gnlqueue.management.commands import runworker
from gnlqueue.models import Job, JobStatus
from gnlqueue.worker import identity
from tests.app import tasks
from tests.worker.conftest import drain, on_sqlite, row

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]


def gnlqueue(*words: Any) -> int:
    """Run the command; its exit status."""
    try:
        call_command("gnlqueue", *map(str, words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def dead(*args: Any) -> Job:
    """A dead job of the task `fail`."""
    job = tasks.fail.using(max_attempts=1).enqueue(*args)
    drain()
    return row(job)


def test_stats(alias: str, capsys: Capture) -> None:
    dead()
    tasks.nothing.enqueue()
    tasks.work_elsewhere.enqueue()

    assert gnlqueue("stats") == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines()[:9])
    assert lines == {
        "ready": "2", "scheduled": "0", "in_progress": "0", "expired": "0", "blocked": "0", "done": "0", "dead": "1",
        "cancelled": "0", "total": "3",
    }  # fmt: skip

    assert gnlqueue("stats", "--json", "--queue", "other") == 0
    assert json.loads(capsys.readouterr().out)["total"] == 1


@on_sqlite
def test_stats_names_what_is_paused(alias: str, capsys: Capture) -> None:
    for name in ("other", "mails"):
        assert gnlqueue("pause", name) == 0
    capsys.readouterr()
    assert gnlqueue("stats") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "paused      mails, other"


def test_stats_names_the_queues_that_nobody_serves(alias: str, capsys: Capture) -> None:
    def unserved(*options: str) -> list[str]:
        assert gnlqueue("stats", *options) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.removeprefix("unserved    ") for line in lines if line.startswith("unserved")]

    identity.register("w", ["default"], 1, alias, lease=60)
    tasks.nothing.enqueue()
    for name in ("mials", "resting", "partner", "partner"):
        tasks.nothing.using(queue_name=name).enqueue()
    tasks.nothing.using(queue_name="later", run_after=timedelta(hours=1)).enqueue()
    queue.pause("resting")
    assert queue.claim("partner", worker_id="a consumer of the project's own") is not None

    advice = "manage.py runworker --queues mials"
    assert unserved() == [f"mials: jobs wait, and no live worker serves it. {advice}"]
    assert unserved("--queue", "default") == []

    identity.forget("w", alias)
    assert [line.partition(":")[0] for line in unserved()] == ["default", "mials"]


def test_dead(alias: str, capsys: Capture) -> None:
    assert gnlqueue("dead") == 0
    assert "No dead jobs." in capsys.readouterr().out
    job = dead("no ✓ paper")

    assert gnlqueue("dead") == 0
    shown = capsys.readouterr().out
    assert f"job {job.pk}  tests.app.tasks.fail('no ✓ paper')  queue default, 1 attempt, " in shown
    assert "RuntimeError: no ✓ paper" in shown

    assert gnlqueue("dead", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) | {"finished_at": None} == {
        "id": job.pk,
        "task_name": "tests.app.tasks.fail",
        "queue_name": "default",
        "args": ["no ✓ paper"],
        "kwargs": {},
        "attempts": 1,
        "finished_at": None,
        "last_error": "RuntimeError: no ✓ paper",
    }

    assert gnlqueue("dead", "--traceback-of", job.pk) == 0
    shown = capsys.readouterr().out
    assert "attempt 1 on " in shown
    assert "raise RuntimeError(message)\nRuntimeError: no ✓ paper" in shown


@on_sqlite
def test_redacted_arguments_are_not_shown(alias: str, capsys: Capture, settings: Any) -> None:
    settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": ["message"]}
    tasks.fail.using(max_attempts=1).enqueue(message="4111 1111")
    tasks.fail.using(max_attempts=1).enqueue("4222 2222")
    drain()
    Job.objects.using(alias).update(last_error="card refused")

    gnlqueue("dead")
    gnlqueue("dead", "--json")

    shown = capsys.readouterr().out
    assert "4111 1111" not in shown
    assert "message='***'" in shown
    assert "4222 2222" not in shown  # positional arguments have no name in the row: none of them is shown


@on_sqlite
def test_dead_says_when_it_does_not_show_all(alias: str, capsys: Capture) -> None:
    first, second = dead(), dead()
    assert gnlqueue("dead", "--limit", 1) == 0
    shown = capsys.readouterr().out
    assert f"job {second.pk} " in shown
    assert f"job {first.pk} " not in shown
    assert shown.endswith("There are more: --limit N shows N of them.\n")
    assert gnlqueue("dead", "--limit", 2) == 0
    assert "There are more" not in capsys.readouterr().out
    assert gnlqueue("dead", "--json", "--limit", 1) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@on_sqlite
def test_dead_and_retry_of_one_task(alias: str, capsys: Capture) -> None:
    failed, other = dead(), queue.enqueue("elsewhere.task", max_attempts=1)
    claimed = queue.claim(worker_id="a partner")
    assert claimed is not None
    queue.fail(claimed, "no")

    assert gnlqueue("dead", "--task", "elsewhere.task") == 0
    shown = capsys.readouterr().out
    assert f"job {other.pk} " in shown
    assert f"job {failed.pk} " not in shown
    assert gnlqueue("retry", "--all-dead", "--task", "tests.app.tasks.fail") == 0
    assert (row(failed).status, row(other).status) == (JobStatus.READY, JobStatus.DEAD)
    capsys.readouterr()
    assert gnlqueue("retry", "--all-dead", "--task", "tests.app.tasks.fial", "--queue", "default") == 0
    assert capsys.readouterr().out == "No dead jobs of the task 'tests.app.tasks.fial' in the queue 'default'.\n"


def test_retry(alias: str, capsys: Capture) -> None:
    first, second, other = dead(), dead(), tasks.nothing.enqueue()

    assert gnlqueue("retry", first.pk) == 0
    assert capsys.readouterr().out == f"job {first.pk}  tests.app.tasks.fail: ready again\n"
    assert (row(first).status, row(first).attempts, row(second).status) == (JobStatus.READY, 0, JobStatus.DEAD)

    assert gnlqueue("retry", "--all-dead") == 0
    assert row(second).status == JobStatus.READY

    # What can be done is done, and the status says that not all could.
    third = dead()
    assert gnlqueue("retry", other.pk, third.pk, 10**9) == 1
    answer = capsys.readouterr()
    assert f"job {other.pk} (tests.app.tasks.nothing) is" in answer.err
    assert "There is no job 1000000000" in answer.err
    assert row(third).status == JobStatus.READY


@on_sqlite
def test_retry_wants_to_know_what(alias: str) -> None:
    with pytest.raises(CommandError, match="Name the jobs to retry, or use --all-dead"):
        gnlqueue("retry")
    with pytest.raises(CommandError, match="Name the jobs to retry, or use --all-dead"):
        gnlqueue("retry", 1, "--all-dead")
    with pytest.raises(CommandError, match="--queue goes with --all-dead"):
        gnlqueue("retry", 1, "--queue", "emails")
    with pytest.raises(CommandError, match="--task goes with --all-dead"):
        gnlqueue("retry", 1, "--task", "emails")


@on_sqlite
def test_retry_says_that_nothing_is_dead(alias: str, capsys: Capture) -> None:
    assert gnlqueue("retry", "--all-dead", "--queue", "mials") == 0
    assert "No dead jobs in the queue 'mials'." in capsys.readouterr().out


def test_pause_and_resume(alias: str, capsys: Capture) -> None:
    job = tasks.nothing.enqueue()
    assert gnlqueue("pause", "default") == 0
    undo = "paused default: running jobs go on. To undo this: manage.py gnlqueue resume default\n"
    assert capsys.readouterr().out == undo
    drain()
    assert row(job).status == JobStatus.READY

    assert gnlqueue("resume", "default") == 0
    assert capsys.readouterr().out == "resumed default\n"
    drain()
    assert row(job).status == JobStatus.DONE


@on_sqlite
def test_a_misspelt_queue_is_not_paused_or_resumed_in_silence(alias: str, capsys: Capture) -> None:
    assert gnlqueue("pause", "defualt") == 0
    assert "names the queue defualt, and no job is in it: is it misspelt?" in capsys.readouterr().out
    assert gnlqueue("resume", "default") == 0
    assert capsys.readouterr().out == "default was not paused; paused: defualt\n"
    assert gnlqueue("resume", "defualt") == 0
    assert gnlqueue("resume", "defualt") == 0
    assert capsys.readouterr().out == "resumed defualt\ndefualt was not paused; no queue is\n"

    queue.enqueue("elsewhere.task", queue_name="partner")  # another project's
    assert gnlqueue("pause", "partner") == 0
    assert "misspelt" not in capsys.readouterr().out


@on_sqlite
@pytest.mark.parametrize("days", ["-1", "inf", "1e10", "nan", "all"])
def test_prune_refuses_what_is_no_age(alias: str, days: str) -> None:
    dead("no paper")
    with pytest.raises(CommandError, match=r"not a number of days|between 0 seconds and a hundred years"):
        gnlqueue("prune", f"--days={days}", "--dead")
    assert Job.objects.using(alias).count() == 1


def test_prune(alias: str, capsys: Capture) -> None:
    done, gone = tasks.nothing.enqueue(), dead("no paper")
    drain()
    assert gnlqueue("prune", "--days", "1") == 0
    assert "pruned 0 jobs" in capsys.readouterr().out

    assert gnlqueue("prune", "--days", "0") == 0
    assert "pruned 1 job\n" in capsys.readouterr().out
    assert not Job.objects.using(alias).filter(pk=done.pk).exists()

    assert gnlqueue("prune", "--days", "0", "--dead", "--queue", "default") == 0
    assert not Job.objects.using(alias).filter(pk=gone.pk).exists()


@on_sqlite
def test_whoever_reads_may_stop_reading(alias: str) -> None:
    command = [sys.executable, "-m", "django", "gnlqueue", "stats"]
    reads, writes = os.pipe()
    os.close(reads)  # as `head` has, once it has its lines
    done = subprocess.run(command, cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


def test_cancel(alias: str, capsys: Capture) -> None:
    running, waiting = tasks.nothing.using(priority=1).enqueue(), tasks.nothing.enqueue()
    assert queue.claim(worker_id="w") is not None

    assert gnlqueue("cancel", running.pk, waiting.pk) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"job {running.pk}  tests.app.tasks.nothing: asked to stop",
        f"job {waiting.pk}  tests.app.tasks.nothing: cancelled",
    ]
    assert row(running).cancel_requested_at is not None
    assert gnlqueue("cancel", 10**9) == 1


@on_sqlite
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stats", "--database", "elsewhere"], "DATABASES has no alias 'elsewhere'"),
        (["stats", "--queue", "No Queue"], "'No Queue' is not a queue name"),
        (["dead", "--traceback-of", "12345"], "There is no job 12345"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_questions_that_have_no_answer(alias: str, words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        gnlqueue(*words)


@on_sqlite
@pytest.mark.parametrize("command", [["gnlqueue", "stats"], ["gnlqueue", "worker"], ["runworker"]], ids=" ".join)
def test_a_database_that_code_names_and_that_is_not_there(alias: str, command: list[str]) -> None:
    with pytest.raises(CommandError, match="'elsewhere'"):
        call_command(*command, database="elsewhere", no_heartbeat=True)


@on_sqlite
@pytest.mark.parametrize(
    "words",
    [
        ["runworker", "--drain", "--verbosity", "0"],
        ["gnlqueue", "worker", "--drain", "--verbosity", "0"],
        ["gnlqueue", "--verbosity", "0", "worker", "--drain"],
        ["gnlqueue", "stats", "-v", "0", "--settings", "tests.settings", "--no-color"],
    ],
    ids=" ".join,
)
def test_djangos_flags_before_and_after_the_subcommand(
    alias: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(options: dict[str, Any]) -> None:
        seen.append(options["verbosity"])

    command = load_command_class("gnlqueue", words[0])
    monkeypatch.setattr(runworker, "run_worker", look)
    monkeypatch.setattr(gnlqueue_command, "run_worker", look)
    monkeypatch.setattr(gnlqueue_command.Command, "_stats", lambda _, options: look(options))
    command.run_from_argv(["manage.py", *words])
    assert seen == [0]


@on_sqlite
def test_code_names_a_queue_by_keyword(alias: str, capsys: Capture) -> None:
    tasks.nothing.enqueue()
    call_command("gnlqueue", "stats", queue="closed", json=True)
    assert json.loads(capsys.readouterr().out)["total"] == 0


def test_database_that_is_not_migrated(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:  # the test's end looks at the table
        patched.setattr(Job._meta, "db_table", "gnlqueue_not_yet")
        with pytest.raises(CommandError) as told:
            gnlqueue("stats")
    assert str(told.value).startswith(
        f"The database '{alias}' has no table gnlqueue_not_yet. Create the queue's tables"
    )


@on_sqlite
def test_database_that_does_not_answer(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("no such column: progress")

    monkeypatch.setattr(queue, "stats", away)
    with pytest.raises(CommandError, match=r"migrated \(manage.py migrate\)\? It said: no such column: progress$"):
        gnlqueue("stats")


@on_sqlite
def test_the_hint_retries_only_what_was_listed(alias: str, capsys: Capture) -> None:
    dead()
    assert gnlqueue("dead", "--task", "tests.app.tasks.fail") == 0
    assert "or retry --all-dead --task tests.app.tasks.fail." in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_is_a_whole_number_above_zero(limit: str) -> None:
    with pytest.raises(CommandError, match="is not a whole number above 0"):
        gnlqueue("dead", "--limit", limit)
