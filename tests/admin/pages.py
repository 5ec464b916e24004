"""What tests of pages share: addresses, and what a page says."""

import html
import re
from typing import Any

from django.test import Client
from django.urls import reverse


def job_url(job: Any) -> str:
    """The address of a job's page."""
    return reverse("admin:gnlqueue_job_change", args=[job.pk])


def decision_url(entry: Any) -> str:
    """The address of the page on which somebody decides about a step."""
    return reverse("admin:gnlqueue_stepindoubt_change", args=[entry.pk])


IN_DOUBT = "/admin/gnlqueue/stepindoubt/"


def text_of(content: str) -> str:
    """What a page's main part says, with spaces as a reader sees them."""
    main = content.partition('id="content-main"')[2] or content
    text = re.sub(r"<[^>]*>", " ", main.replace("<wbr>", ""))
    return re.sub(r"\s+", " ", html.unescape(text)).replace(" :", ":")


def look(client: Client, url: str, status: int = 200) -> str:
    """What the page at an address says."""
    response = client.get(url)
    assert response.status_code == status
    return text_of(response.content.decode())


def messages(response: Any) -> str:
    """What a page tells of what was just done."""
    return " ".join(str(message) for message in response.context["messages"])
