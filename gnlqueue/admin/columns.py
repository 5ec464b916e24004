"""What the lists show of each job, and what they do not read: arguments, results, whole error texts."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet, Value
from django.db.models.functions import Left, Length
from django.forms import Media
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from gnlqueue.admin.base import QueuePage, may
from gnlqueue.admin.errors import HIDDEN, in_short
from gnlqueue.models import Job
from gnlqueue.templatetags.gnlqueue_admin import ago, beginning, breakable, cut, number, status_badge, visible

LONGEST_ERROR = 120  # characters of an error in the list
LONGEST_NAME = 80

#: What the lists of jobs, and the pages that ask, load as well.
LISTS = Media(css={"all": ["gnlqueue/jobs.css"]})


class JobColumns(QueuePage[Job]):
    """A page that lists jobs."""

    list_display: tuple[str, ...] = ("number", "task", "state", "queue", "created", "moment")
    list_display_links = ("number",)
    ordering = ("-id",)
    list_per_page = 50

    @property
    def media(self) -> Media:
        return super().media + LISTS

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        rows = super().get_queryset(request).defer("args", "kwargs", "result", "progress", "options", "last_error")
        start, size = Left("last_error", LONGEST_ERROR), Length("last_error")
        shows_texts = Value(may(request, "view_job_payload"))
        return rows.annotate(error_start=start, error_size=size, shows_texts=shows_texts)

    @admin.display(description=_("job"), ordering="id")
    def number(self, job: Job) -> str:
        return str(job.pk)

    @admin.display(description=_("task"))
    def task(self, job: Job) -> SafeString:
        name = format_html('<span class="gql-name">{}</span>', breakable(job.task_name))
        start, size = getattr(job, "error_start", None), getattr(job, "error_size", 0)
        if not start:
            return name
        if not getattr(job, "shows_texts", False):
            short = in_short(start, whole=False) or "…"
            return format_html('{}<span class="gql-error" title="{}">{}</span>', name, HIDDEN, breakable(short))
        return format_html('{}<span class="gql-error">{}</span>', name, beginning(start, size))

    @admin.display(description=_("status"))
    def state(self, job: Job) -> SafeString:
        return format_html("{}{}", status_badge(job.status), self.attempt(job))

    @admin.display(description=_("attempt"))
    def attempt(self, job: Job) -> SafeString | str:
        if not job.attempts:
            return ""
        most = job.max_attempts
        text = _("attempt %(n)s") if most is None else _("attempt %(n)s of %(most)s")
        values = {"n": number(job.attempts), "most": number(most)}
        return format_html('<span class="gql-small">{}</span>', text % values)

    @admin.display(description=_("queue"), ordering="queue_name")
    def queue(self, job: Job) -> SafeString:
        worker = cut(job.worker_id, LONGEST_NAME) if job.worker_id else ""
        return format_html('{}<span class="gql-small">{}</span>', visible(job.queue_name), worker)

    @admin.display(description=_("enqueued"))
    def created(self, job: Job) -> str:
        return ago(job.enqueued_at)

    @admin.display(description=_("due / finished"), ordering="run_at")
    def moment(self, job: Job) -> str:
        return ago(job.finished_at or job.run_at)
