"""Indexes over some of a table's rows, on databases that know partial indexes and on those that don't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Index, Model, Q, UniqueConstraint

from gnlqueue.exceptions import dotted


class PartialIndex(Index):
    """An index over the rows that match `where`; MySQL and MariaDB, which have none such, index `instead`.

    Django's own `Index(condition=…)` is created *without* its condition there, so that its columns no longer lead to
    the rows. Here `instead` names the columns for those databases, usually with `status` first.
    """

    def __init__(self, *, fields: list[str], where: Q, instead: list[str], name: str) -> None:
        super().__init__(fields=fields, name=name)
        self.where = where
        self.instead = instead

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "where": self.where, "instead": self.instead}

    def create_sql(
        self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kwargs: Any
    ) -> Any:
        if schema_editor.connection.features.supports_partial_indexes:
            plain = Index(fields=self.fields_with_order, name=self.name, condition=self.where)
        else:
            plain = Index(fields=self.instead, name=self.name)
        return plain.create_sql(model, schema_editor, using=using, **kwargs)

    @property
    def fields_with_order(self) -> list[str]:
        """The fields as they were given, a `-` before the descending ones."""
        return [f"-{name}" if order == "DESC" else name for name, order in self.fields_orders]


class UniqueWhereSet(UniqueConstraint):
    """One field that is unique where it is not null, and null in most rows, which then have no entry in its index.

    A plain unique index has an entry for each of them, and PostgreSQL makes it anew whenever the row changes. Django's
    own `condition=…` is silently *not created* on MySQL and MariaDB, which get a plain one here.
    """

    def __init__(self, *, field: str, name: str) -> None:
        super().__init__(fields=[field], name=name)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        return dotted(type(self)), (), {"field": self.fields[0], "name": self.name}

    def __eq__(self, other: object) -> bool:
        # Django's holds any unique constraint of the same name and fields for the same.
        return isinstance(other, UniqueWhereSet) and super().__eq__(other)

    __hash__ = UniqueConstraint.__hash__

    def constraint_sql(self, model: type[Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        return self._of(schema_editor).constraint_sql(model, schema_editor)

    def create_sql(self, model: type[Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        return self._of(schema_editor).create_sql(model, schema_editor)

    def remove_sql(self, model: type[Model] | None, schema_editor: BaseDatabaseSchemaEditor | None) -> Any:
        return self._of(schema_editor).remove_sql(model, schema_editor)

    def _of(self, schema_editor: Any) -> UniqueConstraint:
        if not schema_editor.connection.features.supports_partial_indexes:
            return UniqueConstraint(fields=self.fields, name=self.name)
        where = Q(**{f"{self.fields[0]}__isnull": False})
        return UniqueConstraint(fields=self.fields, name=self.name, condition=where)
