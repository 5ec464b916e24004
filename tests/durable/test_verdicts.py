"""What a human has said of a step that looks like one under another name, and what follows from it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from gnlqueue import AlreadyResolved, FailJob, GoOn, Happened, JobContext, NotHappened, UseRecorded, queue, resolve
from gnlqueue.durable.resolving import in_doubt
from gnlqueue.models import Job, JobStatus
from tests.durable.conftest import Ledger, attempt, crashing, doing, entries, entry, now_do, on_sqlite, renamed

Play = Callable[..., Job]
Handler = Callable[[JobContext], Any]
Paying = Callable[..., Handler]
BY = {"by": "ada", "reason": "looked at the code"}


@on_sqlite
def test_the_record_is_used_for_all_keys_of_the_name(play: Play, ledger: Ledger, paying: Paying) -> None:
    job = play(crashing(paying("charge", *range(30))))
    attempt(job)
    now_do(paying("bill", *range(40)))
    attempt(job)
    (question,) = in_doubt()
    resolve(question, UseRecorded(), **BY)
    assert attempt(job).result == list(range(40))
    assert len(ledger) == 40
    assert {each.key for each in entries(job)} == {
        *(f"charge[{number}]" for number in range(30)),
        *(f"bill[{number}]" for number in range(30, 40)),
    }


@on_sqlite
def test_the_record_of_a_name_that_only_some_steps_lost_is_used_for_these(
    play: Play, ledger: Ledger, paying: Paying
) -> None:
    job = play(crashing(paying("charge", 5, 6)))
    attempt(job)
    now_do(lambda context: [*paying("bill", 5)(context), *paying("charge", 6)(context)])
    attempt(job)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    assert attempt(job).result == [5, 6]
    assert len(ledger) == 2


@on_sqlite
def test_the_record_is_used_in_each_attempt_until_the_job_ends(play: Play, ledger: Ledger, paying: Paying) -> None:
    job = play(crashing(paying("charge", 5, 6)))
    attempt(job)
    now_do(crashing(paying("bill", 5)))
    attempt(job)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    attempt(job)
    now_do(paying("bill", 5, 6))
    assert attempt(job).result == [5, 6]
    assert len(ledger) == 2


@on_sqlite
def test_the_record_is_used_also_once_the_function_has_another_name(play: Play, ledger: Ledger, paying: Paying) -> None:
    def bill(number: int) -> int:
        ledger.add()
        return number

    job = play(crashing(paying("charge", 5)))
    attempt(job)
    now_do(crashing(paying("bill", 5)))
    attempt(job)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    attempt(job)
    now_do(lambda context: context.using(key="5").step("bill", bill, 5))
    assert attempt(job).result == 5
    assert len(ledger) == 1


@on_sqlite
def test_the_record_is_used_also_after_a_step_that_kept_the_old_name(
    play: Play, ledger: Ledger, paying: Paying
) -> None:
    """As in branches, of which another one may come first in the next attempt."""
    job = play(crashing(paying("charge", 5, 6)))
    attempt(job)
    now_do(lambda context: [*paying("bill", 5)(context), *paying("charge", 6)(context)])
    attempt(job)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    now_do(lambda context: [*paying("charge", 6)(context), *paying("bill", 5)(context)])
    assert attempt(job).result == [6, 5]
    assert len(ledger) == 2


@on_sqlite
def test_one_record_is_used_for_one_step(play: Play, ledger: Ledger, paying: Paying) -> None:
    job = play(crashing(lambda context: [*paying("mail", 5)(context), *paying("mail shop", 5)(context)]))
    attempt(job)
    now_do(lambda context: [*paying("tell", 5)(context), *paying("tell shop", 5)(context)])
    for asked in ("mail[5]", "mail shop[5]"):
        assert f"looks like '{asked}'" in (attempt(job).last_error or "")
        resolve(entry(job, asked), UseRecorded(), **BY)
    assert attempt(job).result == [5, 5]
    assert len(ledger) == 2


@on_sqlite
def test_what_is_another_step_runs_once_somebody_has_said_so(play: Play, paying: Paying) -> None:
    job = renamed(play, paying, 5, 6, to="tell")
    resolve(entry(job, "charge[5]"), NotHappened(), **BY)
    assert attempt(job).status == JobStatus.DONE
    assert {each.key for each in entries(job)} == {"charge[5]", "charge[6]", "tell[5]", "tell[6]"}


@on_sqlite
def test_what_somebody_has_said_is_read_once(alias: str, play: Play, paying: Paying) -> None:
    job = play(crashing(paying("charge", *range(20))))
    attempt(job)
    now_do(paying("tell", *range(20)))
    attempt(job)
    resolve(entry(job, "charge[0]"), NotHappened(), **BY)
    with CaptureQueriesContext(connections[alias]) as queries:
        assert attempt(job).status == JobStatus.DONE
    reads = [each["sql"] for each in queries if each["sql"].startswith("SELECT") and "stepnote" in each["sql"]]
    assert len(reads) == 1, reads


@on_sqlite
def test_an_answer_that_does_not_fit_is_refused_with_those_that_do(play: Play, paying: Paying) -> None:
    job = renamed(play, paying, 5)
    with pytest.raises(ValueError, match=r"GoOn\(\).* or UseRecorded\(\).* or NotHappened\(\).* or FailJob"):
        resolve(entry(job, "charge[5]"), Happened(5), **BY)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    with pytest.raises(AlreadyResolved, match=r"resolved by ada .*UseRecorded\(\)"):
        resolve(entry(job, "charge[5]"), NotHappened(), **BY)


# --- code that does not fit what was said ----------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize("kind", ["step", "idempotent_step"])
def test_the_same_step_with_other_arguments_does_not_run(play: Play, ledger: Ledger, paying: Paying, kind: str) -> None:
    job = renamed(play, paying, 5)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    now_do(lambda context: getattr(context.using(key="5"), kind)("bill", ledger.add, "of another size"))
    said = attempt(job).last_error or ""
    assert "'charge[5]', which is 'bill[5]' now, was recorded" in said
    assert len(ledger) == 1
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    assert attempt(job).result == 5
    assert len(ledger) == 1


@on_sqlite
@pytest.mark.parametrize("names", [("charge", "bill"), ("bill", "charge")], ids=["the old first", "the new first"])
@pytest.mark.parametrize("answer", [GoOn(), NotHappened()], ids=["put right", "two steps after all"])
def test_code_that_asks_for_the_old_name_too_gets_the_record_once(
    play: Play, ledger: Ledger, paying: Paying, names: tuple[str, str], answer: Any
) -> None:
    job = renamed(play, paying, 5)
    resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    now_do(lambda context: [paying(name, 5)(context) for name in names])
    said = attempt(job).last_error or ""
    assert "somebody has said that 'bill[5]' is what was recorded as 'charge[5]', and the code asks for both" in said
    assert len(ledger) == 1
    with pytest.raises(ValueError, match="Somebody has already said"):
        resolve(entry(job, "charge[5]"), UseRecorded(), **BY)
    resolve(entry(job, "charge[5]"), answer, **BY)
    if answer == GoOn():
        now_do(paying("bill", 5))
    assert attempt(job).status == JobStatus.DONE
    assert len(ledger) == (1 if answer == GoOn() else 2)


# --- what was repeated, and seen only when the handler had returned --------------------------------------------------


def repeated(play: Play, ledger: Ledger) -> Job:
    """A job that did 'charge[5]' and 'charge[6]', and is blocked: it did 'bill[5]' instead."""
    job = play(crashing(doing(ledger, "charge", 5, 6)))
    attempt(job)
    now_do(doing(ledger, "bill", 5))
    assert "'charge[5]' (it did 'bill[5]' instead)" in (attempt(job).last_error or "")
    return job


@on_sqlite
@pytest.mark.parametrize("ended_by", ["fail the job", "cancel"])
def test_what_nobody_has_accepted_is_asked_about_again(play: Play, ledger: Ledger, ended_by: str) -> None:
    job = repeated(play, ledger)
    if ended_by == "cancel":
        queue.cancel(job)
    else:
        resolve(entry(job, "charge[5]"), FailJob(), **BY)
    queue.retry(job)
    assert "'charge[5]' (it did 'bill[5]' instead)" in (attempt(job).last_error or "")
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    assert attempt(job).result == [5]
    assert len(ledger) == 3


@on_sqlite
def test_what_is_repeated_after_the_answer_is_asked_about_again(play: Play, ledger: Ledger) -> None:
    job = repeated(play, ledger)
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    now_do(doing(ledger, "bill", 5, 6))
    said = attempt(job).last_error or ""
    assert "'charge[6]' (it did 'bill[6]' instead)" in said
    assert "'bill[5]'" not in said


@on_sqlite
def test_an_answer_stays_when_there_is_another_one_about_the_same_names(play: Play, ledger: Ledger) -> None:
    """What the wrong code did before the first question has been looked at, too."""
    job = repeated(play, ledger)
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    now_do(doing(ledger, "bill", 5, 6))
    assert attempt(job).blocked_reason == "mismatch"
    resolve(entry(job, "charge[6]"), GoOn(), **BY)
    now_do(lambda context: [*doing(ledger, "charge", 5, 6)(context), *doing(ledger, "ship", 5)(context)])
    assert attempt(job).result == [5, 6, 5]


@on_sqlite
def test_what_was_done_instead_and_accepted_is_asked_about_when_it_is_repeated_itself(
    play: Play, ledger: Ledger
) -> None:
    """The code was not put right: it goes on under a third name."""
    job = play(crashing(doing(ledger, "charge", 5)))
    attempt(job)
    now_do(doing(ledger, "bill", 5, 7))
    assert attempt(job).blocked_reason == "mismatch"
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    now_do(doing(ledger, "invoice", 7))
    assert "'bill[7]' (it did 'invoice[7]' instead)" in (attempt(job).last_error or "")


@on_sqlite
def test_code_that_was_put_right_may_leave_out_what_the_wrong_one_did_before_the_question(
    play: Play, ledger: Ledger
) -> None:
    """The wrong code did it in an attempt that crashed, and was asked about it in the next."""
    job = play(crashing(doing(ledger, "charge", 5)), max_attempts=3)
    attempt(job)
    now_do(crashing(doing(ledger, "bill", 5)))
    attempt(job)
    now_do(doing(ledger, "bill", 5))
    assert attempt(job).blocked_reason == "mismatch"
    resolve(entry(job, "charge[5]"), GoOn(), **BY)
    now_do(lambda context: [*doing(ledger, "charge", 5)(context), *doing(ledger, "ship", 5)(context)])
    assert attempt(job).result == [5, 5]


@on_sqlite
def test_a_question_is_about_as_many_names_as_a_note_has_room_for(play: Play, ledger: Ledger) -> None:
    names = [f"{'long ' * 36}{number}" for number in range(45)]
    job = play(crashing(lambda context: [doing(ledger, f"charge {name}", 5)(context) for name in names]))
    attempt(job)
    now_do(lambda context: [doing(ledger, f"bill {name}", 5)(context) for name in names])
    rounds = 0
    while attempt(job).status == JobStatus.BLOCKED:
        rounds += 1
        (first,) = in_doubt()
        resolve(first, GoOn(), **BY)
    assert rounds > 2
