"""The lease queue: every verb on a job, at one boundary.

To write a consumer of your own::

    from gnlqueue import queue

    while job := queue.claim("emails", worker_id="mine-1", lease=60):
        try:
            deliver(*job.args)
        except SMTPException as error:
            queue.fail(job, error)
        else:
            queue.complete(job)

`using=` is a database alias (without it `GNLQUEUE["DATABASE"]`, else the router's), `now=` an aware datetime (without
it the *database's* clock decides, never this machine's). The holder's verbs (complete, fail, extend, release, suspend,
block) take the `ClaimedJob` that a claim gave, on its database, and raise `LeaseLost` when it is not held any more.

============  =============================================================================
candidates    what is claimed next: the one definition
claiming      promote, rescue, claim
claimed       `ClaimedJob`, and the guard `held` that each of a holder's writes carries
leases        renew leases
progress      how far a job has come, as its holder says
transitions   every guarded UPDATE by which a job leaves `in_progress`
leaving       what those UPDATEs have in common
crashes       attempts that ended with their worker, and which job is to blame
attempts      how many, how far apart, and what is kept of a failed one
new_jobs      a job about to be inserted, checked
enqueueing    the one INSERT
operating     what people do from outside
pruning       deleting what finished long ago
reading       `stats`, `dead`
wakeups       telling idle workers that there is work
transactions  which alias, and trying again after a deadlock
============  =============================================================================
"""

from gnlqueue.queue.claimed import ClaimedJob
from gnlqueue.queue.claiming import claim, claim_many
from gnlqueue.queue.enqueueing import enqueue
from gnlqueue.queue.leases import extend
from gnlqueue.queue.operating import (
    EnqueuedAgain,
    cancel,
    enqueue_again,
    get,
    pause,
    reschedule,
    resume,
    retry,
    unblock,
)
from gnlqueue.queue.pruning import prune
from gnlqueue.queue.reading import dead, stats
from gnlqueue.queue.transitions import block, complete, fail, release, suspend

__all__ = [
    "ClaimedJob",
    "EnqueuedAgain",
    "block",
    "cancel",
    "claim",
    "claim_many",
    "complete",
    "dead",
    "enqueue",
    "enqueue_again",
    "extend",
    "fail",
    "get",
    "pause",
    "prune",
    "release",
    "reschedule",
    "resume",
    "retry",
    "stats",
    "suspend",
    "unblock",
]
