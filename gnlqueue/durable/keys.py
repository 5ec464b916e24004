"""How the key of a step is made: of its name, of how often that came before, and of the caller's own key."""

from __future__ import annotations

import hashlib


def keyed(name: str, own: str) -> str:
    """Return the key of a step that has a key of its caller's own, by which alone it is found."""
    return f"{name}[{own}]"


def repeated(name: str, times: int) -> str:
    """Return the key of a step without one of its own, which the main flow has asked for so many times."""
    return name if times == 1 else f"{name}#{times}"


def name_of(key: str) -> str:
    """Return the name that a step was called by."""
    return key.partition("[")[0].partition("#")[0]


def is_keyed(key: str) -> bool:
    """Tell whether a step is found by a key of its caller's own."""
    return key.endswith("]")


def own_key(key: str) -> str:
    """Return the caller's own key of a step that has one."""
    return key[key.index("[") + 1 : -1]


def is_renaming(old: str, new: str) -> bool:
    """Tell whether two keys are of steps that are found by their callers' keys, under different names."""
    return is_keyed(old) and is_keyed(new) and name_of(old) != name_of(new)


def key_hash(run_id: str, key: str) -> str:
    """Return what is unique for a step: the SHA-256 of its run's id and its key."""
    return hashlib.sha256(f"{len(run_id)}:{run_id}{key}".encode()).hexdigest()
