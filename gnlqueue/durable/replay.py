"""Whether the code asks for what the journal holds.

The code of a run must ask for the same steps in the same order on every attempt. Steps of its main flow are compared
by position: the next one must be the next that was recorded. Steps in threads and asyncio tasks finish in any order;
they carry a key of their caller's own, and are found by it alone. So a keyed step that was renamed looks like a new
one, which would do its work a second time:

    context.using(key="5").step("charge", pay, 5)     # the first attempt: recorded as charge[5], done
    context.using(key="5").step("bill", pay, 5)       # after a deploy: bill[5] is not in the journal

That is looked for twice. Before `bill[5]` begins, `looks_renamed` compares it with `charge[5]`. What differs too much
to be seen there (say, the function was renamed as well) is found when the handler has returned: `bill[5]` noted as it
began that it may repeat `charge[5]`, and `repetitions` finds that only one of the two was asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property
from itertools import islice
from typing import Any

from gnlqueue.durable.entries import Entry, Wanted
from gnlqueue.durable.keys import can_name, is_keyed, keyed, name_of, own_key, repeated
from gnlqueue.durable.verdicts import Repeated
from gnlqueue.models import NOT_EFFECTS, OUTCOME_UNKNOWN, EntryStatus

_MAY_HAVE_HAPPENED = (EntryStatus.DONE, *OUTCOME_UNKNOWN)
MOST_REPEATED = 20  #: entries with the same trait of which a step notes that it may repeat them


class Mismatch(Exception):
    """The code asks for something other than what the journal holds at this place; `got` is what it asks for."""

    def __init__(self, entry: Entry, got: Wanted, what: str) -> None:
        self.entry = entry
        self.got = got
        super().__init__(what)


class Replay:
    """Finds the recorded entry for each step that the code asks for."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        # By each name that the code has asked for in this attempt: the furthest position of its steps in the journal,
        # and infinity once one of them is new.
        self._reached: dict[str, float] = {}
        self._recorded = sorted(entries, key=lambda entry: (entry.position, entry.id))
        self._keyed = {entry.key: entry for entry in self._recorded if is_keyed(entry.key)}
        self._main = [entry for entry in self._recorded if not is_keyed(entry.key)]
        self._next = 0
        self._names: Counter[str] = Counter()
        self._keys_used: set[str] = set()
        self._taken: dict[str, Wanted] = {}  # the step that uses an entry under a new name, by the entry's key
        self._by_own_key: dict[str, list[Entry]] = {}
        for entry in self._keyed.values():
            self._by_own_key.setdefault(own_key(entry.key), []).append(entry)

    def key(self, name: str, own: str | None, *, main_flow: bool) -> str:
        """Return the key of the step that is asked for now: `name`, `name#2` when repeated, `name[own]` when keyed.

        Raises `ValueError` for a name that would be ambiguous, a key used twice, or a missing key outside of the main
        flow.
        """
        if not can_name(name) or any(char in "#[]" for char in name):
            raise ValueError(
                f"A step's name must be 1 to 200 printable characters without '#', '[' and ']', not {name!r:.220}."
            )
        if own is None:
            if not main_flow:
                raise ValueError(
                    f"The step {name!r} runs in a thread or an asyncio task of its own, where the order differs from "
                    "run to run: give it a key that names it, context.using(key=…)."
                )
            self._names[name] += 1
            return repeated(name, self._names[name])
        key = keyed(name, own)
        if key in self._keys_used:
            raise ValueError(f"The step key {key!r} is used twice in one run; each step needs its own.")
        self._keys_used.add(key)
        return key

    @property
    def names_asked(self) -> Collection[str]:
        """The names of the steps that the code has asked for in this attempt."""
        return self._reached.keys()

    def find(self, wanted: Wanted, *, match_args: bool) -> Entry | None:
        """Return the recorded entry of a step, `None` where it is new.

        Raises `Mismatch` where another step, another kind or other arguments were recorded at this place.
        """
        key = wanted.key
        entry = self._keyed.get(key) if is_keyed(key) else self._next_of_main_flow()
        name = name_of(key)
        self._reached[name] = max(self._reached.get(name, 0), math.inf if entry is None else entry.position)
        if entry is None:
            return None
        if entry.key != key:
            raise Mismatch(entry, wanted, f"the step {entry.key!r} was recorded here, and the code asks for {key!r}")
        if (taken_by := self._taken.get(key)) is not None:
            raise _asked_twice(entry, taken_by)
        _compare(entry, wanted, match_args=match_args)
        self._refuse_swapped(entry, wanted, match_args=match_args)
        entry.visited = True
        return entry

    def _refuse_swapped(self, entry: Entry, wanted: Wanted, *, match_args: bool) -> None:
        """Raise `Mismatch` where `charge[5]` calls what `bill[5]` called, and did not before: the names were swapped.

        A function that was only renamed, or replaced by a new one, calls what no other step has called.
        """
        if entry.not_happened or entry.function is None or wanted.function in {None, entry.function}:
            return
        for other in self.under_other_names(wanted):
            if _calls_the_same(other, wanted, match_args=match_args):
                raise Mismatch(
                    entry,
                    wanted,
                    f"{entry.key!r} was recorded as calling {entry.function}, and the code has it call "
                    f"{wanted.function}, as {other.key!r} did: their names may have been swapped",
                )

    def under_other_names(self, wanted: Wanted) -> list[Entry]:
        """Return what was recorded with the step's own key under other names: `charge[5]` for `bill[5]`."""
        if not is_keyed(wanted.key):
            return []
        return [entry for entry in self._by_own_key.get(own_key(wanted.key), ()) if entry.key != wanted.key]

    def looks_renamed(self, entry: Entry, wanted: Wanted, *, match_args: bool, sure: bool) -> bool:
        """Tell whether a step that is about to begin seems to be this entry under a new name; both have the same key.

        That is so if kind, arguments and function are the same, and the code has asked in this attempt neither for the
        entry nor for a step of the old name that was recorded after it, or that is new: a loop over what is still to
        do has left this one behind. Outside the main flow another branch may still ask for it; `sure` says whether the
        name of the function is proof enough even so.
        """
        if entry.visited or wanted.function is None or not sure:
            return False
        same = _calls_the_same(entry, wanted, match_args=match_args)
        return same and self._reached.get(name_of(entry.key), 0) < entry.position

    def take(self, entry: Entry, wanted: Wanted, *, match_args: bool) -> None:
        """Let a step use this entry: somebody has said that it is the same one under a new name.

        Raises `Mismatch` where the kind or the arguments differ, or the code asks for the entry by its old name too.
        """
        if entry.visited:
            raise _asked_twice(entry, wanted)
        _compare(entry, wanted, match_args=match_args)
        entry.visited = True
        self._taken[entry.key] = wanted

    def left_in_doubt(self) -> list[Entry]:
        """Return the steps that the code has not asked for, and of which nobody knows whether they happened."""
        return [entry for entry in self._left_out() if entry.status in OUTCOME_UNKNOWN]

    def note_what_it_may_repeat(self, wanted: Wanted, tried: Entry | None) -> Wanted:
        """Return a step that is about to begin, with the ids of the entries that it may repeat as `instead_of`.

        Those may have happened, look like it, and have not been asked for in this attempt so far. These look like
        `charge[5]`:

            charge[6]   if the arguments are the same
            charge      always: the key was added or dropped
            bill[5]     if the kind is the same
            bill[6]     if the kind and the arguments are the same

        (Steps that take no arguments do not have the same ones.)

        `tried` is the step's own entry, if it has one, which says that the step did not happen: only what was begun in
        a later attempt can be repeated then. The ids are added to those that it has.
        """
        found: dict[int, Entry] = {}
        for trait in _traits(wanted.key, wanted.kind, wanted.args_hash, with_key=is_keyed(wanted.key)):
            alike = self._not_asked_for.get(trait, [])
            if alike and alike[0].visited:  # a loop asks for the first ones first: no step need look at these again
                alike[:] = [each for each in alike if not each.visited]
            left_out = (each for each in alike if not each.visited)
            later = (each for each in left_out if tried is None or each.lease_token > tried.lease_token)
            found |= {each.id: each for each in islice(later, MOST_REPEATED)}
        if found and tried is not None:
            tried.instead_of = [*(tried.instead_of or []), *found]
        return wanted._replace(instead_of=list(found) or None)

    def repetitions(self, entries: Iterable[Entry]) -> list[Repeated]:
        """Return the steps that were done and that the code leaves out, each with the one that seems to repeat it.

        Two steps that were done are such a pair if one noted, when it began in this attempt or an earlier one, that it
        may repeat the other, and if the code of this attempt asks for one of them only. `bill[5]` began while
        `charge[5]` was done and not asked for; now the code

            asks for bill[5] only                  a pair: charge[5] is left out, and bill[5] repeats it
            asks for charge[5] only                a pair: bill[5] is left out (the deploy was taken back)
            asks for both, or for neither          no pair: these are two steps, or the code asks for less
            asks for bill[5], and for charge[6]    no pair: `charge` was not renamed, the code still asks for others

        The last line is about different names: of one name, as `charge[5]` and `charge[6]`, they are a pair even so.
        """
        done = {each.id: each for each in entries if each.status == EntryStatus.DONE}
        pairs = [(done[id], later) for later in done.values() for id in later.instead_of or () if id in done]
        found = []
        for old, later in pairs:
            if old.visited == later.visited:
                continue
            left_out, other = (old, later) if later.visited else (later, old)  # a deploy was taken back
            if name_of(left_out.key) == name_of(other.key) or name_of(left_out.key) not in self.names_asked:
                found.append(Repeated(left_out.id, left_out.key, left_out.lease_token, other.key, other.lease_token))
        return found

    @cached_property
    def _not_asked_for(self) -> dict[tuple[Any, ...], list[Entry]]:
        """What may have happened, by trait, without what had been asked for when the first new step began."""
        found: dict[tuple[Any, ...], list[Entry]] = {}
        for entry in self._left_out():
            if entry.status in _MAY_HAVE_HAPPENED and entry.kind not in NOT_EFFECTS:
                for trait in _traits(entry.key, entry.kind, entry.args_hash, with_key=not is_keyed(entry.key)):
                    found.setdefault(trait, []).append(entry)
        return found

    def _left_out(self) -> list[Entry]:
        return [entry for entry in self._recorded if not entry.visited]

    def _next_of_main_flow(self) -> Entry | None:
        while self._next < len(self._main) and self._main[self._next].visited:
            self._next += 1
        return self._main[self._next] if self._next < len(self._main) else None


def _compare(entry: Entry, wanted: Wanted, *, match_args: bool) -> None:
    """Raise `Mismatch` where the entry is of another kind, or has other arguments."""
    key = repr(entry.key) if entry.key == wanted.key else f"{entry.key!r}, which is {wanted.key!r} now,"
    if entry.kind != wanted.kind:
        raise Mismatch(entry, wanted, f"{key} was recorded as {entry.kind}, and the code asks for {wanted.kind}")
    if match_args and entry.args_hash != wanted.args_hash:
        raise Mismatch(entry, wanted, f"{key} was recorded with other arguments")


def _calls_the_same(entry: Entry, wanted: Wanted, *, match_args: bool) -> bool:
    """Tell whether a step of another name has the same kind, function and arguments."""
    same = (entry.kind, entry.function) == (wanted.kind, wanted.function)
    return same and (not match_args or entry.args_hash == wanted.args_hash)


def _asked_twice(entry: Entry, wanted: Wanted) -> Mismatch:
    """Return what to raise where the code asks for an entry by its own name and, as `wanted`, by another one."""
    return Mismatch(
        entry,
        wanted,
        f"somebody has said that {wanted.key!r} is what was recorded as {entry.key!r}, and the code asks for both",
    )


def _traits(key: str, kind: str, args_hash: str | None, *, with_key: bool) -> list[tuple[Any, ...]]:
    """Return the traits of a step: two that share one look alike, see `Replay.note_what_it_may_repeat`.

    `with_key` says whether the later of the two has a key: the first trait is for a key that was added or dropped.
    """
    traits: list[tuple[Any, ...]] = [("name", name_of(key), with_key)]
    if args_hash is not None:
        traits += [("name", name_of(key), args_hash), ("kind", kind, args_hash)]
    if is_keyed(key):
        traits.append(("kind", kind, own_key(key)))
    return traits
