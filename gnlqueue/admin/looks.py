"""Many small questions in one statement: each reads a few rows by an index, and none counts further than it must."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from django.db import connections
from django.db.models import DateTimeField, QuerySet

from gnlqueue import dialects
from gnlqueue.admin.base import CAP, CappedCount

K = TypeVar("K", bound=Hashable)

QUESTIONS_AT_ONCE = 100  # in one statement


class First(NamedTuple):
    """A question for one value of the first row; `None` if there is no row."""

    rows: QuerySet[Any]
    field: str

    def sql(self, alias: str) -> tuple[str, list[Any]]:
        sql, params = _compiled(self.rows.values_list(self.field)[:1], alias)
        return f"({sql})", params

    def answer(self, value: Any, alias: str) -> Any:
        is_time = isinstance(self.rows.model._meta.get_field(self.field), DateTimeField)
        return dialects.of(alias).time(value) if is_time and value is not None else value


class Count(NamedTuple):
    """A question for a number of rows, up to a cap.

    Give the rows the order of the index that is to find them: without it PostgreSQL, expecting to come across some
    soon, reads the table. If there are more than `cap`, `like` serves to estimate how many: the same rows, with as few
    conditions as it takes to find them.
    """

    rows: QuerySet[Any]
    cap: int = CAP
    like: QuerySet[Any] | None = None

    def sql(self, alias: str) -> tuple[str, list[Any]]:
        sql, params = _compiled(self.rows.values_list("pk")[: self.cap + 1], alias)
        return f"(SELECT COUNT(*) FROM ({sql}) counted)", params

    def answer(self, value: Any, alias: str) -> CappedCount:
        like = self.like
        return CappedCount.of(value, self.cap, lambda: None if like is None else dialects.estimate(like))


class FirstAmong(NamedTuple):
    """A question for `field` of the first row whose `having` is not null, among the first `among` rows."""

    rows: QuerySet[Any]
    field: str
    having: str
    among: int

    def sql(self, alias: str) -> tuple[str, list[Any]]:
        sql, params = _compiled(self.rows.values_list(self.field, self.having)[: self.among], alias)
        return f"(SELECT {self.field} FROM ({sql}) among WHERE {self.having} IS NOT NULL LIMIT 1)", params

    def answer(self, value: Any, alias: str) -> Any:
        return value


Question = First | Count | FirstAmong


def ask(alias: str, questions: Mapping[K, Question]) -> dict[K, Any]:
    """Return the answers to all the questions, a hundred of them with one statement."""
    answers: dict[K, Any] = {}
    left = iter(questions.items())
    while batch := list(islice(left, QUESTIONS_AT_ONCE)):
        answers.update(_ask(alias, batch))
    return answers


def _ask(alias: str, batch: list[tuple[K, Question]]) -> Iterator[tuple[K, Any]]:
    sqls, params = [], []
    for _, question in batch:
        sql, its_params = question.sql(alias)
        sqls.append(sql)
        params += its_params
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(sqls)}", params)
        values = cursor.fetchone()
    return ((key, question.answer(value, alias)) for (key, question), value in zip(batch, values, strict=True))


def _compiled(rows: QuerySet[Any], alias: str) -> tuple[str, list[Any]]:
    sql, params = rows.query.get_compiler(using=alias).as_sql()
    return sql, list(params)
