"""The rows of the queue, their constraints and indexes. Nothing here writes: the verbs are in `gnlqueue.queue`.

Text that must be unique is unique by its SHA-256, because MariaDB's collations hold "receipt:ab", "receipt:AB" and
"receipt:ab " for one text. People are stored as text, so that a log survives the user's account.

=========  ==================================================================
runs       the journals of durable runs, and the locks on runs
jobs       jobs, and their attempts that failed
operation  for people: workers, queues, what finished, who did what
pages      jobs and steps that the admin shows on pages of their own
=========  ==================================================================
"""

from gnlqueue.models.jobs import FINISHED, WAITING, Job, JobAttempt, JobQuerySet, JobStatus, key_hash_of
from gnlqueue.models.operation import OperatorAction, QueueState, TaskMinute, WorkerProcess
from gnlqueue.models.pages import DeadJob, Overview, StepInDoubt
from gnlqueue.models.runs import (
    NOT_EFFECTS,
    OUTCOME_RECORDED,
    OUTCOME_UNKNOWN,
    RUN_OF_JOB,
    EntryStatus,
    RunJournalEntry,
    RunLock,
    StepKind,
    StepNote,
    run_id_of,
    run_id_of_outer_job,
)

__all__ = [
    "FINISHED",
    "NOT_EFFECTS",
    "OUTCOME_RECORDED",
    "OUTCOME_UNKNOWN",
    "RUN_OF_JOB",
    "WAITING",
    "DeadJob",
    "EntryStatus",
    "Job",
    "JobAttempt",
    "JobQuerySet",
    "JobStatus",
    "OperatorAction",
    "Overview",
    "QueueState",
    "RunJournalEntry",
    "RunLock",
    "StepInDoubt",
    "StepKind",
    "StepNote",
    "TaskMinute",
    "WorkerProcess",
    "key_hash_of",
    "run_id_of",
    "run_id_of_outer_job",
]
