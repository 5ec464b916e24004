"""Entries of DATABASES from URLs."""

from typing import Any
from urllib.parse import unquote, urlsplit

#: gnlqueue: writers wait for each other instead of failing, readers don't wait, and a commit survives a power cut.
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,  # seconds
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
}


def database(url: str) -> dict[str, Any]:
    """Return the entry for `sqlite:///path`, `postgresql://user:password@host:port/name`, or `mysql://…` like that."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = url.removeprefix("sqlite:///")
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": SQLITE_OPTIONS}
    server = {
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    if parts.scheme in {"postgresql", "postgres"}:
        return {"ENGINE": "django.db.backends.postgresql", **server}
    if parts.scheme in {"mysql", "mariadb"}:
        _use_pymysql_if_needed()
        return {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"charset": "utf8mb4"}, **server}
    raise ValueError(f"{parts.scheme!r} is not a kind of database: use sqlite, postgresql or mysql.")


def _use_pymysql_if_needed() -> None:
    """Let PyMySQL, which needs no compiler, stand in where mysqlclient is not installed."""
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.install_as_MySQLdb()
