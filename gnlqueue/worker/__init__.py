"""Running jobs: `Worker` is one process's claim loop, `Supervisor` keeps several of them alive.

In the order in which things happen:

====================  ==================================================================================
module                its job
====================  ==================================================================================
supervisor            `Supervisor`: start, watch, replace and end the processes
forking               run a function in a child process; restore signals in those that a task forks
heartbeat             renew leases; give back the jobs of a worker that died
losses                what the log says of jobs that were lost with their worker
table                 what a worker holds, in memory that its supervisor and heartbeat see
loop                  `Worker`: claim, start, wait, write
identity              a worker's id, its queues, and the row in which people see it
wakeup                be told of new jobs
maintenance           promote, rescue, count and prune, each at its pace
intake                how many jobs to claim, and from which queue
floors                where claims go on in a queue, for all workers of a supervisor
prefetch              how many to claim beyond the free slots
holdings              what the worker has claimed and not written yet; publishes it in the table
suspects              a job that crashed its worker twice in a row: it runs alone
pool                  where jobs run: threads, and the event loop
eventloop             the thread in which `async def` tasks run
executor              run one job and say what came of it
timeouts              stop an attempt that runs too long
connections           clean up what a job left behind in its thread's database connections
inbox                 what the loop waits for: outcomes, a wakeup, word to stop
pace                  when to look for jobs next
outbox                what is still to be written or given back, also while the database is away
outcomes              write what came of jobs, in groups
console               what people read
foreground            one job in the caller's own thread: `Worker.run_once`, `INLINE`
====================  ==================================================================================
"""

from gnlqueue.worker.loop import Worker

__all__ = ["Worker"]
