"""The overview in a real browser: its charts, and the poller that refreshes it without getting in anybody's way."""

import pytest

from gnlqueue import queue
from tests.admin.conftest import Open
from tests.admin.test_overview import OVERVIEW, claim, start_worker, store
from tests.durable.conftest import on_sqlite

pytest.importorskip("playwright", reason="Playwright is not installed")

from playwright.sync_api import Page, expect

from tests.admin import browser as browsers

pytestmark = [on_sqlite, pytest.mark.usefixtures("strict_policy")]


@pytest.fixture
def figures(alias: str) -> None:
    """A busy queue."""
    start_worker(alias)
    for _ in range(3):
        queue.enqueue("shop.pay")
    claim()
    for minute in range(10):
        store(alias, minute, succeeded=50 * minute, failed=minute, waits={"-20": 3, "4": 1}, runs={"3": 1, "60": 1})


@pytest.fixture
def often(figures: None, open_page: Open) -> Page:
    """The overview of it, refreshed every 2 s of a time that passes only when a test lets it."""
    return open_page(f"{OVERVIEW}?refresh=2", frozen=True)


def pass_a_round(page: Page, after: int = 2000) -> None:
    """Let so many milliseconds pass, and see the page replaced by the one that has been fetched then."""
    page.evaluate("document.querySelector('[data-gq-live] > section').setAttribute('data-marked', '')")
    page.clock.run_for(after - 1)
    expect(page.locator("[data-marked]")).to_have_count(1)
    page.clock.run_for(1)
    expect(page.locator("[data-marked]")).to_have_count(0)


def is_left_alone(page: Page) -> bool:
    """Whether the page fetches nothing in two minutes."""
    before = page.evaluate("fetched")
    page.clock.run_for(120_000)
    return bool(page.evaluate("fetched") == before)


def test_it_shows_what_has_come_since(often: Page) -> None:
    ready = often.locator(".gq-tile-ready strong")
    expect(ready).to_have_text("2")
    queue.enqueue("shop.pay")
    pass_a_round(often)
    expect(ready).to_have_text("3")
    queue.enqueue("shop.pay")
    pass_a_round(often)
    expect(ready).to_have_text("4")
    assert browsers.violations(often) == []


def test_open_tables_and_the_focus_stay(often: Page) -> None:
    often.locator("#gq-wait-table summary").click()
    often.locator(".gq-tile-ready a").focus()
    pass_a_round(often)
    expect(often.locator("#gq-wait-table table")).to_be_visible()
    expect(often.locator(".gq-tile-ready a")).to_be_focused()


ADD = "document.querySelector('[data-gq-live]').insertAdjacentHTML('beforeend', '<input id=x type=checkbox>'); "

#: How one comes to be busy, and stops.
BUSY = {
    "text is selected": (
        "getSelection().selectAllChildren(document.querySelector('#gq-queues'))",
        "getSelection().removeAllRanges()",
    ),
    "the pointer is down": (
        "document.dispatchEvent(new Event('pointerdown'))",
        "document.dispatchEvent(new Event('pointerup'))",
    ),
    "a box is ticked": (ADD + "x.checked = true", "x.checked = false"),
    "a field has the focus": (ADD + "x.focus()", "x.blur()"),
    "the tab is hidden": (
        "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})",
        "delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))",
    ),
}


def test_it_waits_for_whoever_is_busy_and_then_goes_on(often: Page) -> None:
    status = often.locator("[data-gq-refresh-status]")
    for why, (begin, end) in BUSY.items():
        often.evaluate(begin)
        assert is_left_alone(often), why
        expect(status).to_have_text("" if why == "the tab is hidden" else "waiting for you")
        often.evaluate(end)
        pass_a_round(often, after=1000)
        expect(status).to_be_empty()


def test_who_becomes_busy_while_it_asks_is_not_disturbed(often: Page) -> None:
    often.route("**/overview/**", lambda route: (often.evaluate(BUSY["the pointer is down"][0]), route.continue_()))
    queue.enqueue("shop.pay")
    with often.expect_request_finished():
        often.clock.run_for(2000)
    assert is_left_alone(often)
    expect(often.locator(".gq-tile-ready strong")).to_have_text("2")


def test_the_choice_is_kept(often: Page) -> None:
    often.get_by_label("Refresh").select_option("0")
    assert is_left_alone(often)
    often.goto("/admin/gnlqueue/workerprocess/")
    expect(often.get_by_label("Refresh")).to_have_value("0")


def test_a_server_that_is_away_is_said_and_tried_again(often: Page) -> None:
    status = often.locator("[data-gq-refresh-status]")
    often.route("**/overview/**", lambda route: route.abort())
    often.clock.run_for(2000)
    expect(status).to_have_text("server not reached; trying again")
    often.unroute("**/overview/**")
    pass_a_round(often)
    expect(status).to_be_empty()


def test_charts_and_their_tables_are_accessible(figures: None, open_page: Open) -> None:
    page = open_page(f"{OVERVIEW}?refresh=0&window=15m")
    for summary in page.locator(".gq-chart summary").all():
        summary.click()
    expect(page.locator("#gq-finished-table table")).to_be_visible()
    assert browsers.complaints(page) == []
    browsers.turn(page, "dark")
    assert browsers.complaints(page) == []
    assert not browsers.is_too_wide_for_a_telephone(page)


def test_without_javascript_nothing_is_offered_that_does_not_work(open_page: Open) -> None:
    page = open_page(OVERVIEW, script=False)
    expect(page.locator("#gq-refresh")).to_be_hidden()
    page.get_by_role("link", name="24 h").click()
    expect(page.get_by_role("heading", name="Last 24 h")).to_be_visible()
