"""What is said of a database that is away."""

import pytest

from gnlqueue import connection
from gnlqueue.connection import Outage


def test_an_outage_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = [1000.0]
    monkeypatch.setattr(connection.time, "monotonic", lambda: clock[0])
    outage = Outage("billing", 20)

    for clock[0] in (1000.0, 1005.0, 1059.0, 1061.0, 1062.0, 1121.5):
        assert 0 < outage.pause(OSError("no route\n")) <= 5
    outage.over()
    outage.over()
    outage.pause(OSError("refused"))

    assert caplog.messages == [
        "The database 'billing' cannot be reached; trying until it can: no route",
        "The database 'billing' cannot be reached since 61 s; trying until it can: no route",
        "The database 'billing' cannot be reached since 122 s; trying until it can: no route",
        "The database 'billing' is back after 121.5 s.",
        "The database 'billing' cannot be reached; trying until it can: refused",
    ]
