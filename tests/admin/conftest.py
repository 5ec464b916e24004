"""People who look at the admin: one may do everything, others only what a test lets them. And a real browser."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.test.testcases import LiveServerThread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.admin.browser import Window

#: A browser in which somebody with these permissions of ours is logged in.
LogIn = Callable[..., Client]
#: A page in a real browser.
Open = Callable[..., "Page"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that need a browser first, in whatever order they are: they share one, which costs a second."""
    items.sort(key=lambda item: "open_page" not in getattr(item, "fixturenames", ()))


@pytest.fixture
def log_in(alias: str) -> LogIn:
    """`log_in("view_job", "retry_job")`: a browser in which a member of staff with these permissions is logged in."""

    def log_in(*permissions: str, name: str = "ann") -> Client:
        user = User.objects.create_user(name, password="secret", is_staff=True)
        found = list(Permission.objects.filter(content_type__app_label="gnlqueue", codename__in=permissions))
        assert len(found) == len(permissions), permissions
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def admin(alias: str) -> Client:
    """A browser in which a superuser is logged in."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture(scope="package")
def chromium() -> "Iterator[Browser]":
    """One browser for all tests; each opens windows of its own in it."""
    pytest.importorskip("playwright", reason="Playwright is not installed")
    from tests.admin import browser as browsers

    if browsers.CHROMIUM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def server(chromium: "Browser") -> Iterator[LiveServerThread]:
    """One server for all tests; each opens its pages under settings of its own."""
    from tests.admin import browser as browsers

    with browsers.server() as server:
        yield server


@pytest.fixture(scope="package")
def window_of(chromium: "Browser", server: LiveServerThread) -> "Callable[[bool], Window]":
    """`window_of(frozen)`: one window for all tests, and another one for those of them in which time stands still."""
    from tests.admin import browser as browsers

    return cache(lambda frozen: browsers.Window(chromium, server, frozen=frozen))


@pytest.fixture
def open_page(
    window_of: "Callable[[bool], Window]", server: LiveServerThread, alias: str, settings: Any
) -> Iterator[Open]:
    """`open_page(url, scheme="dark")`: a page as a superuser sees it, or a tab for pages, under the present settings.

    With `frozen=True` no time passes on it but what `page.clock.run_for` lets pass. One page a test.
    """
    from tests.admin import browser as browsers

    settings.ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
    user = User.objects.create_superuser("root")
    taken = []

    def open_page(url: str | None = None, *, frozen: bool = False, **options: Any) -> "Page":
        assert not taken, "the test has a page"
        browsers.take_up_settings(server)
        taken.append(window_of(frozen))
        page = taken[0].take(user, **options)
        if url is not None:
            browsers.go(page, url)
        return page

    yield open_page
    for window in taken:
        window.leave()


@pytest.fixture
def strict_policy(settings: Any) -> None:
    """All pages come with the strictest of policies."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.admin.browser.StrictPolicy"]


@pytest.fixture
def nonce_policy(settings: Any) -> None:
    """Django's own policy at its strictest: scripts and styles only with the nonce of the page.

    It only reports what violates it: the stock admin's own scripts and styles do.
    """
    if django.VERSION < (6, 0):
        pytest.skip("Django has a content security policy of its own from 6.0 on")
    from django.utils.csp import CSP

    settings.SECURE_CSP_REPORT_ONLY = {
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


@pytest.fixture
def both_policies(strict_policy: None, request: pytest.FixtureRequest) -> None:
    """All pages come with the strictest of policies, and with Django's where it has one."""
    if django.VERSION >= (6, 0):
        request.getfixturevalue("nonce_policy")
