"""How the key of a step is made: from its name, how often that has come before, and the caller's own key.

    context.step("charge", pay, 5)                       # charge
    context.step("charge", pay, 6)                       # charge#2
    context.using(key="5").step("charge", pay, 5)        # charge[5]

The first two are found by their order in the main flow, the third by its key alone.
"""

from __future__ import annotations

import hashlib


def can_name(text: object) -> bool:
    """Tell whether this may name a run or a step, or be a caller's own key: 1 to 200 printable characters."""
    return isinstance(text, str) and 1 <= len(text) <= 200 and text.isprintable()


def keyed(name: str, own: str) -> str:
    """Return the key of a step to which its caller gave one, and which is found by that alone: `charge[5]`."""
    return f"{name}[{own}]"


def repeated(name: str, times: int) -> str:
    """Return the key of a step that the main flow asks for by its name alone: `charge`, the second time `charge#2`."""
    return name if times == 1 else f"{name}#{times}"


def name_of(key: str) -> str:
    """Return the name that a step was called by."""
    return key.partition("[")[0].partition("#")[0]


def is_keyed(key: str) -> bool:
    """Tell whether a step is found by a key that its caller gave it."""
    return key.endswith("]")


def own_key(key: str) -> str:
    """Return the key that its caller gave a step: `5` of `charge[5]`."""
    return key[key.index("[") + 1 : -1]


def is_renaming(old: str, new: str) -> bool:
    """Tell whether two keys are of keyed steps with different names: `charge[5]` and `bill[5]`."""
    return is_keyed(old) and is_keyed(new) and name_of(old) != name_of(new)


def key_hash(run_id: str, key: str) -> str:
    """Return what is unique to a step: the SHA-256 of its run's id and its key."""
    return hashlib.sha256(f"{len(run_id)}:{run_id}{key}".encode()).hexdigest()
