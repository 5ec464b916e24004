"""Content security policies: nothing of ours is inline, and what we load carries the nonce where there is one."""

import re
from typing import Any

import django
import pytest
from django.test import Client

from tests.admin.conftest import Open
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


@pytest.fixture
def nonce_policy(settings: Any) -> None:
    """Django's own policy at its strictest: scripts and styles only with the nonce of the page."""
    if django.VERSION < (6, 0):
        pytest.skip("Django has a content security policy of its own from 6.0 on")
    from django.utils.csp import CSP

    settings.SECURE_CSP = {
        "default-src": [CSP.NONE],
        "script-src": [CSP.NONCE],
        "style-src": [CSP.NONCE],
        "img-src": [CSP.SELF, "data:"],
        "connect-src": [CSP.SELF],
        "form-action": [CSP.SELF],
    }
    settings.MIDDLEWARE = ["django.middleware.csp.ContentSecurityPolicyMiddleware", *settings.MIDDLEWARE]
    (templates,) = settings.TEMPLATES
    processors = [*templates["OPTIONS"]["context_processors"], "django.template.context_processors.csp"]
    settings.TEMPLATES = [{**templates, "OPTIONS": {**templates["OPTIONS"], "context_processors": processors}}]


def test_what_we_load_carries_the_nonce(admin: Client, story: Story, nonce_policy: None) -> None:
    for name, url in PAGES.items():
        response = admin.get(url(story))
        (nonce,) = set(re.findall(r"'nonce-([^']+)'", response["Content-Security-Policy"])) or {""}
        tags = re.findall(r"<(?:script|link)[^>]*(?:gnlqueue|rangefilter)/[^>]*>", response.content.decode())
        assert tags, name
        assert [tag for tag in tags if f'nonce="{nonce}"' not in tag] == [], name


def test_no_page_of_ours_violates_the_nonce_policy(open_page: Open, story: Story, nonce_policy: None) -> None:
    from tests.admin import browser as browsers

    page = open_page("/admin/")
    found = {}
    for name, url in PAGES.items():
        browsers.go(page, url(story))
        # The stock admin's own scripts and styles carry no nonce up to Django 6.1: those are not ours to mend.
        found[name] = [each for each in browsers.violations(page) if "/static/admin/" not in each]
    assert {name: violations for name, violations in found.items() if violations} == {}
