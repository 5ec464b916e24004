"""Real pages in headless Chromium: the server, the browser, and what a test asks of a page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client
from django.test.testcases import LiveServerThread
from playwright.sync_api import Browser, Page, sync_playwright

Scheme = Literal["light", "dark"]

DESKTOP = {"width": 1280, "height": 720}
TELEPHONE = {"width": 375, "height": 700}

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
  const { disposition, effectiveDirective, blockedURI, sourceFile, sample } = event;
  window.violations.push([disposition, effectiveDirective, blockedURI, sourceFile, sample].join(" "));
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
  return it === document.body ? null : it.getAttribute("name") || it.getAttribute("aria-label") || it.innerText;
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


class Window:
    """A window of a browser, with one tab that tests use one after the other: a new one costs a second of work each.

    In a `frozen` one no time passes on the pages but what `page.clock.run_for` lets pass.
    """

    def __init__(self, browser: Browser, server: LiveServerThread, *, frozen: bool = False) -> None:
        self._address = f"http://127.0.0.1:{server.port}"
        self._context = browser.new_context(base_url=self._address)
        self._context.add_init_script(WATCH)
        self._context.set_default_timeout(15_000)
        self._page = self._context.new_page()
        self._devtools = self._context.new_cdp_session(self._page)
        self._frozen = frozen

    def take(self, user: User, *, scheme: Scheme = "light", size: Any = DESKTOP, script: bool = True) -> Page:
        """The tab, as if it were new, and somebody logged in; `script`: whether there is JavaScript."""
        self._page.emulate_media(color_scheme=scheme)
        self._page.set_viewport_size(size)
        self._devtools.send("Emulation.setScriptExecutionDisabled", {"value": not script})
        session = {"name": "sessionid", "value": session_of(user), "url": self._address}
        self._context.add_cookies([session])  # type: ignore[list-item]
        if self._frozen:
            self._page.clock.install(time=0)
            self._page.clock.pause_at(1)
        return self._page

    def leave(self) -> None:
        """Let no page ask the server for anything any more, and forget what was stored."""
        self._page.unroute_all()
        self._page.goto("about:blank")
        self._context.clear_cookies()
        stored = {"origin": self._address, "storageTypes": "local_storage"}
        self._devtools.send("Storage.clearDataForOrigin", stored)


def session_of(user: User) -> str:
    """The key of a session in which somebody is logged in."""
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value


def go(page: Page, url: str) -> None:
    """Go to a page which has to be there."""
    response = page.goto(url)
    assert response is not None
    assert response.status == 200, url


def tab_to(page: Page, text: str, *, backwards: bool = False) -> None:
    """Press Tab until what has the focus says this; on a new page, let the admin skip what is on all of its pages."""
    page.wait_for_load_state()  # what is asked of a page that still loads may be lost
    if page.evaluate(FOCUSED) is None:
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**#content-start")
    seen = []
    for _ in range(80):
        page.keyboard.press("Shift+Tab" if backwards else "Tab")
        said = page.evaluate(FOCUSED)
        if said is None:
            continue
        seen.append(said.strip())
        if said.strip() == text:
            return
    pytest.fail(f"No Tab leads to {text!r}, only to {seen}.")


def violations(page: Page) -> list[str]:
    """What the content security policies blocked on this page, or would have.

    The stock admin's own scripts and styles carry no nonce up to Django 6.1: those are not ours to mend.
    """
    found: list[str] = page.evaluate("window.violations")
    return [each for each in found if not (each.startswith("report ") and "/static/admin/" in each)]


def is_too_wide(page: Page) -> bool:
    """Whether one would have to scroll the page sideways."""
    return bool(page.evaluate("document.scrollingElement.scrollWidth > window.innerWidth"))


def is_too_wide_for_a_telephone(page: Page) -> bool:
    """Whether one would have to scroll the page sideways on a narrow screen."""
    before = page.viewport_size
    assert before is not None
    page.set_viewport_size(TELEPHONE)
    too_wide = is_too_wide(page)
    page.set_viewport_size(before)
    return too_wide


def turn(page: Page, scheme: Scheme) -> None:
    """Turn the page to its light or dark colors, at once: the admin's links would fade to theirs."""
    page.emulate_media(color_scheme=scheme)
    page.evaluate("document.getAnimations().forEach((each) => each instanceof CSSTransition && each.finish())")


#: Rules about colors, which take most of the time.
COLORS = ("color-contrast", "link-in-text-block")

#: What axe asks of a page. The bar on top and the list of all models beside are the admin's own, and the same on all.
#: Upon gradients axe judges no color: the shadows at the edges of tables are taken away.
ASK = """(without) => document.querySelectorAll(".gq-scroll, .gqj-scroll, .gql-wide").forEach(
  (box) => { box.style.backgroundImage = "none"; }
) || axe.run({exclude: ["#header", "#nav-sidebar"]}, {
  runOnly: {type: "tag", values: ["wcag2a", "wcag2aa"]},
  rules: Object.fromEntries(without.map((rule) => [rule, {enabled: false}])),
  resultTypes: ["violations"],
  preload: false,
  iframes: false,
  selectors: false,
})"""


def complaints(page: Page, *, colors: bool = True) -> list[str]:
    """What axe has against the page by WCAG 2, A and AA."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate(ASK, [] if colors else COLORS)["violations"]
    return [f"{each['id']}: {node['html']} {node['failureSummary']}" for each in found for node in each["nodes"]]
