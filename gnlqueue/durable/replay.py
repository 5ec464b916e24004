"""Whether the code asks for what the journal holds.

The code of a run must ask for the same steps in the same order on every attempt. Steps of its main flow are compared
by position: the next one must be the next that was recorded. Steps in threads and asyncio tasks finish in any order;
they carry an explicit key, and are found by it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any

from gnlqueue.durable.entries import Entry, Wanted
from gnlqueue.durable.keys import is_keyed, keyed, name_of, own_key, repeated
from gnlqueue.durable.verdicts import Repeated
from gnlqueue.models import NOT_EFFECTS, EntryStatus


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
        self._begun_by = {entry.key: entry.lease_token for entry in self._recorded}  # before this attempt
        self._keyed = {entry.key: entry for entry in self._recorded if is_keyed(entry.key)}
        self._main = [entry for entry in self._recorded if not is_keyed(entry.key)]
        self._next = 0
        self._names: Counter[str] = Counter()
        self._keys_used: set[str] = set()
        self._new: list[Wanted] = []
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
            raise ValueError(f"The step key {key!r} is used twice in one run; each needs one of its own.")
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
            self._new.append(wanted)
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
        if self._new and self._new[-1] is wanted:
            self._new.pop()

    def left_open(self) -> list[Entry]:
        """Return the steps that were caught in the middle, and that the code has not asked for."""
        unknown = {EntryStatus.STARTED, EntryStatus.IN_DOUBT}
        return [entry for entry in self._left_out() if entry.status in unknown]

    def renamed(self, token: int, done_now: Collection[str]) -> list[Repeated]:
        """Return the steps that were done and left out, each with a later one that seems to repeat it, of every name.

        A later step repeats an old one of the same name if it has the same arguments under another key, or if only one
        of the two has a key. If the code asks for no step of the old name any more, one of the same kind with the same
        key or arguments repeats it. Code that asks for less, or for other things, does nothing twice.

        Later is what this attempt did (`done_now` are the keys), of which this is the `token`, and what another one did
        after the attempt that did the old step, and had not begun this one: its code asked for both.
        """
        done = [each for each in self._left_out() if each.status == EntryStatus.DONE and each.kind not in NOT_EFFECTS]
        if not done:
            return []
        latest = self._latest(token, done_now)
        found = []
        for entry in done:
            traits = _traits(entry.key, entry.kind, entry.args_hash, keyed=not is_keyed(entry.key))
            if name_of(entry.key) in self.names_asked:
                traits = [trait for trait in traits if trait[0] == "name"]
            again = dict(each for trait in traits for each in latest.get(trait, {}).values())
            found += [
                Repeated(entry.id, entry.key, entry.lease_token, key, done_by)
                for key, done_by in again.items()
                if done_by > entry.lease_token and self._begun_by.get(key) != entry.lease_token
            ]
        return found

    def _latest(self, token: int, done_now: Collection[str]) -> dict[tuple[Any, ...], dict[str, tuple[str, int]]]:
        """Return what was done and asked for, by trait and name: the key that was done last, and by which attempt."""
        replayed = [each for each in self._recorded if each.visited and each.key not in done_now]
        asked: list[tuple[Entry | Wanted, int]] = [
            (each, each.lease_token) for each in replayed if each.status == EntryStatus.DONE
        ]
        asked.sort(key=itemgetter(1))
        begun: list[Entry | Wanted] = [*self._recorded, *self._new]
        asked += [(each, token) for each in begun if each.key in done_now]
        latest: dict[tuple[Any, ...], dict[str, tuple[str, int]]] = {}
        for each, done_by in asked:
            for trait in _traits(each.key, each.kind, each.args_hash, keyed=is_keyed(each.key)):
                latest.setdefault(trait, {})[name_of(each.key)] = each.key, done_by
        return latest

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
