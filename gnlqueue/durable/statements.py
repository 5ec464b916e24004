"""What an `atomic_step` may not ask the database for, because it would survive a rollback.

A statement is recognised by how it begins. One that is wrapped in something else is not seen: in a stored procedure, in
a prepared statement, after another statement and a semicolon. What it has committed is found afterwards, see `atomic`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections

#: What may stand before a statement's verb, as a pattern: blanks and comments.
_BEFORE = r"[\s(;]|--[^\n]*|/\*.*?\*/"

#: MySQL also has comments that begin with #, and some that it runs.
_BEFORE_ON_MYSQL = rf"\#[^\n]*|/\*M?!\d*|\*/|{_BEFORE}"

#: These begin or end a transaction on every database. Going back to a savepoint does not.
_ENDS = r"""
    (?: BEGIN | START | COMMIT | END ) \b | PREPARE\s+TRANSACTION\b
    | ROLLBACK\b (?! \s+ (?:(?:WORK|TRANSACTION)\s+)? TO\b)
"""

#: On MySQL and MariaDB these commit what came before them.
_COMMITS_ON_MYSQL = r"""
    (?: CREATE (?:\s+OR\s+REPLACE)?+ | DROP ) \b (?! \s+TEMPORARY\s+TABLE\b | \s+PREPARE\b )
    | (?: ALTER | RENAME | TRUNCATE | GRANT | REVOKE | LOCK | UNLOCK | FLUSH | CHECK | OPTIMIZE | REPAIR ) \b
    | ANALYZE \s+ (?: (?: LOCAL | NO_WRITE_TO_BINLOG ) \s+ )? TABLES?\b
    | SET\b .* \bAUTOCOMMIT\b
"""


def _beginning_with(statements: str, before: str = _BEFORE) -> re.Pattern[str]:
    """Return a pattern that matches these statements, whatever stands before their verb."""
    # Possessive: it finds the one verb there is, and never looks for another inside a comment.
    return re.compile(rf"(?:{before})*+ (?:{statements})", re.IGNORECASE | re.DOTALL | re.VERBOSE)


_ENDING = _beginning_with(_ENDS)
_COMMITTING = _beginning_with(rf"{_ENDS} | {_COMMITS_ON_MYSQL}", _BEFORE_ON_MYSQL)

#: These store nothing by themselves. What matches `_QUERY` stores something only if one of `_WRITES` is in it.
_HARMLESS = _beginning_with(r"(?: SELECT | SHOW | EXPLAIN | PRAGMA | SET | BEGIN | SAVEPOINT | RELEASE | ROLLBACK ) \b")
_QUERY = _beginning_with(r"WITH\b")
_WRITES = re.compile(r"[\s()](?:INSERT|UPDATE|DELETE|MERGE)\s", re.IGNORECASE)


@contextmanager
def only_what_rolls_back(using: str) -> Iterator[None]:
    """Refuse, with a `RuntimeError`, what ends this alias's transaction, and all writes to other aliases."""
    committing = _ENDING if connections[using].features.can_rollback_ddl else _COMMITTING

    def refuse_writes(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        alias = context["connection"].alias
        if not _is_harmless(_text(sql, context)):
            raise RuntimeError(
                f"An atomic_step on {using!r} writes to {alias!r}, which does not commit or roll back with it. Use a "
                "step or an idempotent_step for that."
            )
        return execute(sql, params, many, context)

    def refuse_ends(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        statement = _text(sql, context)
        if committing.match(statement):
            raise RuntimeError(
                f"An atomic_step on {using!r} tries to run {statement.strip():.60}, which begins or ends a "
                "transaction: what came before would not commit or roll back with the step. Use an idempotent_step "
                "for that."
            )
        return execute(sql, params, many, context)

    with ExitStack() as stack:
        for connection in connections.all():
            refuse = refuse_ends if connection.alias == using else refuse_writes
            stack.enter_context(connection.execute_wrapper(refuse))
        yield


def _text(sql: Any, context: Any) -> str:
    """Return a statement's text, even if it is bytes, or composed by the driver, as `psycopg.sql.SQL` is."""
    if isinstance(sql, str):
        return sql
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    return str(sql.as_string(context["connection"].connection) if hasattr(sql, "as_string") else sql)


def _is_harmless(statement: str) -> bool:
    if _QUERY.match(statement):
        return not _WRITES.search(statement)
    return _HARMLESS.match(statement) is not None
