"""A changelist that pages by the key of the last row, and reads a bounded number of rows for each page."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views import main
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from gnlqueue.admin import search
from gnlqueue.admin.base import CAP, CappedCount, may
from gnlqueue.admin.verbs import Verb, in_bulk
from gnlqueue.finding import Criteria, Page, Place, Plan, count_up_to, estimate, look, plans_for
from gnlqueue.models import JobStatus
from gnlqueue.queue.transactions import alias_of

if TYPE_CHECKING:
    from gnlqueue.admin.base import QueuePage
    from gnlqueue.admin.jobs import JobList

AFTER, BEFORE = "after", "before"

#: Which columns of a list show the order, by the first column of the plan's order.
SHOWN_BY = {
    "id": ("number",),
    "finished_at": ("finished", "moment"),
    "run_at": ("moment",),
    "queue_name": ("queue",),
}


class KeysetChangeList(main.ChangeList):
    """Rows of a plan, a page at a time. `after` and `before` in the URL say where the page begins."""

    model_admin: QueuePage[Any]
    page: Page
    plan: Plan

    def get_plan(self, request: HttpRequest) -> Plan:
        """Return the plan by which the page's rows are read."""
        raise NotImplementedError

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        found = super().get_filters_params(params)
        # Other changelists write `queue_name__exact`.
        return {name.removesuffix("__exact"): value for name, value in found.items() if name not in (AFTER, BEFORE)}

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        return super().get_query_string(new_params, [*(remove or ()), AFTER, BEFORE])

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the rows among which an action looks for the ticked ones; what the page shows is read by the plan."""
        self.filter_specs, self.has_filters, rest, _, self.has_active_filters = self.get_filters(request)
        if rest:
            raise IncorrectLookupParameters(f"There is no filter {', '.join(rest)}.")
        self.clear_all_filters_qs = self.get_query_string(remove=self.get_filters_params())
        return self.root_queryset

    def get_results(self, request: HttpRequest) -> None:
        self.plan = self.get_plan(request)
        columns = list(self.list_display)
        self.sortable_by = [each for each in SHOWN_BY.get(self.plan.columns[0], ()) if each in columns]
        self._sorted_by = columns.index(self.sortable_by[0]) if self.sortable_by else None
        asked = self.params.get(main.ORDER_VAR, "")
        if asked.lstrip("-") == str(self._sorted_by) and asked.startswith("-") != self._is_descending():
            self.plan = self.plan.reversed()
        place = None
        for name in (AFTER, BEFORE):
            if name in request.GET:
                place = Place.parse(request.GET[name], self.plan, back=name == BEFORE)
        self.page = look(self.plan, self.list_per_page, place)
        rows = self.root_queryset.in_bulk(self.page.ids)
        self.result_list: Any = [rows[id] for id in self.page.ids if id in rows]
        self.result_count = len(self.result_list)
        self.full_result_count = self.result_count
        self.show_full_result_count = True  # then the search box shows no numbers: the foot of the page does
        self.show_admin_actions = bool(self.result_list)
        self.can_show_all, self.multi_page = True, False
        self.paginator = Paginator(self.result_list, self.list_per_page)

    def _is_descending(self) -> bool:
        return self.plan.order[0].startswith("-")

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        return {} if self._sorted_by is None else {self._sorted_by: "desc" if self._is_descending() else "asc"}

    # --- what the template asks for ----------------------------------------------------------------------------------

    @property
    def next_page(self) -> str:
        """The address of the next page, or of the look further back; empty at the end."""
        return self._page_at(AFTER, self.page.next)

    @property
    def previous_page(self) -> str:
        return self._page_at(BEFORE, self.page.previous)

    @property
    def first_page(self) -> str:
        return self.get_query_string()

    def _page_at(self, name: str, place: Place | None) -> str:
        if place is None:
            return ""
        return super().get_query_string({name: str(place)}, [AFTER, BEFORE])

    @property
    def is_looking(self) -> bool:
        """Whether each row is checked for something, so that the page has to say how far it looked."""
        return self.plan.asked is not None

    @property
    def ends_early(self) -> bool:
        """Whether there may be more, beyond what was looked at."""
        return self.page.next is not None and not self.page.is_full

    @property
    def looked_from_to(self) -> tuple[Any, Any] | None:
        """The times of the newest and the oldest row that was looked at, by the plan's clock."""
        page, plan = self.page, self.plan
        if page.first is None or page.last is None:
            return None
        if plan.clock in plan.columns:
            place = plan.columns.index(plan.clock)
            return page.first[place], page.last[place]
        ids = (page.first[-1], page.last[-1])
        times = dict(self.root_queryset.filter(pk__in=ids).values_list("pk", plan.clock))
        return times.get(ids[0]), times.get(ids[1])


class JobChangeList(KeysetChangeList):
    """The jobs that the filters and the search box ask for."""

    model_admin: JobList
    criteria: Criteria
    notes: list[str]
    bulk_verbs: list[Verb]  #: what may be done to all that match

    def get_plan(self, request: HttpRequest) -> Plan:
        alias = alias_of(None)
        found: dict[str, Any] = {}
        for spec in self.filter_specs:
            found |= spec.criteria()  # type: ignore[attr-defined]  # all of them are ours
        may_see_payload = may(request, "view_job_payload")
        searched = search.parse(self.query, alias, may_see_payload=may_see_payload)
        self.notes = searched.notes
        said = dict(searched.criteria)
        if "errors" in said and "errors" in found:  # both hold
            said["errors"] = tuple(set(said["errors"]) & set(found["errors"]))
            if not said["errors"]:
                said["ids"] = ()
        self.criteria = replace(Criteria(), **{**found, **said, **self.model_admin.always()})
        (plan,) = plans_for(self.criteria, alias)
        return plan

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        statuses = self.criteria.statuses or JobStatus.values
        self.bulk_verbs = [verb for verb in in_bulk(request) if verb.applies_to.intersection(statuses)]

    @property
    def criteria_as_json(self) -> str:
        """What is asked for, as the page of bulk actions takes it."""
        return json.dumps(self.criteria.as_json())

    @property
    def count(self) -> CappedCount | None:
        """How many jobs match; `None` if no index can count them."""
        if self.is_looking:
            return None
        number, is_all = count_up_to(self.plan, CAP)
        return CappedCount.of(number, CAP, lambda: estimate(self.criteria, alias_of(None)), more=not is_all)
