"""Addresses of a project whose only admin site is one of its own."""

from django.urls import path

from tests.admin.two_sites import ops

urlpatterns = [path("ops/", ops.urls)]
