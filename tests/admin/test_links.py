"""No page leads its reader to one that this reader may not open."""

import html
import re
from typing import Any
from urllib.parse import parse_qs, urljoin

import pytest
from django.test import Client
from django.urls import resolve

from gnlqueue import queue
from tests.admin.conftest import LogIn
from tests.admin.pages import look
from tests.admin.stories import PAGES, tell
from tests.durable.conftest import on_sqlite

MODELS = ("overview", "job", "deadjob", "stepindoubt", "queuestate", "workerprocess", "operatoraction")

#: What everybody may here besides seeing one kind of page.
VERBS = ("retry_job", "cancel_job", "view_job_payload", "pause_queuestate")


def links_of(client: Client, url: str) -> list[str]:
    """Where a page leads; none where it may not be opened."""
    response = client.get(url)
    if response.status_code != 200:
        assert response.status_code == 403, url
        return []
    found = re.findall(r'<a\b[^>]*\bhref="([^"#]+)"', response.content.decode())
    return [address for address in map(html.unescape, found) if address != "/" and "/logout/" not in address]


def kind_of(address: str) -> Any:
    """What makes a link another one to follow: its page and what is asked of it, not which job or value it is about."""
    path, _, query = address.partition("?")
    asked = parse_qs(query, keep_blank_values=True)
    found = resolve(path)
    names = [*found.args, *found.kwargs.values(), *asked.get("verb", ())]
    return found.view_name, tuple(name for name in names if not str(name).isdigit()), tuple(sorted(asked))


@on_sqlite
@pytest.mark.parametrize("model", MODELS)
def test_no_link_leads_where_one_may_not_go(alias: str, log_in: LogIn, model: str) -> None:
    story = tell()
    queue.enqueue("demo")
    assert queue.claim(worker_id="of nobody") is not None
    client = log_in(f"view_{model}", *VERBS)
    pages = [page(story) for page in PAGES.values()]
    pages.append('/admin/gnlqueue/job/bulk/?verb=retry&criteria={"statuses": ["dead"]}')
    opened = {url: links for url in pages if (links := links_of(client, url))}
    assert opened, "nothing may be opened"
    found = [(url, urljoin(url, link)) for url, links in opened.items() for link in links]
    for url, address in {kind_of(address): (url, address) for url, address in found}.values():
        assert client.get(address, follow=True).status_code == 200, f"{url} leads to {address}"


@on_sqlite
def test_who_sees_dead_jobs_only_reads_their_numbers(alias: str, log_in: LogIn) -> None:
    story = tell()
    client = log_in("view_deadjob", "retry_job")
    for url in ("/admin/gnlqueue/deadjob/", '/admin/gnlqueue/job/bulk/?verb=retry&criteria={"statuses": ["dead"]}'):
        page = client.get(url).content.decode()
        assert str(story.dead.pk) in page
        assert f"/job/{story.dead.pk}/" not in page
        assert f"/deadjob/{story.dead.pk}/" not in page


@on_sqlite
@pytest.mark.parametrize("page", ["overview", "a blocked job"])
def test_nobody_is_invited_where_they_may_not_go(alias: str, log_in: LogIn, page: str) -> None:
    url = PAGES[page](tell())
    seen = look(log_in("view_overview", "view_job"), url)
    assert "in doubt" in seen
    assert "Decide" not in seen
    assert "Decide" in look(log_in("view_overview", "view_job", "view_stepindoubt", name="bob"), url)
