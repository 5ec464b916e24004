"""What humans have said of steps that look like others under another name or key.

Nothing but the notes of the entries keeps it: a mismatch notes what was asked, and a resolution what was answered.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, NamedTuple

from gnlqueue.answers import GoOn, NotHappened, UseRecorded
from gnlqueue.durable.keys import is_renaming, name_of
from gnlqueue.models import StepNote

MOST_NAMES = 20  # pairs of names that one question is about: a note has room for as many


class Repeated(NamedTuple):
    """A step that was done and left out, and one that was done later and seems to repeat it."""

    id: int  #: of the entry that was left out
    old: str  #: its key
    old_token: int  #: of the attempt that did it
    new: str
    new_token: int


class Verdicts:
    """What has been said of the steps of a run."""

    def __init__(self, run_id: str, database: str) -> None:
        notes = StepNote.objects.using(database).filter(entry__run_id=run_id).order_by("id")
        self._same: dict[tuple[str, str], bool] = {}  # by the old and the new name
        self._accepted: dict[tuple[str, str], range] = {}  # tokens, by the name left out and the one done instead
        asked: dict[str, tuple[Any, int]] = {}
        for key, kind, value, token in notes.values_list("entry__key", "kind", "value", "lease_token"):
            if kind == StepNote.Kind.MISMATCH:
                asked[key] = json.loads(value or "{}"), token or 0
            elif kind == StepNote.Kind.RESOLUTION and key in asked:
                self._learn(key, *asked[key], value)

    def _learn(self, key: str, question: Any, token: int, answer: str | None) -> None:
        if isinstance(question, list):
            if answer == repr(GoOn()):
                for old, new, first in question:
                    before = self._accepted.get((old, new), range(first, first))
                    self._accepted[old, new] = range(min(first, before.start), token + 1)
        elif answer in {repr(UseRecorded()), repr(NotHappened())} and is_renaming(key, new := question.get("key", "")):
            self._same[name_of(key), name_of(new)] = answer == repr(UseRecorded())

    def is_same(self, old: str, new: str) -> bool | None:
        """Return whether a step is the one that was recorded under another name; `None` where nobody has said so."""
        return self._same.get((name_of(old), name_of(new)))

    def is_accepted(self, pair: Repeated, asked: Collection[str]) -> bool:
        """Tell whether somebody has looked at this: at the same two names, or at what the wrong code had done.

        That answer is about what was done until the question was asked; code that is still wrong is asked about again.
        The code was put right if it has the old name again, among the names of the steps that it has `asked` for.
        """
        if self.is_same(pair.old, pair.new) is False:
            return True
        old, new = name_of(pair.old), name_of(pair.new)
        looked_at = self._accepted.get((old, new))
        if looked_at is not None and pair.new_token < looked_at.stop:
            return True
        return any(
            pair.old_token in tokens
            for (right, instead), tokens in self._accepted.items()
            if instead == old and right in asked
        )


def question_about(pairs: Iterable[Repeated]) -> str:
    """Return what a note keeps of the question about these: each two names, and the first attempt that repeated.

    What is beyond `MOST_NAMES` is asked about later.
    """
    first: dict[tuple[str, str], int] = {}
    for pair in pairs:
        names = name_of(pair.old), name_of(pair.new)
        first[names] = min(first.get(names, pair.new_token), pair.new_token)
    return json.dumps([[*names, token] for names, token in islice(first.items(), MOST_NAMES)], ensure_ascii=False)


def asked_instead(value: str | None) -> dict[str, Any]:
    """Return what the code asked for in the place of an entry, by the note of the mismatch; nothing where left out."""
    asked = json.loads(value or "{}")
    return asked if isinstance(asked, dict) else {}
