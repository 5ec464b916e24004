"""Real pages in headless Chromium: the server, the browser, and what a test asks of a page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.test import Client
from django.test.testcases import LiveServerThread
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")

#: What no page of ours violates. It is stricter than any site needs.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

#: Remembers what the content security policy blocked. It is not part of the page, so that no policy holds it back.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push([event.effectiveDirective, event.blockedURI, event.sourceFile, event.sample].join(" "));
});
"""


class StrictPolicy:
    """Middleware: our pages come with the strict policy."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        response = self.get_response(request)
        response["Content-Security-Policy"] = STRICT
        return response


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. While it is open, an event loop runs in this thread, which Django would otherwise mistake for ours."""
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            yield browser
            browser.close()
    finally:
        if before is None:
            del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
        else:
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


@contextmanager
def server() -> Iterator[str]:
    """The address of a server of this project, with its static files."""
    thread = LiveServerThread("127.0.0.1", StaticFilesHandler, connections_override={})
    thread.daemon = True
    thread.start()
    thread.is_ready.wait()
    if thread.error is not None:
        raise thread.error
    try:
        yield f"http://127.0.0.1:{thread.port}"
    finally:
        thread.terminate()


def logged_in(browser: Browser, address: str, user: User, **options: Any) -> BrowserContext:
    """A browser window in which somebody is logged in; `options` are Playwright's."""
    client = Client()
    client.force_login(user)
    context = browser.new_context(base_url=address, **options)
    context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": address}])
    context.add_init_script(WATCH)
    context.set_default_timeout(15_000)
    return context


def tab_to(page: Page, text: str) -> None:
    """Press Tab until what has the focus says this, past what comes before the page's own content."""
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if not focused.count():
            continue
        said = focused.get_attribute("aria-label") or focused.get_attribute("name") or focused.inner_text()
        seen.append(said.strip())
        if said.strip() == text:
            return
    pytest.fail(f"No Tab leads to {text!r}, only to {seen}.")


def violations(page: Page) -> list[str]:
    """What the content security policy blocked on this page."""
    found: list[str] = page.evaluate("window.violations")
    return found


def is_too_wide(page: Page) -> bool:
    """Whether one would have to scroll the page sideways."""
    return bool(page.evaluate("document.scrollingElement.scrollWidth > window.innerWidth"))


def complaints(page: Page, *, only_contrast: bool = False) -> list[str]:
    """What axe has against the page by WCAG 2, A and AA; or only against its contrasts."""
    contrast = {"type": "rule", "values": ["color-contrast"]}
    rules = contrast if only_contrast else {"type": "tag", "values": ["wcag2a", "wcag2aa"]}
    page.evaluate(Axe().axe_script)
    found = page.evaluate("(rules) => axe.run({runOnly: rules, resultTypes: ['violations']})", rules)["violations"]
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]
