"""People who look at the admin: one may do everything, others only what a test lets them. And a real browser."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.test.testcases import LiveServerThread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: A browser in which somebody with these permissions of ours is logged in.
LogIn = Callable[..., Client]
#: A page in a real browser.
Open = Callable[..., "Page"]


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


@pytest.fixture
def open_page(chromium: "Browser", server: LiveServerThread, alias: str, settings: Any) -> Iterator[Open]:
    """`open_page(url, color_scheme="dark")`: a page as a superuser sees it, under the settings of this moment.

    With `frozen=True` no time passes on it but what `page.clock.run_for` lets pass.
    """
    from tests.admin import browser as browsers

    settings.ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
    user = User.objects.create_superuser("root")
    contexts = []

    def open_page(url: str, *, frozen: bool = False, **options: Any) -> "Page":
        browsers.take_up_settings(server)
        context = browsers.logged_in(chromium, server, user, **options)
        contexts.append(context)
        page = context.new_page()
        if frozen:
            browsers.freeze(page)
        browsers.go(page, url)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def strict_policy(settings: Any) -> None:
    """All pages come with the strictest of policies."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.admin.browser.StrictPolicy"]
