"""Durable runs: a journal of named steps, so that a run that crashed half-way goes on where it was.

What is recorded as done never runs again; where nobody knows whether a step happened, the run stops and asks. See
`docs/durable-runs.md` for which kind of step is for which effect. The *handler* is the code that asks for the steps:
the task's function.

============  =====================================================================================================
module        its job
============  =====================================================================================================
keys          how the key of a step is made, and what can be read from it
verdicts      what humans have said of steps that look like others under another name or key
fences        who may write into a journal: the holder of the job's lease, or of the run lock
entries       the journal: read once, written under the fence
replay        whether the code asks for what the journal holds
effects       the key that names a step's effect for ever
options       what `context.using()` says about a step
protocol      what a step asks of its driver: a generator, run by a thread or by an event loop
base          what the kinds of step share: trying again, storing what came of it
statements    what an `atomic_step` may not ask the database for
atomic        the transaction of an `atomic_step`
kinds         the three kinds of step, and what each outcome means for them
moments       the times that a run records: the end of a `sleep`, and what `now` said
lineage       which failures have reached an asyncio task from those that it began, and from threads that it awaits
failures      which failures the handler has caught, so that every replay raises them again
open_steps    which steps are open, so that an attempt does not end before them
blocking      what blocks a run because its code and its journal do not fit
steps         the steps as a handler calls them
run           `Run`: one durable execution
context       `JobContext`: the run of a job
locks         `run_lock`, `durable_run`: runs outside a job
resolving     a human's answer
============  =====================================================================================================
"""
