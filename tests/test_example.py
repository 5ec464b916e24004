"""The example project: its own tests, and its demo from the first line to the last, in processes of its own."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Project:
    """A copy of the example project, so that nobody's demo loses its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.var = directory / "example_project" / "var"
        shutil.copytree(ROOT / "example_project", self.var.parent, ignore=shutil.ignore_patterns("var", "__pycache__"))
        theirs = ("DJANGO_SETTINGS_MODULE", "PYTEST_VERSION", "SHOP_DATABASE_URL", "SHOP_GATEWAY_URL")
        self._env = {name: value for name, value in os.environ.items() if name not in theirs}
        self._env["PYTHONPATH"] = str(ROOT)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command of its manage.py."""
        return subprocess.Popen(
            [sys.executable, "-W", "error", "example_project/manage.py", *words],
            cwd=self.directory,
            env=self._env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def manage(self, *words: str, timeout: float = 60) -> str:
        """Run a command of its manage.py to its end, and return what it said."""
        with self.start(*words) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, output
        return output

    def stats(self) -> dict[str, int]:
        """Count the jobs."""
        counts: dict[str, int] = json.loads(self.manage("gnlqueue", "stats", "--json"))
        return counts

    def charges(self) -> list[str]:
        """Return the orders that were charged, as the gateway's ledger has them."""
        lines = (self.var / "gateway" / "ledger.jsonl").read_text().splitlines()
        return [record["order"] for record in map(json.loads, lines) if record["outcome"] == "charged"]

    @contextmanager
    def gateway(self) -> Iterator[None]:
        """Run the gateway, on a port that is free."""
        with self.start("gateway", "--port=0") as process:
            try:
                assert process.stdout is not None
                self._env["SHOP_GATEWAY_URL"] = process.stdout.readline().split()[-1]
                yield
            finally:
                process.terminate()


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_there_is_nothing_to_complain_about(project):
    assert "no issues" in project.manage("check", "--database", "default")
    assert "No changes" in project.manage("makemigrations", "--check", "--dry-run")


def test_its_own_tests_pass(project):
    assert "OK" in project.manage("test", "shop")


def test_the_demo_charges_nobody_twice_and_asks_where_it_does_not_know(project):
    output = project.manage("demo", timeout=150)  # some 20 s, but on a machine that does other things too
    rows = re.findall(r"^(\w[\w ]+?) {2,}(\d+)\b", output, re.MULTILINE)
    table = {name: int(number) for name, number in rows}
    # A worker that was killed before the gateway had decided leaves an order that is neither charged nor declined.
    [undecided] = re.findall(r"^waiting .*; (\d+) of them not charged", output, re.MULTILINE) or [0]
    assert table["orders"] == table["charged once"] + table["declined"] + int(undecided) == 120, output
    assert table["charged twice"] == table["written twice"] == table["stock off by"] == table["jobs dead"] == 0, output
    assert table["declined"] <= 10 <= table["declined"] + int(undecided), output  # as many cards are no good
    # One worker process in the middle of a charge, and then a whole machine, in the middle of a receipt too.
    assert len(re.findall("^kill -9 ", output, re.MULTILINE)) == 2, output
    assert len(re.findall("^rescued ", output, re.MULTILINE)) == 2, output
    assert table["jobs rescued"] >= 2, output
    assert table["waiting"] >= 1, output
    assert table["receipts written"] >= table["charged once"] - table["waiting"], output
    decide_as_shown(project, output)


def decide_as_shown(project, output):
    """Follow word for word what the demo suggests, and see the job through."""
    [command] = re.findall(r"manage\.py (gnlqueue resolve .*)$", output, re.MULTILINE)
    words = shlex.split(command)
    before = project.stats()
    assert f"entry {words[2]} " in project.manage("gnlqueue", "blocked")
    with project.gateway():
        project.manage(*words)
        assert f"entry {words[2]} " not in project.manage("gnlqueue", "blocked")
        for _ in range(20):  # once it is packed; a worker that finds nothing due takes a moment to say so
            project.manage("runworker", "--drain")
            after = project.stats()
            if after["blocked"] + after["done"] == after["total"]:
                break
    assert (after["blocked"], after["dead"]) == (before["blocked"] - 1, 0)
    assert len(project.charges()) == len(set(project.charges()))


def test_ctrl_c_ends_all_that_the_demo_started(project):
    with project.start("demo") as process:
        pids = []
        for line in process.stdout:
            pids += [int(pid) for pid in re.findall(r"^\w[\w ]* PID (\d+)", line)]
            if line.startswith("working ") and len(pids) == 3:  # the gateway and two machines
                break
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, output
    assert "stopped" in output
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)  # each was the leader of a group, with its workers in it
