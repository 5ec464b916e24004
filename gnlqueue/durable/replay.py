"""Whether the code asks for what the journal holds.

The code of a run must ask for the same steps in the same order on every attempt. Steps of its main flow are compared
by position: the next one must be the next that was recorded. Steps in threads and asyncio tasks finish in any order;
they carry an explicit key, and are found by it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from gnlqueue.durable.entries import Entry, Wanted
from gnlqueue.durable.keys import is_keyed, keyed, name_of, own_key, repeated
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
        recorded = sorted(entries, key=lambda entry: (entry.position, entry.id))
        self._keyed = {entry.key: entry for entry in recorded if is_keyed(entry.key)}
        self._main = [entry for entry in recorded if not is_keyed(entry.key)]
        self._next = 0
        self._names: Counter[str] = Counter()
        self._keys_used: set[str] = set()
        self._new: list[Wanted] = []
        self._asked: set[str] = set()  # names
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
        self._asked.add(name_of(key))
        if entry is None:
            self._new.append(wanted)
            return None
        if entry.key != key:
            raise Mismatch(entry, wanted, f"the step {entry.key!r} was recorded here, and the code asks for {key!r}")
        if entry.kind != wanted.kind:
            raise Mismatch(entry, wanted, f"{key!r} was recorded as {entry.kind}, and the code asks for {wanted.kind}")
        if match_args and entry.args_hash != wanted.args_hash:
            raise Mismatch(entry, wanted, f"{key!r} was recorded with other arguments")
        entry.visited = True
        return entry

    def under_other_names(self, wanted: Wanted, *, match_args: bool) -> list[Entry]:
        """Return what a new step with a key may have been under another name: of the same key, kind and arguments.

        The code has not asked for them so far.
        """
        if not is_keyed(wanted.key):
            return []
        return [
            entry
            for entry in self._by_own_key.get(own_key(wanted.key), ())
            if not entry.visited
            and entry.kind == wanted.kind
            and (not match_args or entry.args_hash == wanted.args_hash)
        ]

    def looks_renamed(self, entry: Entry, wanted: Wanted, *, main_flow: bool) -> bool:
        """Tell whether a new step seems to be this entry, of which it has the key, kind and arguments.

        It has the same function, and the code has asked for no step of the old name in this attempt. Outside of the
        main flow the old one may yet be asked for, by another branch: there a lambda, which has no name of its own,
        proves too little.
        """
        if wanted.function is None or (not main_flow and "<lambda>" in wanted.function):
            return False
        return entry.function == wanted.function and name_of(entry.key) not in self._asked

    def take(self, entry: Entry, wanted: Wanted) -> None:
        """Have the step that was found to be new, or not to have happened, be this one, under another name."""
        entry.visited = True
        if self._new and self._new[-1] is wanted:
            self._new.pop()

    def left_open(self) -> list[Entry]:
        """Return the steps that were caught in the middle, and that the code has not asked for."""
        unknown = {EntryStatus.STARTED, EntryStatus.IN_DOUBT}
        return [entry for entry in self._left_out() if entry.status in unknown]

    def renamed(self) -> list[tuple[Entry, str]]:
        """Return the steps that were done and left out, each with a new one that seems to repeat it, of every name.

        A new step repeats an old one of the same name if it has the same arguments under another key, or if only one of
        the two has a key. If the code asks for no step of the old name any more, a new one of the same kind with the
        same key or arguments repeats it. Code that asks for less, or for other things, does nothing twice.
        """
        new: dict[tuple[Any, ...], dict[str, str]] = {}  # by trait and name
        for each in self._new:
            for trait in _traits(each.key, each.kind, each.args_hash, keyed=is_keyed(each.key)):
                new.setdefault(trait, {})[name_of(each.key)] = each.key
        found = []
        for entry in self._left_out():
            if entry.status != EntryStatus.DONE or entry.kind in NOT_EFFECTS:
                continue
            traits = _traits(entry.key, entry.kind, entry.args_hash, keyed=not is_keyed(entry.key))
            if name_of(entry.key) in self._asked:
                traits = [trait for trait in traits if trait[0] == "name"]
            again = {key: None for trait in traits for key in new.get(trait, {}).values()}
            found += [(entry, key) for key in again]
        return found

    def _left_out(self) -> list[Entry]:
        return [entry for entry in (*self._main, *self._keyed.values()) if not entry.visited]

    def _next_of_main_flow(self) -> Entry | None:
        while self._next < len(self._main) and self._main[self._next].visited:
            self._next += 1
        return self._main[self._next] if self._next < len(self._main) else None


def _traits(key: str, kind: str, args_hash: str | None, *, keyed: bool) -> list[tuple[Any, ...]]:
    """Return by what two steps are taken for the same; `keyed` is whether the new one has a key."""
    traits: list[tuple[Any, ...]] = [("name", name_of(key), keyed)]
    if args_hash is not None:
        traits += [("name", name_of(key), args_hash), ("kind", kind, args_hash)]
    if is_keyed(key):
        traits.append(("kind", kind, own_key(key)))
    return traits
