"""Values as files, for whoever may see them: all that a job carries, or another value of the queue's."""

from __future__ import annotations

import json
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse

from gnlqueue.admin.base import may
from gnlqueue.models import Job
from gnlqueue.queue.transactions import alias_of
from gnlqueue.redaction import masked, redacted


def download(request: HttpRequest, job_id: int) -> HttpResponse:
    """Return everything that the job carries as one JSON file; for others there is no such page."""
    rows = Job.objects.using(alias_of(None)).only("task_name", "args", "kwargs", "progress", "result", "last_error")
    job = rows.filter(pk=job_id).first() if may(request, "view_job_payload") else None
    if job is None:
        raise Http404
    args, kwargs = redacted(job)
    content = {
        "job": job.pk,
        "task": job.task_name,
        "args": args,
        "kwargs": kwargs,
        "progress": masked(job.progress),
        "result": masked(job.result),
        "last_error": job.last_error,
    }
    return as_file(content, f"job-{job.pk}.json")


def as_file(content: Any, name: str) -> HttpResponse:
    """Return a value as a JSON file, which browsers download and never show."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return HttpResponse(text, content_type="application/json", headers=headers)
