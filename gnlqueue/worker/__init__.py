"""Running jobs: `Worker` is one process's claim loop, `Supervisor` keeps several of them alive.

====================  ==================================================================================
module                its job
====================  ==================================================================================
table                 what a worker holds, in memory that its supervisor and heartbeat see
identity              a worker's id, its queues, and the row by which people see it
holdings              what is in that table, as the worker itself has it
intake                how many jobs to claim, and from which queue
pace                  how long to wait between two polls
executor              run one job and say what came of it
pool                  the threads and the event loop that jobs run on
timeouts              stop an attempt that runs too long
outcomes              write what came of jobs, in groups
heartbeat             renew leases; give back the jobs of a worker that died
maintenance           promote, rescue and prune, each at its pace
wakeup                be told of new jobs
loop                  `Worker`: claim, run, write, wait
supervisor            `Supervisor`: start, watch, replace and end the processes
console               what people read
====================  ==================================================================================
"""

from gnlqueue.worker.loop import Worker

__all__ = ["Worker"]
