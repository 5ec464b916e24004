"""The types hold what they promise: see ``typing_examples.py``."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_type_checker_accepts_right_uses_and_refuses_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("mypy_django_plugin")
    # Elsewhere, because mypy is told to overlook the tests.
    examples = shutil.copy(Path(__file__).with_name("typing_examples.py"), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--warn-unused-ignores", examples],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
