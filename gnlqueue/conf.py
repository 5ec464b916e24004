"""Settings: the dict `GNLQUEUE`, every key optional.

=========================== ======= ========================================================================
key                         default meaning
=========================== ======= ========================================================================
DATABASE                    None    alias of the queue's database; None asks the router (`db_for_write(Job)`)
LISTEN_DATABASE             None    alias of a direct connection for LISTEN, past PgBouncer; None: the queue's
MAX_PAYLOAD_BYTES           1 MiB   the largest arguments, or result, of a job as JSON
MAX_ATTEMPTS                5       attempts of a task that does not set its own
LEASE_SECONDS               60      how long a worker owns a job without a heartbeat
SHUTDOWN_TIMEOUT_SECONDS    25      how long running jobs may go on after SIGTERM
UNKNOWN_TASK_GRACE_SECONDS  3600    how long to keep trying a job whose task no worker knows
RETENTION_SECONDS           None    age at which workers prune done and cancelled jobs; None keeps them
STRICT_TRANSACTIONS         False   enqueueing while a transaction is open only on another alias raises
INLINE                      False   run each job at once in the process that enqueues it (development, tests)
REDACT                      ()      names of arguments whose values commands and the admin hide, or a function
=========================== ======= ========================================================================

The function, or the one that a dotted path names, is called with each name, including keys inside a value:
`def hide(name: str) -> bool`. If it raises, the value is hidden, and that is logged once. A result or evidence that is
not JSON, or was cut, has no names to ask about: with a list it is hidden if one of the names occurs in it, with a
function always.

The texts of errors and tracebacks are not redacted: keep secrets out of exceptions. In the admin, somebody without the
permission `view_job_payload` sees only an exception's class.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from gnlqueue.lengths import seconds

ATTEMPTS = range(1, 1001)  # that a job may have at most


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force; see the module's table. Built once, and again when the setting changes."""

    DATABASE: str | None = None
    LISTEN_DATABASE: str | None = None
    MAX_PAYLOAD_BYTES: int = 1024 * 1024
    MAX_ATTEMPTS: int = 5
    LEASE_SECONDS: float = 60
    SHUTDOWN_TIMEOUT_SECONDS: float = 25
    UNKNOWN_TASK_GRACE_SECONDS: float = 3600
    RETENTION_SECONDS: float | None = None
    STRICT_TRANSACTIONS: bool = False
    INLINE: bool = False
    REDACT: Collection[str] | Callable[[str], bool] = ()

    def __post_init__(self) -> None:
        for name in ("DATABASE", "LISTEN_DATABASE"):
            alias = getattr(self, name)
            if alias is not None and alias not in django_settings.DATABASES:
                raise _wrong(name, alias, f"an alias of DATABASES{suggestion(str(alias), django_settings.DATABASES)}")
        number = self.MAX_PAYLOAD_BYTES
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise _wrong("MAX_PAYLOAD_BYTES", number, "an integer of at least 1")
        number = self.MAX_ATTEMPTS
        if isinstance(number, bool) or not isinstance(number, int) or number not in ATTEMPTS:
            raise _wrong("MAX_ATTEMPTS", number, f"an integer from {ATTEMPTS[0]} to {ATTEMPTS[-1]}")
        for name in ("LEASE_SECONDS", "SHUTDOWN_TIMEOUT_SECONDS", "UNKNOWN_TASK_GRACE_SECONDS", "RETENTION_SECONDS"):
            length = getattr(self, name)
            if length is None and name == "RETENTION_SECONDS":
                continue
            try:
                object.__setattr__(self, name, seconds(length))
            except ValueError:
                raise _wrong(name, length, "a timedelta or a number of seconds, at least 0 and finite") from None
        if self.LEASE_SECONDS < 1:
            raise _wrong("LEASE_SECONDS", self.LEASE_SECONDS, "at least 1 second: a lease must outlast its heartbeat")
        for name in ("STRICT_TRANSACTIONS", "INLINE"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "True or False")
        if not _says_what_to_hide(self.REDACT):
            raise _wrong("REDACT", self.REDACT, "a list of argument names, a function, or the dotted path of one")


def _says_what_to_hide(value: object) -> bool:
    if isinstance(value, str):
        return "." in value  # whether it can be imported, a system check finds: here the apps may not be loaded yet
    return callable(value) or (isinstance(value, Collection) and all(isinstance(name, str) for name in value))


def _wrong(name: str, value: object, expected: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"GNLQUEUE[{name!r}] is {value!r}, but should be {expected}.")


def suggestion(name: str, known: Any) -> str:
    """Return ` (did you mean "…"?)` for the closest of the known names, or nothing."""
    close = difflib.get_close_matches(name, [str(each) for each in known], n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


@cache
def settings() -> Settings:
    """Return the settings in force.

    Raises `ImproperlyConfigured` for an unknown key or a value of the wrong kind.
    """
    given = getattr(django_settings, "GNLQUEUE", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"GNLQUEUE should be a dict, not {given!r}.")
    known = [field.name for field in fields(Settings)]
    for key in given:
        if key not in known:
            hint = suggestion(str(key).upper(), known)
            raise ImproperlyConfigured(f"GNLQUEUE has no setting {key!r}{hint}. The settings are: {', '.join(known)}.")
    return Settings(**given)


def _reset(*, setting: str, **_: Any) -> None:
    if setting == "GNLQUEUE":
        settings.cache_clear()


setting_changed.connect(_reset, dispatch_uid="gnlqueue.conf")
