"""The shop's side of the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from rangefilter.filters import DateRangeFilterBuilder

from shop.models import Invoice, Order, OrderLine, Product
from shop.tasks import stock_report


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ["sku", "name", "price", "stock"]
    search_fields = ["sku", "name"]
    actions = ["write_stock_report"]

    @admin.action(description="Write the stock report (of all products)")
    def write_stock_report(self, request: HttpRequest, queryset: QuerySet[Product]) -> None:
        job = stock_report.enqueue()
        messages.success(request, f"Job {job.pk} writes var/reports/stock.csv as soon as a worker is free.")


class MadeElsewhere:
    """For rows that only the shop's own code makes: an order without its jobs would be one without a receipt."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False


class OrderLineInline(MadeElsewhere, admin.TabularInline):
    model = OrderLine
    fields = readonly_fields = ["product", "quantity", "total"]
    can_delete = False


@admin.register(Order)
class OrderAdmin(MadeElsewhere, admin.ModelAdmin):
    list_display = ["__str__", "customer", "email", "status", "total", "charge_id", "placed_at"]
    list_filter = ["status", ("placed_at", DateRangeFilterBuilder())]
    search_fields = ["customer", "email"]
    readonly_fields = ["card", "status", "placed_at", "charge_id", "receipt_sent_at", "total"]
    fields = ["customer", "email", *readonly_fields]
    inlines = [OrderLineInline]


@admin.register(Invoice)
class InvoiceAdmin(MadeElsewhere, admin.ModelAdmin):
    list_display = ["number", "order", "issued_at"]
    search_fields = ["number"]
    readonly_fields = ["number", "order", "issued_at"]
