"""The queue in Django's admin: importing the pages registers them.

==============  ===========================================================================================
module          its job
==============  ===========================================================================================

pages: one URL each, or several
-----------------------------------------------------------------------------------------------------------
overview        whether all is well: what needs a person, how many jobs, how fast, and which workers
jobs            the list of all jobs, and the URLs of what belongs to one job
job_page        one job: why it isn't running, what happened, its steps
dead_letters    what died of what, by task and error, and the list of dead jobs
doubt           the steps that wait for a person, and the page on which one is decided
queues          every queue, and pausing and resuming it
workers         the worker processes, and what each works on
operator_log    who did what, to how many jobs, with which filter, and why
verb_page       a verb for one job: it asks, then does it
bulk_page       a verb for many jobs: it says what it will do, then does it, here or in the background
payload         a job's arguments and result as a file, and other values

what they build on
-----------------------------------------------------------------------------------------------------------
base            `QueuePage`: read-only, on the queue's database; permissions, the log's rows, capped counts

lists
-----------------------------------------------------------------------------------------------------------
changelist      pages by the key of the last row, of the rows that `gnlqueue.finding` finds
columns         what a list of jobs shows of each
filters         the filters beside the list
search          the search box

what they read
-----------------------------------------------------------------------------------------------------------
looks           many small questions to the database in one statement
facts           how the queues and their workers are now, and how many jobs have which status
queue_names     which queues there are, including those that nobody names
figures         what workers finished over a window of time
job_facts       what has to be known to say why a job isn't running
timeline        what happened to a job, in order of time
waiting         what is waiting for a person's decision, a page at a time
decisions       all about one step that is waiting, and the form in which a person decides
preview         what a verb would do to which jobs

in words
-----------------------------------------------------------------------------------------------------------
health          what needs a person, and why nothing is claimed from a queue
why             why a job isn't running, and what to do about it
words           what a filter looks for
errors          errors for readers who may not see arguments and results

drawing: numbers that templates turn into SVG
-----------------------------------------------------------------------------------------------------------
charts          the overview's charts
waterfall       a run's steps on one axis of time

doing
-----------------------------------------------------------------------------------------------------------
verbs           which verbs there are, who may use them, and in which statuses they apply
forms           what the verbs ask for
==============  ===========================================================================================
"""

from gnlqueue.admin import dead_letters, doubt, jobs, operator_log, overview, queues, workers

__all__ = ["dead_letters", "doubt", "jobs", "operator_log", "overview", "queues", "workers"]
