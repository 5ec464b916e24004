"""What the admin's pages stand on: how things are shown, who may do what, and what is written down."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.apps import apps
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import translation
from django.utils.functional import Promise, SimpleLazyObject

from gnlqueue import queue
from gnlqueue.admin.base import MEDIA, CappedCount, QueuePage, may, record, require
from gnlqueue.models import DeadJob, Job, OperatorAction, StepInDoubt
from gnlqueue.templatetags import gnlqueue_admin as shown
from tests.admin.conftest import LogIn
from tests.admin.stories import PAGES, Story, tell
from tests.durable.conftest import on_sqlite

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (0, "0 ms"),
        (0.0012, "1.2 ms"),
        (0.034, "34 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.54, "1.5 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400 * 3 + 3600 * 5, "3 d 5 h"),
        (86400 * 1000, "1,000 d"),
        (-2, "-2 s"),
        (timedelta(minutes=2), "2 min"),
    ],
)
def test_lengths_of_time(seconds: Any, text: str) -> None:
    assert shown.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (0.5, "just now"),
        (-1, "1 s ago"),
        (-200, "3 min ago"),
        (-86400 * 2.5, "2 d ago"),
        (90, "in 1 min"),
    ],
)
def test_times_are_relative_and_exact_in_the_title(seconds: float, text: str) -> None:
    found = shown.ago(NOON + timedelta(seconds=seconds), NOON)
    assert f">{text}</time>" in found
    at = NOON + timedelta(seconds=seconds)
    assert f'datetime="{at.isoformat()}"' in found
    assert f'title="{at:%Y-%m-%d %H:%M:%S.%f} UTC"' in found


def test_no_time_at_all() -> None:
    assert shown.ago(None) == shown.exact(None) == shown.since(None, NOON) == "—"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain äöü 漢字 👩‍🚀", "plain äöü 漢字 👩‍🚀"),
        ("a\x00b", "a\\x00b"),
        ("a\u202eb\u2066c\u200f", "a\\u202eb\\u2066c\\u200f"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\ud800", "\\ud800"),
        (5, "5"),
    ],
)
def test_what_one_would_not_see_is_shown(text: Any, seen: str) -> None:
    assert shown.visible(text) == seen


def test_what_is_cut_says_so() -> None:
    assert shown.cut("short", 10) == "short"
    assert shown.cut("x" * 1300, 200) == "x" * 200 + '<span class="gq-cut">… 1,100 more characters</span>'
    assert shown.cut("<b>" + "x" * 10, 4) == '&lt;b&gt;x<span class="gq-cut">… 9 more characters</span>'
    assert "… 1 more character<" in shown.cut("xy", 1)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("shop.tasks.send_receipt", ["shop.", "tasks.", "send_", "receipt"]),
        ("python manage.py runworker", ["python manage.py runworker"]),
        ("__init__, 3.14, e.g. .env", ["__init__, 3.14, e.g. .env"]),
        ("<a.bold>&amp;", ["&lt;a.", "bold&gt;&amp;amp;"]),
        ("a\u202e.bold", [r"a\u202e.", "bold"]),
    ],
)
def test_a_long_name_may_be_broken_between_its_words(text: str, pieces: list[str]) -> None:
    assert shown.breakable(text) == "<wbr>".join(pieces)
    assert shown.cut(text) == shown.breakable(text)


@pytest.mark.parametrize("status", ["scheduled", "in_progress", "dead", "in_doubt", "live", "<script>"])
def test_a_status_is_a_word_and_an_icon(status: str) -> None:
    badge = shown.status_badge(status)
    assert "<svg" in badge
    assert "<script" not in badge
    assert status.replace("_", " ").strip("<>") in badge
    assert "style=" not in badge


def test_numbers_in_drawings_have_a_point_in_every_language() -> None:
    with translation.override("de"):
        assert shown.coordinate(1.50) == "1.5"
        assert shown.duration(1.5) == "1,5 s"


def test_scripts_carry_the_page_s_nonce() -> None:
    plain = shown.nonced({}, MEDIA)  # type: ignore[arg-type]
    assert "gnlqueue/admin.css" in plain
    assert "nonce" not in plain
    nonced = shown.nonced({"csp_nonce": 'n"1'}, MEDIA)  # type: ignore[arg-type]
    assert nonced.count('nonce="n&quot;1"') == 2
    lazy = SimpleLazyObject(lambda: "")  # Django's is false until it is used
    assert shown.nonced({"csp_nonce": lazy}, MEDIA).count("nonce=") == 2  # type: ignore[arg-type]
    assert shown.nonced({"csp_nonce": "n2"}, nonced).count("nonce=") == 2  # type: ignore[arg-type]  # has one
    assert shown.nonced({"csp_nonce": "n1"}, MEDIA["css"]).count("nonce=") == 1  # type: ignore[arg-type]


def test_counts_stop_at_their_cap() -> None:
    assert [str(CappedCount.of(3, cap)) for cap in (2, 3, 4)] == ["2+", "3", "3"]
    assert str(CappedCount.of(10_001, 10_000)) == "10,000+"
    assert not CappedCount.of(0, 10_000)


@pytest.mark.parametrize(
    ("estimate", "said"),
    [(9_812_345, "about 9,800,000"), (99_999, "about 100,000"), (10_040, ""), (37, ""), (0, ""), (None, "")],
)
def test_beyond_the_cap_one_reads_about_how_many_there_are(estimate: int | None, said: str) -> None:
    assert CappedCount.of(10_001, 10_000, lambda: estimate).about == said
    assert CappedCount.of(7, 10_000, lambda: estimate, more=True).about == said


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (CappedCount(2), CappedCount(3), "5"),
        (CappedCount(10_000, True, 170_000), CappedCount(43), "10,043+ (about 170,000)"),
        (CappedCount(10_000, True, 170_000), CappedCount(10_000, True, 30_000), "20,000+ (about 200,000)"),
        (CappedCount(10_000, True, 170_000), CappedCount(10_000, True), "20,000+"),
        (CappedCount(43), CappedCount(10_000, True), "10,043+"),
    ],
)
def test_counts_are_added(one: CappedCount, other: CappedCount, said: str) -> None:
    assert one.plus(other).said == other.plus(one).said == said


def test_what_was_counted_is_not_estimated() -> None:
    assert CappedCount.of(10_000, 10_000, lambda: pytest.fail("asked")).about == ""


def test_a_verb_asks_for_its_permission(alias: str, log_in: LogIn) -> None:
    log_in("retry_job")
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="ann")
    assert may(request, "retry_job")
    require(request, "retry_job")
    with pytest.raises(PermissionDenied):
        require(request, "cancel_job")
    request.user.is_active = False
    assert not may(request, "retry_job")


def test_what_somebody_did_is_written_down(alias: str) -> None:
    request = RequestFactory().get("/")
    request.user = User(username="ann")
    record(request, "retry", "x" * 300, job_id=5, why="it was the network")
    record(request, "cancel", "312 jobs", where={"status": "dead"}, done=0, runner_id=7)
    one, many = OperatorAction.objects.using(alias).order_by("id")
    assert (one.by, one.verb, len(one.target), one.job_id, one.done) == ("ann", "retry", 200, 5, 1)
    assert abs(one.at - datetime.now(UTC)) < timedelta(minutes=1)
    assert one.finished_at is not None
    assert (many.where, many.runner_id, many.finished_at) == ({"status": "dead"}, 7, None)


def test_our_pages_have_no_form_to_save_a_row(alias: str, admin: Client) -> None:
    job = queue.enqueue("shop.pay")
    assert admin.get("/admin/gnlqueue/job/add/").status_code in {302, 403, 404}
    assert admin.post(f"/admin/gnlqueue/job/{job.pk}/delete/", {"post": "yes"}).status_code in {403, 404}
    assert Job.objects.using(alias).filter(pk=job.pk).exists()


@on_sqlite
@pytest.mark.parametrize("urls", ["two_sites", "one_other_site"])
def test_all_pages_lead_to_pages_of_their_own_site(alias: str, admin: Client, settings: Any, urls: str) -> None:
    story = tell()
    addresses = {name: url(story).replace("/admin/", "/ops/", 1) for name, url in PAGES.items()}
    settings.ROOT_URLCONF = f"tests.admin.{urls}"
    strays = {}
    for name, address in addresses.items():
        response = admin.get(address)
        assert response.status_code == 200, name
        strays[name] = re.findall(r'(?:href|action)="(/admin/[^"]*)"', response.content.decode())
    assert {name: found for name, found in strays.items() if found} == {}


@on_sqlite
def test_what_is_done_on_a_site_ends_on_it(alias: str, admin: Client, settings: Any) -> None:
    story = tell()
    settings.ROOT_URLCONF = "tests.admin.two_sites"
    posts: dict[str, dict[str, Any]] = {
        f"job/{story.dead.pk}/verb/retry/": {},
        f"job/{story.ready.pk}/verb/enqueue_again/": {"args": "[]", "kwargs": "{}"},
        f"job/{story.running.pk}/verb/retry/": {},
        "queuestate/pause/": {"queue_name": "default"},
    }
    for address, fields in posts.items():
        response = admin.post(f"/ops/gnlqueue/{address}", fields)
        assert response["Location"].startswith("/ops/"), address
    page = admin.get(f"/ops/gnlqueue/job/{story.ready.pk}/change/").content.decode()
    assert re.search(r'Enqueued again as <a href="/ops/', page)


def test_the_app_and_its_models_have_names_that_can_be_translated() -> None:
    names = (apps.get_app_config("gnlqueue").verbose_name, Job._meta.verbose_name, Job._meta.verbose_name_plural)
    assert all(isinstance(name, Promise) for name in names)
    assert [str(name) for name in names] == ["Background jobs", "job", "jobs"]


@on_sqlite
def test_every_page_is_there_without_the_context_processor_of_the_request(
    alias: str, admin: Client, settings: Any
) -> None:
    """Django asks for it only where the admin has its sidebar."""
    (engine,) = settings.TEMPLATES
    processors = engine["OPTIONS"]["context_processors"]
    rest = [each for each in processors if not each.endswith("context_processors.request")]
    assert len(rest) == len(processors) - 1
    settings.TEMPLATES = [{**engine, "OPTIONS": {**engine["OPTIONS"], "context_processors": rest}}]
    story = tell()
    for name, page in PAGES.items():
        response = admin.get(page(story))
        assert response.status_code == 200, name
        assert "request" not in response.context, name
    filtered = "/admin/gnlqueue/job/?status=dead"
    assert f'name="next" value="{filtered}"' in admin.get(filtered).content.decode()
    assert f"next={quote('/admin/gnlqueue/deadjob/', '')}" in admin.get("/admin/gnlqueue/deadjob/").content.decode()


def addresses(story: Story) -> dict[str, str]:
    """The address of every page that our admin has, by its name; an id is one of the story's."""
    ids = {StepInDoubt: story.doubtful.pk, DeadJob: story.dead.pk, OperatorAction: 1}
    found = {}
    for model, page in site._registry.items():
        if not isinstance(page, QueuePage):
            continue
        for pattern in page.get_urls():
            if pattern.name:  # not what Django redirects
                wanted = pattern.pattern.converters
                given = {"verb": "retry", **dict.fromkeys(("object_id", "entry_id"), ids.get(model, story.ready.pk))}
                args = {name: value for name, value in given.items() if name in wanted}
                found[pattern.name] = reverse(f"admin:{pattern.name}", kwargs=args)
    return found


@on_sqlite
@pytest.mark.parametrize("data", [{}, {"action": "retry", "token": "forged"}], ids=["nothing", "a deed"])
def test_who_may_only_look_gets_403_for_whatever_is_posted(alias: str, log_in: LogIn, data: dict[str, str]) -> None:
    views = ("overview", "job", "deadjob", "stepindoubt", "queuestate", "workerprocess", "operatoraction")
    viewer = log_in(*(f"view_{name}" for name in views), "view_job_payload")
    told = {name: viewer.post(address, data).status_code for name, address in addresses(tell()).items()}
    assert len(told) > 20
    assert {name: status for name, status in told.items() if status != 403} == {}


@on_sqlite
def test_nothing_can_be_posted_to_a_page_that_only_shows(alias: str, admin: Client) -> None:
    story = tell()
    for name in ("overview", "a done job", "in doubt", "queues", "workers", "operator log"):
        assert admin.post(PAGES[name](story)).status_code == 403, name
