"""What every page of the queue's admin builds on: read-only, on the queue's database, fast with any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.forms import Media
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from gnlqueue.dialects import now as clock
from gnlqueue.models import OperatorAction
from gnlqueue.queue.transactions import alias_of
from gnlqueue.templatetags.gnlqueue_admin import number

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin as ModelAdmin
else:

    class ModelAdmin(admin.ModelAdmin):
        """Django's, which takes a type argument only in the stubs."""

        def __class_getitem__(cls, model: Any) -> type[admin.ModelAdmin]:
            return cls


#: What our pages load: nothing inline, nothing from elsewhere.
MEDIA = Media(css={"all": ["gnlqueue/admin.css"]}, js=["gnlqueue/refresh.js"])

#: At most so many rows are counted or grouped; otherwise ten million would all be read.
CAP = 10_000


class QueuePage(ModelAdmin[M]):
    """A page that shows rows of the queue and never saves one: a plain save would undo what a worker stores.

    Each verb has a view of its own, which checks the verb's permission.
    """

    show_full_result_count = False

    @property
    def media(self) -> Media:
        return super().media + MEDIA

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        return super().get_queryset(request).using(alias_of(None))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def show(
        self, request: HttpRequest, template: str, title: str, *, status: int = 200, **extra: Any
    ) -> TemplateResponse:
        """Show a page of our own, whose template extends `gnlqueue/admin/base.html`.

        From here on the request belongs to the page's site, for `url` below and for the `{% url %}` of templates.
        """
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "media": MEDIA,
            "is_popup": False,
            **extra,
        }
        return TemplateResponse(request, template, context, status=status)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        self.require_view(request)
        return super().history_view(request, object_id, extra_context)

    def require_view(self, request: HttpRequest, *, takes_post: bool = False) -> None:
        """Raise `PermissionDenied` if this person may not see the page, or posts to a page that only shows something.

        A page that `takes_post` has to check that this person may do what was posted.
        """
        if not self.has_view_permission(request) or (request.method == "POST" and not takes_post):
            raise PermissionDenied


def url(request: HttpRequest, name: str, *args: Any) -> str:
    """Return the address of a page of the admin, such as `gnlqueue_job_change`, on the site that the request is for."""
    resolved = request.resolver_match
    site = getattr(request, "current_app", None) or (resolved and resolved.namespace) or "admin"
    return reverse(f"admin:{name}", args=args, current_app=site)


def person(request: HttpRequest) -> str:
    """Return the name of the person who made the request, as text: what is logged outlives the account."""
    return str(request.user.get_username())[:200]


def may(request: HttpRequest, permission: str) -> bool:
    """Tell whether this person has a permission of ours, such as `retry_job`."""
    return request.user.is_active and request.user.has_perm(f"gnlqueue.{permission}")


def may_open(request: HttpRequest, page: str) -> bool:
    """Tell whether this person may open a page of ours, such as `job_change`: whoever may view its model may.

    Whoever decides about steps in doubt may see them too.
    """
    model = page.partition("_")[0]
    decides = model == "stepindoubt" and may(request, "resolve_runjournalentry")
    return decides or may(request, f"view_{model}")


def require(request: HttpRequest, permission: str) -> None:
    """Raise `PermissionDenied` unless this person has a permission of ours, such as `retry_job`."""
    if not may(request, permission):
        raise PermissionDenied


def record(
    request: HttpRequest,
    verb: str,
    target: str,
    *,
    job_id: int | None = None,
    where: Any = None,
    why: str = "",
    done: int = 1,
    skipped: int = 0,
    runner_id: int | None = None,
) -> OperatorAction:
    """Record in the operator log what this person did; a bulk action that a job does is finished by that job."""
    return OperatorAction.objects.using(alias_of(None)).create(
        at=clock(),
        by=person(request),
        verb=verb,
        target=target[:200],
        job_id=job_id,
        where=where,
        why=why,
        done=done,
        skipped=skipped,
        runner_id=runner_id,
        finished_at=clock() if runner_id is None else None,
    )


class CappedCount(NamedTuple):
    """A number of rows; or that there are more than were counted, and about how many."""

    number: int
    more: bool = False
    estimate: int | None = None  #: if there are more, and the database can tell without counting

    @classmethod
    def of(
        cls, found: int, cap: int, estimate: Callable[[], int | None] = lambda: None, *, more: bool = False
    ) -> CappedCount:
        """Return the count for a number of rows `found` by a read that stops after `cap` + 1, or had to stop (`more`).

        `estimate` asks the database; it is called only if there are more than were counted.
        """
        if found <= cap and not more:
            return cls(found)
        roughly = _two_digits(estimate() or 0)
        return cls(min(found, cap), True, roughly if roughly > cap else None)

    def plus(self, other: CappedCount) -> CappedCount:
        """Return the sum of both; about how many that is, if it is known of both."""
        both = self.number + other.number
        if not (self.more or other.more):
            return CappedCount(both)
        known = [each.estimate if each.more else each.number for each in (self, other)]
        return self.of(both, both, lambda: None if None in known else sum(filter(None, known)), more=True)

    def __str__(self) -> str:
        return number(self.number) + ("+" if self.more else "")

    @property
    def about(self) -> str:
        """About how many there are, in words; "" if they were counted, or nobody knows."""
        return "" if self.estimate is None else _("about %(number)s") % {"number": number(self.estimate)}

    @property
    def said(self) -> str:
        """How many there are, and about how many, in a sentence."""
        return f"{self} ({self.about})" if self.about else str(self)

    def __bool__(self) -> bool:
        return self.number > 0


def _two_digits(number: int) -> int:
    return round(number, 2 - len(str(number)))
