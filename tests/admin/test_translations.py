"""Every label of the admin can be translated: where all that is asked for is marked, nothing is left without a mark."""

import re
import socket
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from gnlqueue.registry import default_queues, registered
from tests.admin.stories import PAGES, tell
from tests.durable.conftest import on_sqlite

#: Attributes that people read, or that a script shows them.
READ = {"title", "aria-label", "placeholder", "alt", "label", "data-gq-paused", "data-gq-failed"}

UNREAD = {"script", "style", "code", "pre", "textarea"}  # and what is code, or somebody's own text


class Words(HTMLParser):
    """Collects what people read on a page."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._unread = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unread += tag in UNREAD
        self.said += [value or "" for name, value in attrs if name in READ]

    def handle_endtag(self, tag: str) -> None:
        self._unread -= tag in UNREAD

    def handle_data(self, data: str) -> None:
        if not self._unread:
            self.said.append(data)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is translated stands in ⟦brackets⟧."""
    catalog = translation._trans  # type: ignore[attr-defined]
    for name in ("gettext", "pgettext", "ngettext", "npgettext"):
        translate = getattr(catalog, name)
        monkeypatch.setattr(catalog, name, lambda *args, its=translate: f"⟦{its(*args)}⟧")


#: What stays as it is: names and texts of the story, times, what the engine wrote down, one word of Django's.
DATA = re.compile(
    rf"({re.escape(socket.gethostname())}|vm|w1)[\w-]*(,( \d+)?)?|[\d-]+ [\d:.]+ UTC|UTC|p\d\d|"
    r"(\d+ )?([\w.]+\.\w+|default|other|(charge|reserve) \w+|page(#\d)?|step|message)|"
    r"(OS|Runtime)Error(: no paper)?|(The worker|The code|Nobody knows) .*|Look for order .*|"
    r"root|ada|The printer has paper again\.|312 jobs|Search"
)


def unmarked(page: str) -> set[str]:
    words = Words()
    words.feed(page.replace("<wbr>", ""))
    text = "\n".join(" ".join(each.split()) for each in words.said)
    while text != (less := re.sub(r"⟦[^⟦⟧]*⟧", "", text)):
        text = less
    left = {each.strip() for each in text.split("\n") if re.search("[A-Za-z]", each)}
    names = {*registered(), *default_queues()}  # of other tests' tasks, too
    return {each for each in left - names if not DATA.fullmatch(each)}


@on_sqlite
def test_every_label(alias: str, admin: Client, marked: None) -> None:
    story = tell()
    left = {name: unmarked(admin.get(address(story)).content.decode()) for name, address in PAGES.items()}
    deeds: dict[str, dict[str, Any]] = {
        f"job/{story.dead.pk}/verb/retry/": {},
        f"job/{story.scheduled.pk}/verb/reschedule/": {"run_at_0": "never"},
        f"job/{story.ready.pk}/verb/enqueue_again/": {"args": "["},
        f"stepindoubt/{story.doubtful.pk}/change/": {"seen": "long ago", "choice": "happened"},
        "queuestate/pause/": {"queue_name": "default"},
        "job/bulk/": {"token": "worn out"},
    }
    for address, posted in deeds.items():
        response = admin.post(f"/admin/gnlqueue/{address}", posted, follow=True)
        left[address] = unmarked(response.content.decode())
    assert {where: found for where, found in left.items() if found} == {}
