"""Every label of the admin can be translated: where all that is asked for is marked, nothing is left without a mark."""

import re
import socket
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from gnlqueue.models import Job, JobAttempt, OperatorAction, StepNote
from gnlqueue.registry import default_queues, registered
from tests.admin.stories import HOW, PAGES, tell
from tests.durable.conftest import on_sqlite

#: Attributes that people read, or that a script shows them.
READ = {"title", "aria-label", "placeholder", "alt", "label", "data-gq-paused", "data-gq-failed"}

UNREAD = {"script", "style", "code", "pre", "textarea"}  # and what is code, or somebody's own text


class Words(HTMLParser):
    """Collects what people read on a page, each text behind the tag, or the attribute, that it comes after."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._unread = 0
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unread += tag in UNREAD
        self._tag = tag
        self.said += [f"{name}> {value or ''}" for name, value in attrs if name in READ]

    def handle_endtag(self, tag: str) -> None:
        self._unread -= tag in UNREAD

    def handle_data(self, data: str) -> None:
        if not self._unread:
            self.said.append(f"{self._tag}> {data}")


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is translated stands in ⟦brackets⟧."""
    catalog = translation._trans  # type: ignore[attr-defined]
    for name in ("gettext", "pgettext", "ngettext", "npgettext"):
        translate = getattr(catalog, name)
        monkeypatch.setattr(catalog, name, lambda *args, its=translate: f"⟦{its(*args)}⟧")


#: What stays as it is: names and texts of the story, and times.
DATA = re.compile(
    rf"({re.escape(socket.gethostname())}|vm|w1)[\w-]*(,( \d+)?)?|[\d-]+ [\d:.]+ UTC|UTC|p\d\d|"
    r"shop\.tasks\.checkout|tests\.admin\.stories\.[\w.<>]+|\d+ tests\.app\.tasks\.nothing|"
    r"(builtins\.)?(OS|Runtime)Error|"
    rf"(charge card|reserve (stock|goods)|page#\d)|root|ada|{re.escape(HOW)}|The printer has paper again\."
)

#: Words that could be labels, by where they stand: a step and its kind, an argument's name, one word of Django's.
WORDS = {"span> page", "th> page", "td> step", "dd> step", "dt> message", "alt> Search"}


def sentences() -> set[str]:
    """What the engine wrote down, which stays in English."""
    columns = ((Job, "last_error"), (JobAttempt, "error"), (StepNote, "why"))
    return {text for model, name in columns for text in model.objects.values_list(name, flat=True) if text}


def is_label(word: str, stored: set[str]) -> bool:
    """Whether a text, with the tag before it, is neither a name nor something that was stored."""
    place, text = (part.strip() for part in word.split(">", 1))
    # Also of other tests' tasks.
    if text in registered() or (text in default_queues() and place in {"td", "dd", "a"}) or word in WORDS:
        return False
    begins = len(text) > 100 and any(each.startswith(text.removesuffix("…")) for each in stored)
    return not (begins or text in stored or DATA.fullmatch(text))


def unmarked(page: str) -> set[str]:
    words = Words()
    words.feed(page.replace("<wbr>", ""))
    text = "\n".join(" ".join(each.split()) for each in words.said)
    while text != (less := re.sub(r"⟦[^⟦⟧]*⟧", "", text)):
        text = less
    left = {each.strip() for each in text.split("\n") if re.search("> .*[A-Za-z]", each)}
    stored = sentences()
    return {each for each in left if is_label(each, stored)}


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
    left["operator log, written"] = unmarked(admin.get(PAGES["operator log"](story)).content.decode())
    assert {where: found for where, found in left.items() if found} == {}
    # The log keeps no language: it is searched in whatever one.
    kept = OperatorAction.objects.order_by("id").values_list("target", flat=True)
    assert list(kept) == ["312 jobs", f"job {story.dead.pk}", "queue default"]
