"""A proxy before a database server, that a test can cut: what a restart or a failover looks like from outside."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from django.db import connections

from tests import servers


class Proxy:
    """Forwards TCP connections to the server of an alias."""

    def __init__(self, alias: str) -> None:
        database = connections[alias].settings_dict
        host, port = database["HOST"] or "127.0.0.1", int(database["PORT"] or 5432)
        self._server: Any = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._family = socket.AF_UNIX if host.startswith("/") else socket.AF_INET
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        user, password = quote(database["USER"] or ""), quote(database["PASSWORD"] or "")
        scheme, name = ("postgresql", servers.POSTGRESQL_URL) if alias == "postgresql" else ("mysql", servers.MYSQL_URL)
        #: What sends a process through the proxy.
        self.environment = {name: f"{scheme}://{user}:{password}@127.0.0.1:{self.port}/"}

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        with self._lock:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """Accept connections again."""
        self._listener = self._listen(self.port)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self.cut()
        for thread in self._threads:
            thread.join(10)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        self._begin(self._accept, listener)
        return listener

    def _begin(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # cut
                return
            server = socket.socket(self._family)
            server.connect(self._server)
            with self._lock:
                self._open |= {client, server}
            self._begin(self._forward, client, server)
            self._begin(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()


@contextlib.contextmanager
def before(alias: str) -> Iterator[Proxy]:
    """A proxy before the server of this alias."""
    proxy = Proxy(alias)
    try:
        yield proxy
    finally:
        proxy.close()
