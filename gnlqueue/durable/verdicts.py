"""What humans have said of steps that look like others under another name or key.

They are asked two questions (see `replay`):

- before `bill[5]` begins: is it `charge[5]`, renamed? The answer counts for the two names, under all keys (`is_same`);
- after `bill[5]` was done and `charge[5]` was left out: may that stay? `GoOn` accepts what was done until the question
  was asked (`is_accepted`).

The notes of the entries keep it, and nothing else does: a mismatch notes the question, and a resolution the answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, NamedTuple

from gnlqueue.answers import GoOn, NotHappened, UseRecorded, kind_of
from gnlqueue.durable.keys import is_renaming, name_of
from gnlqueue.models import StepNote

MOST_NAMES = 20  # pairs of names in one question: a note has room for that many


class Repeated(NamedTuple):
    """A step that was done and that the code leaves out, and one that was done and that it asks for instead."""

    id: int  #: of the entry that is left out
    old: str  #: its key
    old_token: int  #: of the attempt that did it
    new: str  #: key of the other one
    new_token: int


class Verdicts:
    """What has been said of the steps of a run."""

    def __init__(self, run_id: str, database: str) -> None:
        notes = StepNote.objects.using(database).filter(entry__run_id=run_id).order_by("id")
        self._same: dict[tuple[str, str], bool] = {}  # by the old and the new name
        # Tokens of the attempts whose work was accepted, by the name that was left out and the one done instead.
        self._accepted: dict[tuple[str, str], range] = {}
        asked: dict[str, tuple[Any, int]] = {}
        for key, kind, value, token in notes.values_list("entry__key", "kind", "value", "lease_token"):
            if kind == StepNote.Kind.MISMATCH:
                asked[key] = json.loads(value or "{}"), token or 0
            elif kind == StepNote.Kind.RESOLUTION and key in asked:
                self._learn(key, *asked[key], value)

    def _learn(self, key: str, question: Any, token: int, answer: str | None) -> None:
        """Learn from the answer to a list of repetitions, or to one step that was asked for instead of `key`."""
        said = kind_of(answer)
        if isinstance(question, list):
            if said is GoOn:
                for old, new, first in question:
                    before = self._accepted.get((old, new), range(first, first))
                    self._accepted[old, new] = range(min(first, before.start), token + 1)
        elif said in {UseRecorded, NotHappened} and is_renaming(key, new := question.get("key", "")):
            self._same[name_of(key), name_of(new)] = said is UseRecorded

    def is_same(self, old: str, new: str) -> bool | None:
        """Return whether `new` is the step that was recorded as `old`; `None` where nobody has said."""
        return self._same.get((name_of(old), name_of(new)))

    def is_accepted(self, pair: Repeated, asked: Collection[str]) -> bool:
        """Tell whether somebody has looked at this pair and let it be; `asked` are the names that the code asks for.

        They have said that the two names are two steps. Or they have answered `GoOn` about these names after the new
        one was done: code that is still wrong, and does more of it, is asked about again.

        Or the code was put right after they had answered `GoOn` about `bill[5]`, done instead of `charge[5]`: it asks
        for steps named `charge` again, and leaves out that `bill[5]`.
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
    """Return what a note keeps of a question about pairs: their names, and the first attempt that did the new one.

    What is beyond `MOST_NAMES` is asked about later.
    """
    first: dict[tuple[str, str], int] = {}
    for pair in pairs:
        names = name_of(pair.old), name_of(pair.new)
        first[names] = min(first.get(names, pair.new_token), pair.new_token)
    return json.dumps([[*names, token] for names, token in islice(first.items(), MOST_NAMES)], ensure_ascii=False)


def asked_instead(value: str | None) -> dict[str, Any]:
    """Return what the code asked for in place of an entry, from the note of the mismatch; {} if it left it out."""
    asked = json.loads(value or "{}")
    return asked if isinstance(asked, dict) else {}
