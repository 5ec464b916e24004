"""What a job can carry, and what is refused with its path."""

import enum
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnlqueue import PayloadError
from gnlqueue.payloads import DEEPEST, decode, encode, same, scrub

LIMIT = 10**6

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=20,
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda children: st.lists(children) | st.tuples(children) | st.dictionaries(st.text() | st.integers(), children),
    max_leaves=20,
)


@given(values)
def test_what_is_accepted_comes_back_as_it_went_in(value: Any) -> None:
    back = decode(encode(value, "args", limit=LIMIT))
    assert back == value
    assert repr(back) == repr(value)  # 1, 1.0 and True are equal, but not the same
    assert same(back, value)


@given(anything)
def test_a_value_is_carried_or_refused_with_its_path(value: Any) -> None:
    try:
        text = encode(value, "args", limit=LIMIT)
    except PayloadError as error:
        assert str(error).startswith(("args", "the key"))  # noqa: PT017
    else:
        assert json.loads(text) == json.loads(json.dumps(value))
        text.encode()


@given(st.text(st.characters()), st.integers(60, 200))
def test_scrubbed_text_can_be_stored_everywhere(text: str, limit: int) -> None:
    clean = scrub(text, limit)
    assert len(clean) <= limit
    assert "\0" not in clean
    clean.encode()


@given(texts)
def test_text_that_can_be_stored_is_not_changed(text: str) -> None:
    assert scrub(text, len(text)) == text


def test_a_cut_keeps_both_ends_and_says_what_is_missing() -> None:
    clean = scrub("start " + "x" * 1000 + " end", 100)
    assert clean.startswith("start ")
    assert clean.endswith(" end")
    assert "… 910 characters cut …" in clean


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "carried"), [((1, (2,)), [1, [2]]), (Colour.RED, "red"), (enum.IntEnum("Size", {"L": 3}).L, 3)]
)
def test_tuples_become_lists_and_enums_their_values(value: Any, carried: Any) -> None:
    assert decode(encode(value, "args", limit=LIMIT)) == carried


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([0, {"a": [1, b"x"]}], r"args\[1\]\['a'\]\[1\] is a builtins.bytes"),
        ([{1, 2}], r"args\[0\] is a builtins.set"),
        ([float("nan")], r"args\[0\] is nan, which JSON cannot carry"),
        ([-float("inf")], r"args\[0\] is -inf"),
        ([2**64], r"args\[0\] is a number of more than 64 bits"),
        ([-(2**63) - 1], r"args\[0\] is a number of more than 64 bits"),
        (["a\0"], r"args\[0\] contains a NUL character"),
        (["\ud800"], r"args\[0\] contains a lone surrogate"),
        ([{"\udfff": 1}], r"the key '\\udfff' of args\[0\] contains a lone surrogate"),
        ([{None: 1}], r"args\[0\] has the key None; JSON objects have only text as keys"),
    ],
)
def test_what_cannot_be_carried_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(PayloadError, match=path):
        encode(value, "args", limit=LIMIT)


def test_the_deepest_nesting_is_named_and_not_exceeded() -> None:
    value: Any = 1
    for _ in range(DEEPEST):
        value = [value]
    encode(value, "args", limit=LIMIT)
    with pytest.raises(PayloadError, match=r"is nested more than 30 levels deep \(or contains itself\)"):
        encode([value], "args", limit=LIMIT)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PayloadError, match="contains itself"):
        encode(value, "args", limit=LIMIT)


def test_the_limit_counts_bytes_not_characters() -> None:
    assert encode("ä", "result", limit=4) == '"ä"'
    with pytest.raises(PayloadError, match="result: 4 bytes as JSON, and the limit is 3"):
        encode("ä", "result", limit=3)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        ([1], (1,), True),
        ([1], [True], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ("1", 1, False),
        (None, 0, False),
        ([], {}, False),
        ("", [], False),
    ],
)
def test_two_values_are_the_same_as_json(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal
