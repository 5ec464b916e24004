"""The pages in a real browser: accessible, under a strict policy, narrow, right to left, by keyboard, unscripted."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from gnlqueue import queue
from gnlqueue.models import EntryStatus, JobStatus, QueueState
from tests.admin.pages import IN_DOUBT, job_url
from tests.admin.stories import PAGES, Story, tell
from tests.durable.conftest import on_sqlite

pytest.importorskip("playwright", reason="Playwright is not installed")

from playwright.sync_api import Browser, Page, expect

from tests.admin import browser as browsers

pytestmark = [browsers.needs_chromium, on_sqlite]

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture
def story(alias: str) -> Story:
    return tell()


@pytest.fixture
def open_page(chromium: Browser, alias: str, settings: Any) -> Iterator[Open]:
    """`open_page(url, color_scheme="dark")`: a page, as a superuser sees it, under the strict policy."""
    settings.ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.admin.browser.StrictPolicy"]
    user = User.objects.create_superuser("root")
    contexts = []
    with browsers.server() as address:

        def open_page(url: str, **options: Any) -> Page:
            context = browsers.logged_in(chromium, address, user, **options)
            contexts.append(context)
            page = context.new_page()
            page.set_default_timeout(15_000)
            response = page.goto(url)
            assert response is not None
            assert response.status == 200
            return page

        yield open_page
        for context in contexts:
            context.close()


def each_page(page: Page, story: Story) -> Iterator[str]:
    """Go to each page in turn, and say which it is."""
    for name, url in PAGES.items():
        response = page.goto(url(story))
        assert response is not None
        assert response.status == 200, name
        yield name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_nothing_against_any_page(open_page: Open, story: Story, scheme: str) -> None:
    page = open_page("/admin/", color_scheme=scheme)
    only_contrast = scheme == "dark"  # all else is the same
    found = {name: browsers.complaints(page, only_contrast=only_contrast) for name in each_page(page, story)}
    assert [f"{name}: {each}" for name, complaints in found.items() for each in complaints] == []


def test_no_page_violates_the_strict_policy(open_page: Open, story: Story) -> None:
    page = open_page("/admin/")
    found = {name: browsers.violations(page) for name in each_page(page, story)}
    assert {name: violations for name, violations in found.items() if violations} == {}


def test_no_page_is_wider_than_a_telephone(open_page: Open, story: Story) -> None:
    page = open_page("/admin/", viewport={"width": 375, "height": 700})
    assert [name for name in each_page(page, story) if browsers.is_too_wide(page)] == []


def test_no_page_is_wider_than_a_telephone_from_right_to_left(open_page: Open, story: Story, settings: Any) -> None:
    settings.LANGUAGE_CODE = "he"
    page = open_page("/admin/", viewport={"width": 375, "height": 700})
    expect(page.locator("html")).to_have_attribute("dir", "rtl")
    assert [name for name in each_page(page, story) if browsers.is_too_wide(page)] == []


# --- by keyboard alone, with JavaScript and without ------------------------------------------------------------------

scripted = pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])


@scripted
def test_a_dead_job_is_retried_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page(job_url(story.dead), java_script_enabled=script)
    browsers.tab_to(page, "Retry")
    page.keyboard.press("Enter")
    expect(page.locator("body")).not_to_contain_text("It is dead")
    assert queue.get(story.dead).status == JobStatus.READY


@scripted
def test_a_step_is_decided_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page(IN_DOUBT, java_script_enabled=script)
    browsers.tab_to(page, "charge card")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Did “charge card” happen?")
    browsers.tab_to(page, "choice")
    page.keyboard.press("Space")
    browsers.tab_to(page, "result")
    page.keyboard.type('{"id": "ch_9"}')
    browsers.tab_to(page, "reason")
    page.keyboard.type("seen in the dashboard")
    browsers.tab_to(page, "Decide")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Decided")
    story.doubtful.refresh_from_db()
    assert (story.doubtful.status, story.doubtful.result) == (EntryStatus.DONE, '{"id":"ch_9"}')


@scripted
def test_a_queue_is_paused_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page("/admin/gnlqueue/queuestate/", java_script_enabled=script)
    browsers.tab_to(page, "Pause default")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume default")).to_be_visible()
    assert QueueState.objects.get(pk="default").paused_at is not None


# --- refreshing ------------------------------------------------------------------------------------------------------


def test_a_page_refreshes_itself_and_keeps_what_is_open(open_page: Open, story: Story) -> None:
    blocked = queue.get(story.doubtful.job_id or 0)
    page = open_page(f"{job_url(blocked)}?refresh=2")
    page.get_by_text("Traceback", exact=True).first.click()
    queue.cancel(blocked)
    expect(page.locator("[data-gq-live]")).to_contain_text("It was cancelled.")
    expect(page.get_by_text("the warehouse is on fire").first).to_be_visible()
    assert browsers.violations(page) == []
