"""What blocks a run because its code and its journal do not fit: the question that a human is asked. See `replay`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NoReturn

from gnlqueue import payloads
from gnlqueue.conf import settings
from gnlqueue.durable.entries import Entry, Journal, Wanted
from gnlqueue.durable.replay import Mismatch, Replay
from gnlqueue.durable.verdicts import Repeated, question_about
from gnlqueue.exceptions import JobBlocked
from gnlqueue.models import OUTCOME_UNKNOWN, EntryStatus, StepNote

if TYPE_CHECKING:
    from gnlqueue.durable.run import Run

MOST_NAMED = 20  # steps that one message names


def on_mismatch(run: Run, journal: Journal, mismatch: Mismatch) -> NoReturn:
    """Stop where the code asks for something other than what was recorded at this place."""
    text = f"The code does not fit the journal of {run.run_id!r}: {mismatch}. {run.out_of_mismatch(mismatch.entry)}"
    _for_mismatch(run, journal, mismatch.entry.id, text, _encoded(mismatch.got))


def find_renamed(
    run: Run, journal: Journal, replay: Replay, new: Wanted, tried: Entry | None, *, match_args: bool, sure: bool
) -> Entry | None:
    """Return the entry of a step that is about to begin under a new name, `None` where it has none: it is a new step.

    Say `bill[5]` is about to begin, and `charge[5]` was recorded. If somebody has said that they are the same step,
    this is its entry; if somebody has said that they are not, it is passed over. If nobody has, and the one looks like
    the other, the run stops and asks. Where nobody knows whether `charge[5]` happened, that is asked first; where it is
    known not to have happened, and may be tried again, there is nothing to ask.

    `tried` is the step's own entry, if it has one, which says that it did not happen; `sure` is as in
    `Replay.looks_renamed`.

    Raises `Mismatch` where somebody has said that they are the same, but the kind or the arguments differ.
    """
    for old in replay.under_other_names(new):
        is_same = journal.verdicts.is_same(old.key, new.key)
        if is_same is None and not replay.looks_renamed(old, new, match_args=match_args, sure=sure):
            continue
        if is_same is False or old.not_happened:
            continue
        if tried is not None and not is_same and old.lease_token <= tried.lease_token:
            continue  # of the same attempt, or an earlier one: only what came later can have been done in its place
        if old.status in OUTCOME_UNKNOWN:
            on_left_in_doubt(run, journal, old)
        if is_same:
            replay.take(old, new, match_args=match_args)
            return old
        text = (
            f"The code of {run.run_id!r} asks for {new.key!r}, which is not done, and has not asked for {old.key!r} so "
            f"far. It looks like {old.key!r} under another name: that one is {old.status}, and has the same function "
            f"and arguments. {run.out_of_mismatch(old)} Or say that {new.key!r} is another step "
            "and has not happened; then it runs (--not-happened). The answer counts for all keys of that name."
        )
        _for_mismatch(run, journal, old.id, text, _encoded(new))
    return None


def on_left_in_doubt(run: Run, journal: Journal, entry: Entry) -> NoReturn:
    """Stop where the code has left out a step, and nobody knows whether that one happened."""
    if entry.status != EntryStatus.IN_DOUBT:
        run.write(lambda: journal.change(entry, EntryStatus.IN_DOUBT))
    text = (
        f"The code no longer asks for the step {entry.key!r} of {run.run_id!r}, and nobody knows whether it "
        f"happened. Find out, and say so: manage.py gnlqueue resolve {entry.id}."
    )
    run.stop(JobBlocked(text, "in_doubt"))


def on_repetitions(run: Run, journal: Journal, replay: Replay) -> None:
    """Stop where the code has left out steps that were done, and seems to have repeated them under other names or keys.

    Not for what a human has looked at and let be.
    """
    repetitions = replay.repetitions(journal.entries)
    pairs = [pair for pair in repetitions if not journal.verdicts.is_accepted(pair, replay.names_asked)]
    if not pairs:
        return
    asked: dict[int, Repeated] = {}
    for pair in pairs:
        asked.setdefault(pair.id, pair)
    first = pairs[0].id
    named = ", ".join(f"{each.old!r} (it did {each.new!r} instead)" for each in islice(asked.values(), MOST_NAMED))
    more = f", and {len(asked) - MOST_NAMED} more" if len(asked) > MOST_NAMED else ""
    text = (
        f"The code of {run.run_id!r} no longer asks for what was recorded: {named}{more}. Under another "
        "name or key this may have happened twice. Put the code right and go on, go on as it is, or fail the job: "
        f"manage.py gnlqueue resolve {first}."
    )
    _for_mismatch(run, journal, first, text, question_about(pairs))


def _encoded(wanted: Wanted) -> str:
    asked = wanted._asdict()
    del asked["instead_of"]  # the entry's own stays
    return payloads.encode(asked, "mismatch", limit=settings().MAX_PAYLOAD_BYTES)


def _for_mismatch(run: Run, journal: Journal, entry_id: int, text: str, asked: str) -> NoReturn:
    run.check_held()  # else the run is somebody else's, and so is the question
    journal.note(entry_id, StepNote.Kind.MISMATCH, f"token {run.fence.token}", text, asked)
    run.stop(JobBlocked(text, "mismatch"))
