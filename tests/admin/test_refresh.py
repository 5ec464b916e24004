"""The overview in a real browser: its charts, and the poller that refreshes it without getting in anybody's way."""

import pytest

from gnlqueue import queue
from tests.admin.test_overview import OVERVIEW, claim, start_worker, store
from tests.durable.conftest import on_sqlite

pytest.importorskip("playwright", reason="Playwright is not installed")

from playwright.sync_api import Page, expect

from tests.admin import browser as browsers
from tests.admin.test_in_browser import Open, chromium, open_page  # noqa: F401  fixtures

pytestmark = [browsers.needs_chromium, on_sqlite]


LONGER_THAN_A_ROUND = 2500  # ms; the shortest is 2 s


@pytest.fixture
def often(alias: str, open_page: Open) -> Page:  # noqa: F811
    """The overview of a busy queue, refreshed every 2 s, with a mark on what stands there now."""
    start_worker(alias)
    for _ in range(3):
        queue.enqueue("shop.pay")
    claim(alias)
    for minute in range(10):
        store(alias, minute, succeeded=50 * minute, failed=minute, waits={"-20": 3, "4": 1}, runs={"3": 1, "60": 1})
    page = open_page(f"{OVERVIEW}?refresh=2")
    mark(page)
    return page


def mark(page: Page) -> None:
    page.evaluate("document.querySelector('[data-gq-live] > section').setAttribute('data-marked', '')")


def wait_for_round(page: Page) -> None:
    expect(page.locator("[data-marked]")).to_have_count(0)


def assert_stays(page: Page) -> None:
    page.wait_for_timeout(LONGER_THAN_A_ROUND)
    expect(page.locator("[data-marked]")).to_have_count(1)


def test_it_shows_what_has_come_since(often: Page) -> None:
    ready = often.locator(".gq-tile-ready strong")
    expect(ready).to_have_text("2")
    queue.enqueue("shop.pay")
    expect(ready).to_have_text("3")
    assert browsers.violations(often) == []


def test_open_tables_and_the_focus_stay(often: Page) -> None:
    often.locator("#gq-wait-table summary").click()
    often.locator(".gq-tile-ready a").focus()
    mark(often)
    wait_for_round(often)
    expect(often.locator("#gq-wait-table table")).to_be_visible()
    expect(often.locator(".gq-tile-ready a")).to_be_focused()


@pytest.mark.parametrize(
    "keep_busy",
    [
        "getSelection().selectAllChildren(document.querySelector('#gq-queues'))",
        "document.dispatchEvent(new Event('pointerdown'))",
        "document.querySelector('[data-gq-live]').insertAdjacentHTML('beforeend', '<input type=checkbox checked>')",
        "document.querySelector('[data-gq-live]').insertAdjacentHTML('beforeend', '<input id=x>'); x.focus()",
        "Object.defineProperty(document, 'hidden', {get: () => true})",
    ],
    ids=["text is selected", "the pointer is down", "a box is ticked", "a field has the focus", "the tab is hidden"],
)
def test_it_waits_for_whoever_is_busy(often: Page, keep_busy: str) -> None:
    often.evaluate(keep_busy)
    mark(often)
    assert_stays(often)


def test_it_goes_on_when_nobody_is_busy_any_more(often: Page) -> None:
    often.evaluate("getSelection().selectAllChildren(document.querySelector('#gq-queues'))")
    expect(often.locator("[data-gq-refresh-status]")).to_have_text("waits for you")
    mark(often)
    often.evaluate("getSelection().removeAllRanges()")
    wait_for_round(often)
    expect(often.locator("[data-gq-refresh-status]")).to_be_empty()


def test_the_choice_is_kept(often: Page) -> None:
    often.get_by_label("Refresh").select_option("0")
    mark(often)
    assert_stays(often)
    often.goto("/admin/gnlqueue/workerprocess/")
    expect(often.get_by_label("Refresh")).to_have_value("0")


def test_a_server_that_is_away_is_said_and_tried_again(often: Page) -> None:
    often.route("**/overview/**", lambda route: route.abort())
    expect(often.locator("[data-gq-refresh-status]")).to_have_text("not reached; trying again")
    often.unroute("**/overview/**")
    mark(often)
    wait_for_round(often)
    expect(often.locator("[data-gq-refresh-status]")).to_be_empty()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_and_their_tables_are_accessible(alias: str, often: Page, scheme: str) -> None:
    often.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    often.get_by_label("Refresh").select_option("0")
    for summary in often.locator(".gq-chart summary").all():
        summary.click()
    expect(often.locator("#gq-finished-table table")).to_be_visible()
    assert browsers.complaints(often) == []
    often.set_viewport_size({"width": 375, "height": 800})
    assert not browsers.is_too_wide(often)


def test_without_javascript_nothing_is_offered_that_does_not_work(alias: str, open_page: Open) -> None:  # noqa: F811
    page = open_page(OVERVIEW, java_script_enabled=False)
    expect(page.locator("#gq-refresh")).to_be_hidden()
    page.get_by_role("link", name="24 h").click()
    expect(page.get_by_role("heading", name="Last 24 h")).to_be_visible()
