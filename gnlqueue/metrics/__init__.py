"""What finished, by the minute, for charts and percentiles: no decision is ever based on these numbers.

A worker counts in its memory, and has one row for each minute, queue and task, which it writes every few seconds. Later
the rows of all workers are merged into one, then those of a quarter of an hour, then those of an hour, so that a week
can be read quickly. What a worker counted since it last wrote is lost when it is killed.

==========  ==========================================================
histograms  how long things took, in few numbers
counting    counting in memory, writing in batches
merging     merging what has settled, deleting what is too old
==========  ==========================================================
"""
