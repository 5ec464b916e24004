"""The tests' settings with a theme of the admin, in a process of its own: themes replace templates for good."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [os.environ["GNLQUEUE_TEST_THEME"], "django.contrib.staticfiles", *INSTALLED_APPS]
ALLOWED_HOSTS = ["localhost"]
