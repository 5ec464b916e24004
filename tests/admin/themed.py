"""Fetches pages as a superuser, and prints what came: `python -m tests.admin.themed URL …`."""

import json
import sys

import django
from django.test import Client


def fetch(urls: list[str]) -> dict[str, tuple[int, str]]:
    """The status and the text of each page."""
    from django.contrib.auth.models import User

    from tests.admin.pages import text_of

    client = Client(SERVER_NAME="localhost", raise_request_exception=False)
    client.force_login(User.objects.get(username="root"))
    answers = {url: client.get(url) for url in urls}
    return {url: (answer.status_code, text_of(answer.content.decode())) for url, answer in answers.items()}


if __name__ == "__main__":
    django.setup()
    json.dump(fetch(sys.argv[1:]), sys.stdout)
