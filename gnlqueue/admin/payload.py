"""A job's arguments and result as a file, for whoever may see them."""

from __future__ import annotations

import json

from django.http import Http404, HttpRequest, HttpResponse

from gnlqueue.admin.base import may
from gnlqueue.models import Job
from gnlqueue.queue.transactions import alias_of
from gnlqueue.redaction import masked, redacted


def download(request: HttpRequest, job_id: int) -> HttpResponse:
    """Return everything that the job carries as one JSON file; to others there is no such page."""
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
    return HttpResponse(
        json.dumps(content, ensure_ascii=False, indent=2),
        content_type="application/json",
        headers={
            "Content-Disposition": f'attachment; filename="job-{job.pk}.json"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        },
    )
