"""Ids of rows as text: in an address, a form, a search box, or a task's result."""

LARGEST_ID = 2**63 - 1


def parse_id(text: str) -> int | None:
    """Return the id that a text names, or `None`; `int()` alone would take spaces, other digits, and any length."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(LARGEST_ID)):
        return None
    number = int(text)
    return number if number <= LARGEST_ID else None
