"""Whether the code asks for what the journal holds.

The code of a run must ask for the same steps in the same order on every attempt. Steps of its main flow are compared
by position: the next one must be the next that was recorded. Steps in threads and asyncio tasks finish in any order;
they carry an explicit key, and are found by it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from typing import Any

from gnlqueue.durable.entries import Entry, Wanted
from gnlqueue.durable.keys import is_keyed, keyed, name_of, own_key, repeated
from gnlqueue.durable.verdicts import Repeated
from gnlqueue.models import NOT_EFFECTS, EntryStatus

_UNKNOWN = {EntryStatus.STARTED, EntryStatus.IN_DOUBT}
_PERHAPS_HAPPENED = {EntryStatus.DONE, *_UNKNOWN}
MOST_REPEATED = 20  #: entries of one trait that a step may repeat


class Mismatch(Exception):
    """The code asks for something else than the journal holds at this place; `got` is what it asks for."""

    def __init__(self, entry: Entry, got: Wanted, what: str) -> None:
        self.entry = entry
        self.got = got
        super().__init__(what)


class Replay:
    """Finds the recorded entry for each step that the code asks for."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.names_asked: set[str] = set()  #: of the steps that the code has asked for in this attempt
        self._recorded = sorted(entries, key=lambda entry: (entry.position, entry.id))
        self._keyed = {entry.key: entry for entry in self._recorded if is_keyed(entry.key)}
        self._main = [entry for entry in self._recorded if not is_keyed(entry.key)]
        self._next = 0
        self._names: Counter[str] = Counter()
        self._keys_used: set[str] = set()
        self._taken: dict[str, Wanted] = {}  # what asked for an entry under another name, by the entry's key
        self._by_own_key: dict[str, list[Entry]] = {}
        for entry in self._keyed.values():
            self._by_own_key.setdefault(own_key(entry.key), []).append(entry)

    def key(self, name: str, own: str | None, *, main_flow: bool) -> str:
        """Return the key of the step that is asked for now: `name`, `name#2` when repeated, `name[own]` when keyed.

        Raises `ValueError` for a name that would be ambiguous, a key used twice, or a missing key outside of the main
        flow.
        """
        text = isinstance(name, str) and 1 <= len(name) <= 200 and name.isprintable()
        if not text or any(char in "#[]" for char in name):
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

    def find(self, wanted: Wanted, *, match_args: bool) -> Entry | None:
        """Return the recorded entry of a step, `None` where it is new.

        Raises `Mismatch` where another step, another kind or other arguments were recorded at this place.
        """
        key = wanted.key
        entry = self._keyed.get(key) if is_keyed(key) else self._next_of_main_flow()
        self.names_asked.add(name_of(key))
        if entry is None:
            return None
        if entry.key != key:
            raise Mismatch(entry, wanted, f"the step {entry.key!r} was recorded here, and the code asks for {key!r}")
        if (taken_by := self._taken.get(key)) is not None:
            raise _asked_twice(entry, taken_by)
        _compare(entry, wanted, match_args=match_args)
        entry.visited = True
        return entry

    def under_other_names(self, wanted: Wanted) -> list[Entry]:
        """Return what was recorded with the caller's own key of a step, under other names."""
        if not is_keyed(wanted.key):
            return []
        return [entry for entry in self._by_own_key.get(own_key(wanted.key), ()) if entry.key != wanted.key]

    def looks_renamed(self, entry: Entry, wanted: Wanted, *, match_args: bool, sure: bool) -> bool:
        """Tell whether a new step seems to be this entry, of which it has the key.

        It has the same kind, arguments and function, and the code has asked neither for this entry in this attempt, nor
        for any step of the old name. Outside of the main flow the old one may yet be asked for, by another branch;
        `sure` says whether the name of the function proves enough all the same.
        """
        if entry.visited or wanted.function is None or not sure:
            return False
        same = (entry.kind, entry.function) == (wanted.kind, wanted.function)
        same_args = not match_args or entry.args_hash == wanted.args_hash
        return same and same_args and name_of(entry.key) not in self.names_asked

    def take(self, entry: Entry, wanted: Wanted, *, match_args: bool) -> None:
        """Have the step that was found to be new, or not to have happened, be this one, under another name.

        Raises `Mismatch` where its kind or its arguments are others, or the code asks for it by the old name too.
        """
        if entry.visited:
            raise _asked_twice(entry, wanted)
        _compare(entry, wanted, match_args=match_args)
        entry.visited = True
        self._taken[entry.key] = wanted

    def left_in_doubt(self) -> list[Entry]:
        """Return the steps that were caught in the middle, and that the code has not asked for."""
        return [entry for entry in self._left_out() if entry.status in _UNKNOWN]

    def note_what_it_may_repeat(self, wanted: Wanted, tried: Entry | None) -> Wanted:
        """Return a step that is about to begin, with what it may repeat: what was done, and not asked for so far.

        It may repeat a step of the same name that has the same arguments under another key, or if only one of the two
        has a key; and any one of the same kind with the same key or arguments. `tried` is its own entry, where it has
        one that says that it did not happen: what was done before that, or beside it, it does not repeat.
        """
        found: dict[int, Entry] = {}
        for trait in _traits(wanted.key, wanted.kind, wanted.args_hash, keyed=is_keyed(wanted.key)):
            alike = self._not_asked_for.get(trait, [])
            if alike and alike[0].visited:  # in a loop the first are asked for first: no step looks at these again
                alike[:] = [each for each in alike if not each.visited]
            left_out = (each for each in alike if not each.visited)
            later = (each for each in left_out if tried is None or each.lease_token > tried.lease_token)
            found |= {each.id: each for each in islice(later, MOST_REPEATED)}
        if found and tried is not None:
            tried.instead_of = [*(tried.instead_of or []), *found]
        return wanted._replace(instead_of=list(found) or None)

    def repetitions(self, entries: Iterable[Entry]) -> list[Repeated]:
        """Return the steps that were done and left out, each with what seems to repeat it.

        Of two that look alike, the later one began while the code had not asked for the earlier one; and now, whatever
        attempt that was, the code asks for one of them and not for the other. If it asks for others of the name of that
        one, both must have this name. Code that asks for less, or for other things, does nothing twice.
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
        """What has perhaps happened, by trait, less what had been asked for when a step first began."""
        found: dict[tuple[Any, ...], list[Entry]] = {}
        for entry in self._left_out():
            if entry.status in _PERHAPS_HAPPENED and entry.kind not in NOT_EFFECTS:
                for trait in _traits(entry.key, entry.kind, entry.args_hash, keyed=not is_keyed(entry.key)):
                    found.setdefault(trait, []).append(entry)
        return found

    def _left_out(self) -> list[Entry]:
        return [entry for entry in self._recorded if not entry.visited]

    def _next_of_main_flow(self) -> Entry | None:
        while self._next < len(self._main) and self._main[self._next].visited:
            self._next += 1
        return self._main[self._next] if self._next < len(self._main) else None


def _compare(entry: Entry, wanted: Wanted, *, match_args: bool) -> None:
    """Raise `Mismatch` where a step is recorded as of another kind, or with other arguments."""
    key = repr(entry.key) if entry.key == wanted.key else f"{entry.key!r}, which is {wanted.key!r} now,"
    if entry.kind != wanted.kind:
        raise Mismatch(entry, wanted, f"{key} was recorded as {entry.kind}, and the code asks for {wanted.kind}")
    if match_args and entry.args_hash != wanted.args_hash:
        raise Mismatch(entry, wanted, f"{key} was recorded with other arguments")


def _asked_twice(entry: Entry, wanted: Wanted) -> Mismatch:
    """Return what there is to raise where the code asks for an entry by its own name and, in `wanted`, by another."""
    return Mismatch(
        entry,
        wanted,
        f"somebody has said that {wanted.key!r} is what was recorded as {entry.key!r}, and the code asks for both",
    )


def _traits(key: str, kind: str, args_hash: str | None, *, keyed: bool) -> list[tuple[Any, ...]]:
    """Return by what two steps are taken for the same; `keyed` is whether the new one has a key."""
    traits: list[tuple[Any, ...]] = [("name", name_of(key), keyed)]
    if args_hash is not None:
        traits += [("name", name_of(key), args_hash), ("kind", kind, args_hash)]
    if is_keyed(key):
        traits.append(("kind", kind, own_key(key)))
    return traits
