"""The decisions that wait for a human, and what a human who looks will find."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import gnlqueue
from gnlqueue import queue
from gnlqueue.models import EntryStatus, Job, RunJournalEntry
from shop.demo import evidence
from shop.demo.screen import Screen, counted
from shop.mails import receipt_id, regrets_id
from shop.models import Order, euros

PATIENCE = 20.0  # seconds to wait for a job that goes on
ENDED = (Job.Status.DONE, Job.Status.DEAD, Job.Status.CANCELLED, Job.Status.BLOCKED)


@dataclass(frozen=True)
class Doubt:
    """A step of which the queue does not know whether it happened."""

    entry: RunJournalEntry
    order: Order
    story: str  #: why the queue does not know
    trace: str  #: what to look for, in the ledger or in the mail
    found: str  #: what a human finds; empty if there is nothing
    result: Any = None  #: what the step returns if it happened

    @classmethod
    def all(cls) -> list[Doubt]:
        """Return those that wait; first the charges, then the mails."""
        blocked = {job.run_id: job for job in Job.objects.with_status(Job.Status.BLOCKED)}
        entries = RunJournalEntry.objects.filter(run_id__in=blocked, status=EntryStatus.IN_DOUBT).order_by("id")
        doubts = [_look(entry, Order.objects.get(pk=blocked[entry.run_id].args[0])) for entry in entries]
        return sorted(doubts, key=lambda doubt: doubt.entry.key != "charge card")

    @property
    def is_about_money(self) -> bool:
        """Whether it is the charge; the others are mails."""
        return self.entry.key == "charge card"

    @property
    def evidence(self) -> str:
        """What a human who looks finds, as a sentence."""
        if self.is_about_money:
            return f"the ledger now has {self.found or 'no trace of it'}"
        return f"the mail directory has {self.found or 'no trace of it'}"

    def suggestion(self) -> list[str]:
        """Return the words for `manage.py gnlqueue` that the evidence suggests."""
        said = ["--happened", json.dumps(self.result)] if self.found else ["--not-happened"]
        return ["resolve", str(self.entry.pk), *said, "--reason", "found there" if self.found else "not found there"]


def ask(screen: Screen) -> None:
    """Let the reader decide about what waits, one after the other, and show what each job makes of it."""
    doubts = Doubt.all()
    screen.plain(f"{counted(len(doubts), 'decision')} for you.")
    for doubt in doubts:
        began = f"{doubt.entry.key!r} of {doubt.order.number}, begun at {doubt.entry.started_at:%H:%M:%S} UTC"
        screen.say("in doubt", began, style="WARNING")
        screen.say("", doubt.story)
        screen.say("", doubt.evidence)
        if doubt.is_about_money and not doubt.found:  # the checkout would need the id of a charge
            said = screen.ask("it did [n]ot happen, or Enter to decide later:", ("n", ""))
        else:
            said = screen.ask("it [h]appened, did [n]ot happen, or Enter to decide later:", ("h", "n", ""))
        if said is None:
            return
        if said:
            answer = gnlqueue.Happened(doubt.result) if said == "h" else gnlqueue.NotHappened()
            gnlqueue.resolve(doubt.entry, answer, by="the reader of the demo", reason=doubt.evidence)
            screen.say("resolved", _outcome(doubt), style="SUCCESS")
            if (said == "h") != bool(doubt.found):
                screen.say("", "(decided against the evidence, which no queue would do by itself)")


def _look(entry: RunJournalEntry, order: Order) -> Doubt:
    """Look where a human would."""
    if entry.key == "charge card":
        records = [record for record in evidence.ledger().of(order.number) if record["outcome"] == "charged"]
        found = " and ".join(f"{euros(record['cents'])}, charged at {record['at'][11:19]}" for record in records)
        story = f"when it was looked for, at {entry.finished_at:%H:%M:%S}, the ledger had no trace of it"
        return Doubt(entry, order, story, order.number, found, records[0]["id"] if records else None)
    message_id = receipt_id(order.pk) if entry.key == "send receipt" else regrets_id(order.pk)
    found = message_id if evidence.mails()[message_id] else ""
    return Doubt(entry, order, "no mail server can be asked whether it accepted a mail", message_id.strip("<>"), found)


def _outcome(doubt: Doubt) -> str:
    """Wait until the job has gone on to its end, and say what that is."""
    job_id = int(doubt.entry.run_id.removeprefix("job:"))
    deadline = time.monotonic() + PATIENCE
    while (job := queue.get(job_id)).status not in ENDED and time.monotonic() < deadline:
        time.sleep(0.1)
    order = Order.objects.get(pk=doubt.order.pk)
    charges = counted(evidence.charges()[order.number], "charge")
    receipts = counted(evidence.mails()[receipt_id(order.pk)], "receipt")
    return f"{order.number} is {order.status}, its job {job.status}: {charges}, {receipts}"
