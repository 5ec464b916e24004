"""What a job carries: arguments and results as JSON, checked on the way in and scrubbed on the way out.

Only values that come back as they went in are accepted. Everything else is refused by name and path at `enqueue()`,
where the caller can still do something about it. What a *finished* attempt leaves behind (a result, an error's text)
is scrubbed instead: a failure must always be recordable.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from gnlqueue.exceptions import PayloadError, dotted

#: Nesting beyond this depth is refused; the databases' own JSON parsers end at 32 (MariaDB) or later.
DEEPEST = 30

#: MySQL's JSON type turns whole numbers outside of this range into floating point.
SMALLEST, LARGEST = -(2**63), 2**64 - 1

#: Made once, as `json.dumps` with any option makes one for each call. They need not look for what contains itself:
#: `_check` has refused it as too deep.
_json, _canonical_json = [
    json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False, sort_keys=sort_keys
    )
    for sort_keys in (False, True)
]

_STORE_ELSEWHERE = " (GNLQUEUE['MAX_PAYLOAD_BYTES']). Store the data where it belongs and pass its key."

#: Where a value stands: its name, or the place of its container and the key in there. A text only once it is refused.
_Place = str | tuple[Any, Any]


def encode(value: Any, what: str, *, limit: int, advice: str = _STORE_ELSEWHERE) -> str:
    """Return `value` as JSON text of at most `limit` bytes.

    `what` names the value in messages ("args", "result"); `advice` follows the limit there. Tuples become lists and
    members of text or number enums their values; nothing else is converted.

    Raises `PayloadError` with the path of the first value that JSON cannot carry: NaN and infinities, whole
    numbers of more than 64 bits, text with NUL or lone surrogates, keys that are not text, bytes, and objects.
    """
    if not value and isinstance(value, dict | list | tuple):
        return "{}" if isinstance(value, dict) else "[]"
    _check(value, what, 0)
    text = _json.encode(value)
    if (size := size_of(text)) > limit:
        raise PayloadError(f"{what}: {size:,} bytes as JSON, and the limit is {limit:,}{advice}")
    return text


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8, without encoding it where that tells nothing new."""
    return len(text) if text.isascii() else len(text.encode())


def _check(value: Any, place: _Place, depth: int) -> None:
    if isinstance(value, str):
        _check_text(value, place)
    elif value is None or isinstance(value, bool):
        return
    elif isinstance(value, int):
        if not SMALLEST <= value <= LARGEST:
            raise PayloadError(f"{_path(place)} is a number of more than 64 bits; not every database keeps it exactly.")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError(f"{_path(place)} is {value!r}, which JSON cannot carry. Pass None or text instead.")
    elif depth >= DEEPEST:
        raise PayloadError(f"{_path(place)} is nested more than {DEEPEST} levels deep (or contains itself).")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, (place, index), depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise PayloadError(f"{_path(place)} has the key {key!r}; JSON objects have only text as keys.")
            _check_text(key, place, is_key=True)
            _check(item, (place, key), depth + 1)
    else:
        raise PayloadError(
            f"{_path(place)} is a {dotted(type(value))}, which JSON cannot carry. Pass plain text, "
            "numbers, booleans, None, lists and dicts of them; for a model instance pass its primary key."
        )


def _check_text(text: str, place: _Place, *, is_key: bool = False) -> None:
    if "\0" in text:
        wrong = "a NUL character, which the databases cannot store"
    elif not text.isascii() and _has_surrogate(text):
        wrong = "a lone surrogate, which UTF-8 cannot store"
    else:
        return
    what = f"the key {text!r} of {_path(place)}" if is_key else _path(place)
    raise PayloadError(f"{what} contains {wrong}.")


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _path(place: _Place) -> str:
    return place if isinstance(place, str) else f"{_path(place[0])}[{place[1]!r}]"


def digest(value: Any, what: str, *, limit: int) -> str:
    """Return the SHA-256 of a value's canonical JSON, in which the order of an object's keys does not count.

    Raises `PayloadError` like `encode`.
    """
    encode(value, what, limit=limit)
    return hashlib.sha256(_canonical_json.encode(value).encode()).hexdigest()


def decode(text: str | None) -> Any:
    """Return the value of a stored JSON text; `None` for SQL's NULL."""
    return None if text is None else json.loads(text)


def same(one: Any, other: Any) -> bool:
    """Tell whether two carried values are equal as JSON: `1` and `1.0` are, `1` and `true` are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def scrub(text: str, limit: int) -> str:
    """Return text that every database can store: NUL and lone surrogates shown as escapes, cut to `limit` characters.

    A cut keeps both ends, where a traceback says what happened and where, and says how much is missing.
    """
    clean = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(clean) <= limit:
        return clean
    note = f"\n… {len(clean) - limit:,} characters cut …\n"
    head = max((limit - len(note)) // 3, 0)
    return clean[:head] + note + clean[-max(limit - len(note) - head, 1) :]
