"""Durable runs: a journal of named steps, so that a run that crashed half-way goes on where it was.

What is recorded as done never runs again; what may or may not have happened stops the run and asks. See
`docs/durable-runs.md` for which step is for which effect.

============  =====================================================================================================
module        its job
============  =====================================================================================================
fences        who may write into a journal: the holder of the job's lease, or of the run lock
entries       the journal: read once, written under the fence
replay        keys of steps, and whether the code asks for what the journal holds
atomic        the transaction of an `atomic_step`
protocol      what a step asks of its driver: a generator, run by a thread or by an event loop
base          what the kinds of step share: trying again, storing what came of it
kinds         the three kinds of step, and what each outcome means for them
steps         the steps as a handler calls them
run           `Run`: one durable execution
context       `JobContext`: the run of a job
locks         `run_lock`, `durable_run`: runs outside a job
resolving     a human's answer
============  =====================================================================================================
"""
