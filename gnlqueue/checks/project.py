"""Checks of the project's settings, whatever its databases are."""

from __future__ import annotations

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import Error, Warning
from django.core.management import get_commands
from django.db import connections

from gnlqueue.checks.base import Found
from gnlqueue.conf import settings
from gnlqueue.redaction import function, is_function

#: A lease is renewed every third of its length, and a renewal may take a second on a busy database.
SHORTEST_LEASE = 3


def no_time_zones() -> Found:
    if django_settings.USE_TZ:
        return None
    return Error(
        "USE_TZ is off. The queue's clock is the database's, in UTC; Django would store local times beside it, and "
        "jobs would become due hours early or late.",
        hint="Set USE_TZ = True.",
        id="gnlqueue.E002",
    )


def cannot_listen() -> Found:
    alias = settings().LISTEN_DATABASE
    if alias is None or connections[alias].vendor == "postgresql":
        return None
    return Error(
        f'GNLQUEUE["LISTEN_DATABASE"] is {alias!r}, which is not PostgreSQL; only that has LISTEN.',
        hint="Name the alias of a direct connection to the queue's PostgreSQL database, or remove LISTEN_DATABASE.",
        id="gnlqueue.E006",
    )


def short_lease() -> Found:
    # No error: a job that was taken over too early still has one owner at a time, and tests want short leases.
    lease = settings().LEASE_SECONDS
    if lease >= SHORTEST_LEASE:
        return None
    return Warning(
        f'GNLQUEUE["LEASE_SECONDS"] is {lease:g}. Workers renew a lease every third of its length, so one slow commit '
        "is enough for a job to be taken from a healthy worker and run once more.",
        hint=f'Set GNLQUEUE["LEASE_SECONDS"] to at least {SHORTEST_LEASE}; the default is 60.',
        id="gnlqueue.W012",
    )


def broken_redact() -> Found:
    if not is_function():
        return None
    try:
        function()
    except Exception as error:
        return Error(
            f'GNLQUEUE["REDACT"] is {settings().REDACT!r}, which cannot be imported as a function: {error}. Until '
            "it can, commands and the admin hide every value.",
            hint="Name a function of the project, `def hide(name: str) -> bool`, by its dotted path.",
            id="gnlqueue.E010",
        )
    return None


def no_date_filters() -> Found:
    if not apps.is_installed("django.contrib.admin") or apps.is_installed("rangefilter"):
        return None
    return Warning(
        "The admin of the jobs filters by date with django-admin-rangefilter, whose templates are found only when it "
        "is installed as an app.",
        hint='Add "rangefilter" to INSTALLED_APPS.',
        id="gnlqueue.W013",
    )


def other_runworker() -> Found:
    app = get_commands().get("runworker", "gnlqueue")
    if app == "gnlqueue":
        return None
    return Warning(
        f"`manage.py runworker` is the command of {app}, which comes before gnlqueue in INSTALLED_APPS: it would not "
        "run a single job.",
        hint='Start workers with `manage.py gnlqueue worker`, which is the same, and add "gnlqueue.W014" to '
        f'SILENCED_SYSTEM_CHECKS; or put "gnlqueue" before "{app}".',
        id="gnlqueue.W014",
    )


def runs_inline() -> Found:
    if not settings().INLINE:
        return None
    return Warning(
        'GNLQUEUE["INLINE"] is on, which is for development: each request runs the jobs that it enqueues, and its '
        "client waits for them. If the process dies meanwhile, they wait for a worker.",
        hint='Remove "INLINE" from GNLQUEUE, and start workers with `manage.py runworker`.',
        id="gnlqueue.W016",
    )
