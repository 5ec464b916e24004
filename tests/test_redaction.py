"""What `GNLQUEUE["REDACT"]` hides, whether it is a list of names or a function that is asked about each."""

import json
import logging
from typing import Any

import pytest

from gnlqueue import redaction
from gnlqueue.models import Job
from gnlqueue.redaction import MASK, masked, masked_text, redacted

VALUE = {"card": "4242", "to": [{"card_no": 5, "name": "Ann"}]}


def is_about_cards(name: str) -> bool:
    return "card" in name


def cannot_tell(name: str) -> bool:
    raise LookupError(name)


@pytest.fixture
def redact(settings: Any) -> Any:
    def redact(given: Any) -> None:
        settings.GNLQUEUE = {**settings.GNLQUEUE, "REDACT": given}

    return redact


@pytest.mark.parametrize("given", [is_about_cards, "tests.test_redaction.is_about_cards", ["card", "card_no"]])
def test_what_is_to_be_hidden_is_however_deep(redact: Any, given: Any) -> None:
    redact(given)
    assert masked(VALUE) == {"card": MASK, "to": [{"card_no": MASK, "name": "Ann"}]}
    assert json.loads(masked_text(json.dumps(VALUE))) == masked(VALUE)


def test_a_function_is_asked_about_arguments_by_position(redact: Any) -> None:
    redact(lambda name: name == "message")
    job = Job(task_name="tests.app.tasks.fail", args=["secret"], kwargs={"other": 5})
    assert redacted(job) == ([MASK], {"other": 5})
    job.task_name = "shop.unknown"  # nobody knows the names of its arguments
    assert redacted(job) == ([MASK], {"other": 5})


@pytest.mark.parametrize(
    ("given", "text", "seen"),
    [
        ([], "<card 4242>", "<card 4242>"),
        (["card"], "<card 4242>", ""),
        (["card"], "<id 7>", "<id 7>"),
        (is_about_cards, "<id 7>", ""),  # it cannot be asked about a text
    ],
)
def test_a_text_that_is_no_json(redact: Any, given: Any, text: str, seen: str) -> None:
    redact(given)
    assert masked_text(text) == seen
    assert masked_text(json.dumps({"at": text}), is_whole=False) == (seen and json.dumps({"at": text}))


@pytest.mark.parametrize("given", [cannot_tell, "tests.nowhere.hide", "tests.test_redaction.VALUE"])
def test_where_nobody_can_tell_all_is_hidden_and_the_log_says_so_once(
    redact: Any, given: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "_told", set())
    redact(given)
    assert masked(VALUE) == {"card": MASK, "to": MASK}
    with caplog.at_level(logging.ERROR):
        assert masked({"name": 1}) == {"name": MASK}
    (record,) = caplog.records
    assert "is hidden" in record.getMessage()
    assert "4242" not in caplog.text


def test_a_module_that_cannot_be_imported_is_not_tried_for_each_key(
    redact: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(path: str) -> None:
        tried.append(path)
        raise ImportError(path)

    monkeypatch.setattr(redaction, "import_string", fail)
    for _ in range(2):
        redact("shop.privacy.hide")
        assert set(masked(dict.fromkeys("abcdef", 1)).values()) == {MASK}
    assert tried == ["shop.privacy.hide"] * 2  # once under each settings
