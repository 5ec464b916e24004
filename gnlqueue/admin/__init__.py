"""The queue in Django's admin: importing the pages registers them."""

from gnlqueue.admin import dead_letters, doubt, jobs, operator_log, overview, queues, workers

__all__ = ["dead_letters", "doubt", "jobs", "operator_log", "overview", "queues", "workers"]
