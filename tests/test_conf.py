"""The settings: one dict, every key optional, nothing misspelled in silence."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from gnlqueue.conf import Settings
from gnlqueue.conf import settings as in_force


def test_without_the_setting_the_defaults_hold(settings: Any) -> None:
    del settings.GNLQUEUE
    assert in_force() == Settings()


def test_what_is_set_is_in_force(settings: Any) -> None:
    settings.GNLQUEUE = {"LEASE_SECONDS": 30}
    assert in_force().LEASE_SECONDS == 30
    settings.GNLQUEUE = {"LEASE_SECONDS": 90}
    assert in_force().LEASE_SECONDS == 90


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"LEASE_SECOND": 30}, r"no setting 'LEASE_SECOND' \(did you mean \"LEASE_SECONDS\"\?\)"),
        ({"lease_seconds": 30}, r'did you mean "LEASE_SECONDS"'),
        ({"COLOUR": 1}, "The settings are: DATABASE, LISTEN_DATABASE, MAX_PAYLOAD_BYTES"),
        ([], r"should be a dict, not \[\]"),
        ({"DATABASE": "defualt"}, r"'DATABASE'\] is 'defualt', but should be an alias.*did you mean \"default\""),
        ({"LISTEN_DATABASE": "nowhere"}, "should be an alias of DATABASES"),
        ({"MAX_PAYLOAD_BYTES": 0}, "an integer of at least 1"),
        ({"MAX_ATTEMPTS": True}, "an integer from 1 to 1000"),
        ({"MAX_ATTEMPTS": 2.5}, "an integer from 1 to 1000"),
        ({"MAX_ATTEMPTS": 1001}, "an integer from 1 to 1000"),
        ({"LEASE_SECONDS": 0.5}, "at least 1 second"),
        ({"LEASE_SECONDS": "60"}, "a number of seconds"),
        ({"LEASE_SECONDS": None}, "a number of seconds"),
        ({"RETENTION_SECONDS": -1}, "a timedelta or a number of seconds, at least 0"),
        ({"SHUTDOWN_TIMEOUT_SECONDS": float("inf")}, "a number of seconds"),
        ({"STRICT_TRANSACTIONS": "yes"}, "True or False"),
        ({"INLINE": 1}, "True or False"),
        ({"REDACT": "password"}, "a list of argument names"),
        ({"REDACT": ""}, "a list of argument names, a function, or the dotted path of one"),
        ({"REDACT": [1]}, "a list of argument names"),
        ({"REDACT": None}, "a list of argument names"),
    ],
)
def test_a_wrong_setting_is_refused(settings: Any, given: Any, message: str) -> None:
    settings.GNLQUEUE = given
    with pytest.raises(ImproperlyConfigured, match=message):
        in_force()


def test_a_length_of_time_may_be_a_timedelta(settings: Any) -> None:
    settings.GNLQUEUE = {"LEASE_SECONDS": timedelta(minutes=2), "RETENTION_SECONDS": timedelta(days=1)}
    assert (in_force().LEASE_SECONDS, in_force().RETENTION_SECONDS) == (120, 86_400)


@pytest.mark.parametrize(
    "given",
    [
        {"RETENTION_SECONDS": None},
        {"RETENTION_SECONDS": 3600},
        {"REDACT": ["card"]},
        {"REDACT": str.isupper},
        {"REDACT": "shop.privacy.hide"},  # which a check looks for
    ],
)
def test_what_makes_sense_is_taken(settings: Any, given: dict[str, Any]) -> None:
    settings.GNLQUEUE = given
    in_force()
