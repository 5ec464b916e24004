"""The shop's pages."""

from __future__ import annotations

from datetime import timedelta

from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from gnlqueue.models import EntryStatus, Job, RunJournalEntry, WorkerProcess
from shop.forms import CheckoutForm
from shop.models import Invoice, Order, Product
from shop.orders import place_order

#: What may still change by itself: as long as a job is one of these, the order's page reloads.
UNFINISHED = (Job.Status.SCHEDULED, Job.Status.READY, Job.Status.IN_PROGRESS)


@require_safe
def storefront(request: HttpRequest) -> HttpResponse:
    """What there is to buy."""
    return _storefront(request, CheckoutForm(products=Product.objects.all()))


@require_POST
def checkout(request: HttpRequest) -> HttpResponse:
    """Place an order. The customer's page does not wait for banks and mail servers: that is what the job is for."""
    form = CheckoutForm(request.POST, products=Product.objects.all())
    if not form.is_valid():
        return _storefront(request, form)
    asked = form.cleaned_data
    return redirect(place_order(asked["customer"], asked["email"], form.quantities, asked["card"]))


@require_safe
def order_page(request: HttpRequest, reference: str) -> HttpResponse:
    """An order, and how far its jobs have got."""
    order = get_object_or_404(Order.objects.select_related("invoice"), reference=reference)
    jobs = list(order.jobs.prefetch_related("failed_attempts"))
    steps = RunJournalEntry.objects.filter(run_id__in=[job.run_id for job in jobs]).order_by("id")
    waiting = any(job.status in UNFINISHED for job in jobs)
    context = {
        "order": order,
        "lines": order.lines.select_related("product").order_by("pk"),
        "jobs": jobs,
        "steps": steps,
        "doubt": next((step for step in steps if step.status == EntryStatus.IN_DOUBT), None),
        "waiting": waiting,
        "no_worker": waiting and not _worker_is_there(),
    }
    return render(request, "shop/order.html", context)


@require_safe
def invoice(request: HttpRequest, reference: str) -> FileResponse:
    """The text of an order's invoice."""
    found = get_object_or_404(Invoice, order__reference=reference)
    try:
        return FileResponse(found.path.open("rb"), content_type="text/plain; charset=utf-8", filename=found.path.name)
    except FileNotFoundError:
        raise Http404(f"{found} is not stored here.") from None


def _storefront(request: HttpRequest, form: CheckoutForm) -> HttpResponse:
    return render(request, "shop/storefront.html", {"form": form}, status=422 if form.errors else 200)


def _worker_is_there() -> bool:
    recently = timezone.now() - timedelta(minutes=1)
    return WorkerProcess.objects.filter(heartbeat_at__gte=recently).exists()
