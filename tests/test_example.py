"""The example project: its own tests, and its demo from the first line to the last, in processes of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def manage(tmp_path):
    """``manage("check")`` runs a command in a copy of the project, so that nobody's demo loses its files."""
    project = tmp_path / "example_project"
    shutil.copytree(ROOT / "example_project", project, ignore=shutil.ignore_patterns("var", "__pycache__"))
    theirs = ("DJANGO_SETTINGS_MODULE", "PYTEST_VERSION", "SHOP_DATABASE_URL")
    env = {name: value for name, value in os.environ.items() if name not in theirs}
    env["PYTHONPATH"] = str(ROOT)

    def run(*words: str, timeout: float = 60) -> str:
        command = [sys.executable, "-W", "error", "example_project/manage.py", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, timeout=timeout, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_there_is_nothing_to_complain_about(manage):
    assert "no issues" in manage("check", "--database", "default")
    assert "No changes" in manage("makemigrations", "--check", "--dry-run")


def test_its_own_tests_pass(manage):
    assert "OK" in manage("test", "shop")


def test_the_demo_loses_no_receipt(manage):
    output = manage("demo", timeout=120)  # some 15 s, but on a machine that does other things too
    rows = re.findall(r"^(\w[\w ]+?) {2,}(\d+)\b", output, re.MULTILINE)
    table = {name: int(number) for name, number in rows}
    assert table["orders"] == table["receipts written"] == table["invoices"] == 300, output
    assert table["jobs done"] == 601, output
    assert table["jobs dead"] == 0, output
    # One worker process, and then a whole machine, each in the middle of a receipt.
    assert len(re.findall("^kill -9 ", output, re.MULTILINE)) == 2, output
    assert len(re.findall("^rescued ", output, re.MULTILINE)) == 2, output
    assert table["jobs rescued"] >= 2, output
    assert table["written twice"] <= table["jobs rescued"], output
