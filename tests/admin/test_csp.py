"""Content security policies: nothing of ours is inline, and what we load carries the nonce where there is one.

That no page violates either policy is seen in a real browser, in `test_in_browser.py`.
"""

import re

import pytest
from django.test import Client

from tests.admin.stories import PAGES, Story, tell
from tests.durable.conftest import on_sqlite

pytestmark = on_sqlite

INLINE = re.compile(
    r"<style|<script(?![^>]*\bsrc=)[^>]*>\s*\S|<[^>]*\s(style|on[a-z]+)\s*=\s*[\"']|javascript:", re.IGNORECASE
)


@pytest.fixture
def story(alias: str) -> Story:
    return tell()


def test_nothing_is_inline(admin: Client, story: Story) -> None:
    found = {name: INLINE.search(admin.get(url(story)).content.decode()) for name, url in PAGES.items()}
    assert {name: match[0] for name, match in found.items() if match is not None} == {}


def test_what_we_load_carries_the_nonce(admin: Client, story: Story, nonce_policy: None) -> None:
    for name, url in PAGES.items():
        response = admin.get(url(story))
        (nonce,) = set(re.findall(r"'nonce-([^']+)'", response["Content-Security-Policy-Report-Only"])) or {""}
        tags = re.findall(r"<(?:script|link)[^>]*(?:gnlqueue|rangefilter)/[^>]*>", response.content.decode())
        assert tags, name
        assert [tag for tag in tags if f'nonce="{nonce}"' not in tag] == [], name
