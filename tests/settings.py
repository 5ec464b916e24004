"""Settings of the tests, of the processes they start, and of mypy and ``makemigrations``.

Only pytest looks for database servers. The processes it starts read what it found from their environment. Whatever
else imports this module gets an SQLite database in memory and starts nothing.
"""

import json
import os
from typing import Any

from tests import servers

if "PYTEST_VERSION" in os.environ:  # set by pytest, before anything reads the settings
    servers.find()

DATABASES = servers.databases()


def gnlqueue_settings() -> dict[str, Any]:
    """The queue's settings: what a test wants them to be in the processes that it starts."""
    settings = json.loads(os.environ.get("GNLQUEUE_TEST_SETTINGS", "{}"))
    if "GNLQUEUE_TEST_ALIAS" in os.environ:  # set by the fixture "alias"
        settings["DATABASE"] = os.environ["GNLQUEUE_TEST_ALIAS"]
    return settings


GNLQUEUE = gnlqueue_settings()

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "rangefilter",
    "gnlqueue",
    "tests.app",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
SECRET_KEY = "only for tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick: the tests log in often
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
