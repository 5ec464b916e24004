"""Addresses of a project that has a second admin site, with the queue's pages on both."""

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.urls import path

import gnlqueue.admin  # noqa: F401  registers the pages on the first

ops = AdminSite(name="ops")
for model, page in admin.site._registry.items():
    if model._meta.app_label == "gnlqueue":
        ops.register(model, type(page))  # type: ignore[type-var]

urlpatterns = [path("admin/", admin.site.urls), path("ops/", ops.urls)]
