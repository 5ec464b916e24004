"""dj-queue's task."""

from django.tasks import task
from noops.marks import mark


@task()
def noop(number: int) -> None:
    mark(number)
