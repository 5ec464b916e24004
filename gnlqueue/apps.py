"""The Django app: registers the apps' tasks once all models are there."""

from __future__ import annotations

import django
from django.apps import AppConfig
from django.conf import global_settings, settings
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class GnlqueueConfig(AppConfig):
    name = "gnlqueue"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from gnlqueue import checks, inline  # noqa: F401  importing registers the checks

        autodiscover_modules("tasks")
        if django.VERSION >= (6, 0) and settings.TASKS != global_settings.TASKS:  # the default has none of ours
            from gnlqueue import backends

            backends.install()
        inline.install()
