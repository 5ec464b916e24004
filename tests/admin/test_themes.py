"""Other themes of the admin: every page is there, with what it says."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from django.contrib.auth.models import User

from tests.admin.stories import PAGES, Story, tell
from tests.durable.conftest import on_sqlite

pytestmark = on_sqlite

#: What each page says in any theme.
SAYS = {
    "overview": "1",
    "jobs": "tests.app.tasks.fail",
    "jobs, filtered": "tests.app.tasks.fail",
    "a job that waits": "Its queue other is paused.",
    "a blocked job": "Nobody knows whether its step “charge card” happened.",
    "a dead job": "It is dead",
    "a done job": "page#2",
    "to retry": "tests.app.tasks.fail",
    "to reschedule": "tests.app.tasks.nothing",
    "to enqueue again": "reserve stock",
    "to retry many": "tests.app.tasks.fail",
    "dead letters": "RuntimeError",
    "in doubt": "reserve stock",
    "a decision": "It did not happen",
    "a mismatch": "reserve goods",
    "queues": "other",
    "workers": "vm-1",
    "operator log": "312 jobs",
}


@pytest.fixture
def story(alias: str) -> Story:
    return tell()


@pytest.mark.parametrize("theme", ["unfold", "jazzmin"])
def test_every_page_is_there(story: Story, theme: str) -> None:
    if importlib.util.find_spec(theme) is None:
        pytest.skip(f"django-{theme} is not installed")
    User.objects.create_superuser("root")
    urls = {name: url(story) for name, url in PAGES.items()}
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.admin.theme_settings", "GNLQUEUE_TEST_THEME": theme}
    environment.pop("PYTEST_VERSION", None)
    command = [sys.executable, "-m", "tests.admin.themed", *urls.values()]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)
    assert {name: answers[url][0] for name, url in urls.items()} == dict.fromkeys(urls, 200), ran.stderr
    assert [name for name, url in urls.items() if SAYS[name] not in answers[url][1]] == []
