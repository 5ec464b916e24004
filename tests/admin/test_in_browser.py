"""The pages in a real browser: accessible, under a strict policy, narrow, right to left, by keyboard, unscripted."""

from typing import Any

import pytest
from django.utils import timezone

from gnlqueue import bulk, queue
from gnlqueue.models import EntryStatus, Job, JobStatus, QueueState
from tests.admin.conftest import LogIn, Open
from tests.admin.pages import IN_DOUBT, decision_url, job_url
from tests.admin.stories import PAGES, Story, tell
from tests.admin.test_bulk import BULK, ask, confirm, dead_ones
from tests.durable.conftest import on_sqlite

pytest.importorskip("playwright", reason="Playwright is not installed")

from playwright.sync_api import Page, expect

from tests.admin import browser as browsers

pytestmark = [on_sqlite, pytest.mark.usefixtures("strict_policy")]


@pytest.fixture
def story(alias: str) -> Story:
    return tell()


def faults(page: Page) -> list[str]:
    """What is wrong with a page: by the policies, by axe, and in width."""
    found = [f"violates the policy: {each}" for each in browsers.violations(page)]
    found += [f"light: {each}" for each in browsers.complaints(page)]
    browsers.turn(page, "dark")
    found += [f"dark: {each}" for each in browsers.complaints(page)]
    browsers.turn(page, "light")
    found += ["is wider than a telephone"] if browsers.is_too_wide_for_a_telephone(page) else []
    return found


@pytest.mark.usefixtures("both_policies")
def test_every_page_is_accessible_keeps_the_policies_and_fits_on_a_telephone(open_page: Open, story: Story) -> None:
    page = open_page()
    found = []
    for name, url in PAGES.items():
        browsers.go(page, url(story))
        found += [f"{name}: {each}" for each in faults(page)]
    assert found == []


EMPTY = ("overview", "job", "job/?q=nothing", "deadjob", "stepindoubt", "queuestate", "workerprocess", "operatoraction")


def test_pages_on_which_there_is_nothing_are_too(open_page: Open) -> None:
    page = open_page()
    found = []
    for name in EMPTY:
        browsers.go(page, f"/admin/gnlqueue/{name}")
        found += [f"{name}: {each}" for each in faults(page)]
    assert found == []


def test_pages_that_tell_of_a_standstill_are_too(
    open_page: Open, alias: str, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 1)
    dead_ones(3)
    client = log_in("view_job", "retry_job")
    confirm(client, ask(client, statuses=["dead"]))
    page = open_page()
    found = []
    for said in ("No live worker serves the queue default", "The queue default is paused"):
        for url in (f"{BULK}?verb=retry", "/admin/gnlqueue/operatoraction/"):
            browsers.go(page, url)
            expect(page.locator("#content-main, #changelist").first).to_contain_text(said)
            found += [f"{url}: {each}" for each in faults(page)]
        queue.pause("default")
    browsers.go(page, "/admin/gnlqueue/overview/")
    assert found + faults(page) == []


def test_every_page_is_accessible_and_fits_on_a_telephone_from_right_to_left(
    open_page: Open, story: Story, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "he"
    page = open_page("/admin/", size=browsers.TELEPHONE)
    expect(page.locator("html")).to_have_attribute("dir", "rtl")
    found = []
    for name, url in PAGES.items():
        browsers.go(page, url(story))
        found += [f"{name} is too wide"] if browsers.is_too_wide(page) else []
        found += [f"{name}: {each}" for each in browsers.complaints(page, colors=False)]  # which have no direction
    assert found == []


#: For each box in which a wide table is scrolled: whether there is something to scroll.
BOXES = """() => [...document.querySelectorAll(".gq-scroll, .gqj-scroll, .gql-wide")].filter(
  (each) => each.clientWidth
).map((each) => each.scrollWidth > each.clientWidth)"""

#: What in those boxes has a ground that one cannot see through, and so hides the shadow of an edge.
OPAQUE = """() => [...document.querySelectorAll(
  ":is(.gq-scroll, .gqj-scroll, .gql-wide) :is(table, tr, th, td)"
)].filter(
  (each) => /^(rgb\\(|color\\([^/]*$)/.test(getComputedStyle(each).backgroundColor)
).map((each) => each.outerHTML.slice(0, 100))"""


def test_lists_fit_beside_the_sidebar(open_page: Open, story: Story) -> None:
    page = open_page()
    for name in ("jobs", "dead letters", "operator log"):
        browsers.go(page, PAGES[name](story))
        assert not any(page.evaluate(BOXES)), name


def test_an_edge_beyond_which_there_is_more_has_a_shadow(open_page: Open, story: Story) -> None:
    """The shadows stay at the edges; what covers them moves with the table, and is away only where there is more."""
    page = open_page(size=browsers.TELEPHONE)
    browsers.go(page, PAGES["jobs"](story))
    assert page.evaluate(BOXES) == [True]
    attachment = "(box) => getComputedStyle(box).backgroundAttachment"
    assert page.locator(".gql-wide").evaluate(attachment) == "local, local, scroll, scroll"
    run = page.locator(".actions button[name='index']").bounding_box()
    assert run is not None
    assert run["x"] + run["width"] <= browsers.TELEPHONE["width"]
    assert run["x"] > 0


def test_nothing_hides_the_shadow(open_page: Open, story: Story) -> None:
    page = open_page()
    found = []
    for name, url in PAGES.items():
        browsers.go(page, url(story))
        found += [f"{name}: {each}" for each in page.evaluate(OPAQUE)]
    assert found == []


#: Words on more than one line: what lies between two places where a long name may be broken is one text. A word longer
#: than its line would have to be.
BROKEN = """() => {
  const texts = document.createTreeWalker(document.querySelector("#content"), NodeFilter.SHOW_TEXT);
  const range = new Range(), found = [];
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!/^[\\w.]+$/.test(text.data.trim()) || !text.parentElement.checkVisibility()) continue;
    range.selectNodeContents(text);
    const lines = new Set([...range.getClientRects()].filter((each) => each.width).map((each) => each.top));
    if (lines.size > 1) found.push(text.data);
  }
  return found;
}"""


def test_long_names_are_broken_between_words(open_page: Open, story: Story) -> None:
    page = open_page()
    name = "shop_integrations.warehouse.inventory.tasks.synchronise_stock_levels_with_supplier"
    dead, ready = queue.enqueue(name).pk, queue.enqueue(name).pk
    Job.objects.filter(pk=dead).update(status=JobStatus.DEAD, finished_at=timezone.now(), last_error=name)
    found = []
    for url in (
        *(PAGES[each](story) for each in ("overview", "jobs", "dead letters", "to retry many")),
        *(f"/admin/gnlqueue/job/{id}/{what}/" for id in (dead, ready) for what in ("change", "verb/enqueue_again")),
        f"{BULK}?verb=cancel",
    ):
        browsers.go(page, url)
        for size in (browsers.DESKTOP, browsers.TELEPHONE):
            page.set_viewport_size(size)
            found += [f"{url}: {each}" for each in page.evaluate(BROKEN)]
            found += [f"{url} is too wide"] if browsers.is_too_wide(page) else []
    assert found == []


# --- by keyboard alone, with JavaScript and without ------------------------------------------------------------------

scripted = pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])


@scripted
def test_a_dead_job_is_retried_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page(job_url(story.dead), script=script)
    browsers.tab_to(page, "Retry")
    page.keyboard.press("Enter")
    expect(page.locator("body")).not_to_contain_text("It is dead")
    assert queue.get(story.dead).status == JobStatus.READY


@scripted
def test_a_step_is_decided_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page(IN_DOUBT, script=script)
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
def test_a_mismatch_is_decided_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page(decision_url(story.misfit), script=script)
    browsers.tab_to(page, "choice")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("Use the recorded result")).to_be_checked()
    browsers.tab_to(page, "reason")
    page.keyboard.type("renamed on Tuesday")
    browsers.tab_to(page, "Decide")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Decided")
    assert queue.get(story.misfit.job_id or 0).status == JobStatus.READY


@scripted
def test_ticked_jobs_are_retried_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page("/admin/gnlqueue/job/?status=dead", script=script)
    browsers.tab_to(page, "_selected_action")
    page.keyboard.press("Space")
    browsers.tab_to(page, "action", backwards=True)
    page.keyboard.type("Retry")
    browsers.tab_to(page, "index")
    page.keyboard.press("Enter")
    expect(page.locator(".gql-how-many")).to_contain_text("1 job")
    assert queue.get(story.dead).status == JobStatus.DEAD
    browsers.tab_to(page, "why")
    page.keyboard.type("the printer has paper again")
    browsers.tab_to(page, "Retry")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("1 job was changed")
    assert queue.get(story.dead).status == JobStatus.READY


@scripted
def test_a_queue_is_paused_by_keyboard(open_page: Open, story: Story, script: bool) -> None:
    page = open_page("/admin/gnlqueue/queuestate/", script=script)
    browsers.tab_to(page, "Pause default")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume default")).to_be_visible()
    assert QueueState.objects.get(pk="default").paused_at is not None


# --- refreshing ------------------------------------------------------------------------------------------------------


def test_a_page_refreshes_itself_and_keeps_what_is_open(open_page: Open, story: Story) -> None:
    blocked = queue.get(story.doubtful.job_id or 0)
    page = open_page(f"{job_url(blocked)}?refresh=2", frozen=True)
    page.get_by_text("Traceback", exact=True).first.click()
    queue.cancel(blocked)
    page.clock.run_for(2000)
    expect(page.locator("[data-gq-live]")).to_contain_text("It was cancelled.")
    expect(page.get_by_text("the warehouse is on fire").first).to_be_visible()
    assert browsers.violations(page) == []
