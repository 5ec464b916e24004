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
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client
from django.test.testcases import LiveServerThread
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

#: What no page of ours violates. It is stricter than any site needs.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

#: Remembers what the content security policy blocked, and counts what a script fetches. It is not part of the page, so
#: that no policy holds it back.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push([event.effectiveDirective, event.blockedURI, event.sourceFile, event.sample].join(" "));
});
window.fetched = 0;
const fetch = window.fetch;
window.fetch = (...all) => {
  window.fetched += 1;
  return fetch(...all);
};
"""
#: What the element that has the focus says, or null where none has it.
FOCUSED = """() => {
  const it = document.activeElement;
  return it === document.body ? null : it.getAttribute("aria-label") || it.getAttribute("name") || it.innerText;
}"""

AXE = Axe().axe_script


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
def server() -> Iterator[LiveServerThread]:
    """A server of this project, with its static files."""
    thread = LiveServerThread("127.0.0.1", StaticFilesHandler, connections_override={})
    thread.daemon = True
    thread.start()
    thread.is_ready.wait()
    if thread.error is not None:
        raise thread.error
    try:
        yield thread
    finally:
        thread.terminate()


def take_up_settings(server: LiveServerThread) -> None:
    """Let the server's next answers go by the settings of this moment, and its middleware."""
    server.httpd.set_app(StaticFilesHandler(WSGIHandler()))


def logged_in(browser: Browser, server: LiveServerThread, user: User, **options: Any) -> BrowserContext:
    """A browser window in which somebody is logged in; `options` are Playwright's."""
    client = Client()
    client.force_login(user)
    address = f"http://127.0.0.1:{server.port}"
    context = browser.new_context(base_url=address, **options)
    context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": address}])
    context.add_init_script(WATCH)
    context.set_default_timeout(15_000)
    return context


def freeze(page: Page) -> None:
    """Let no time pass on the pages that are opened here, but what `page.clock.run_for` lets pass."""
    page.clock.install(time=0)
    page.clock.pause_at(1)


def go(page: Page, url: str) -> None:
    """Go to a page which has to be there."""
    response = page.goto(url)
    assert response is not None
    assert response.status == 200, url


def tab_to(page: Page, text: str) -> None:
    """Press Tab until what has the focus says this, past what comes before the page's own content."""
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        said = page.evaluate(FOCUSED)
        if said is None:
            continue
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


def darken(page: Page) -> None:
    """Turn the page to its dark colors, at once: the admin's links would fade to theirs."""
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.getAnimations().forEach((each) => each.finish())")


def complaints(page: Page, *, only_contrast: bool = False) -> list[str]:
    """What axe has against the page by WCAG 2, A and AA; or only against its contrasts."""
    contrast = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
    rules = contrast if only_contrast else {"type": "tag", "values": ["wcag2a", "wcag2aa"]}
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate("(rules) => axe.run({runOnly: rules, resultTypes: ['violations'], selectors: false})", rules)[
        "violations"
    ]
    return [f"{each['id']}: {node['html']} {node['failureSummary']}" for each in found for node in each["nodes"]]
