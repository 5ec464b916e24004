"""People who look at the admin: one may do everything, others only what a test lets them."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

#: A browser in which somebody with these permissions of ours is logged in.
LogIn = Callable[..., Client]


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
