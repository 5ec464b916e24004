"""Commits whose answer never arrives: what was stored is replayed, what was not is written again."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from gnlqueue import JobContext, queue, signals
from gnlqueue.durable.entries import Journal
from gnlqueue.exceptions import JobSuspended
from gnlqueue.models import EntryStatus, Job, JobStatus
from gnlqueue.queue import transitions
from gnlqueue.worker.loop import Worker
from tests.app.models import Note
from tests.durable.conftest import KINDS, Ledger, attempt, commit_fails, entries, entry, jobs

Play = Callable[..., Job]


class CuttingProxy:
    """Stands before a server; once armed, it forwards the next COMMIT, and cuts the line when the answer comes."""

    def __init__(self, host: str, port: str) -> None:
        self._target = (host, port)
        self._armed = False
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def arm(self) -> None:
        """Cut after the next COMMIT."""
        self._armed = True

    def close(self) -> None:
        """End all connections, and the threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        for each in self._sockets:
            _hang_up(each)
        for thread in self._threads:
            thread.join(10)
        for each in [*self._sockets, self._listener]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            self._sockets += [client, server]
            cut = threading.Event()
            for body, arguments in ((self._ask, (client, server, cut)), (self._answer, (server, client, cut))):
                self._threads.append(threading.Thread(target=body, args=arguments, daemon=True))
                self._threads[-1].start()

    def _connect(self) -> socket.socket:
        host, port = self._target
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port or 5432}")
            return server
        return socket.create_connection((host, int(port)))

    def _ask(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        while data := _receive(client):
            if self._armed and b"COMMIT" in data.upper():
                self._armed = False
                cut.set()
            _pass_on(data, server)
        _hang_up(server)

    def _answer(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        while (data := _receive(server)) and not cut.is_set():
            _pass_on(data, client)
        self.cuts += cut.is_set()
        _hang_up(client)


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except OSError:
        return b""


def _pass_on(data: bytes, line: socket.socket) -> None:
    """Send, unless the other end has gone: a driver's last word on a line that was cut reaches nobody."""
    with contextlib.suppress(OSError):
        line.sendall(data)


def _hang_up(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@pytest.fixture
def proxy(alias: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """The database is reached through it."""
    connection = connections[alias]
    settings = connection.settings_dict
    proxy = CuttingProxy(settings["HOST"] or "127.0.0.1", str(settings["PORT"]))
    connection.close()
    with monkeypatch.context() as patched:
        patched.setitem(settings, "HOST", "127.0.0.1")
        patched.setitem(settings, "PORT", str(proxy.port))
        if alias == "postgresql":
            patched.setitem(settings, "OPTIONS", {**settings["OPTIONS"], "sslmode": "disable"})
        yield proxy
    connection.close()
    proxy.close()


@pytest.mark.parametrize("alias", ["postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_is_cut_after_commit_was_sent_replays_its_own_result(
    alias: str, play: Play, ledger: Ledger, proxy: CuttingProxy, kind: str
) -> None:
    def charge() -> Any:
        Note.objects.using(alias).create(text="charged")
        proxy.arm()
        return ledger.add({"id": 7})

    done = attempt(play(lambda context: getattr(context, kind)("charge", charge)))
    assert proxy.cuts == 1
    assert (done.status, done.result, done.attempts) == (JobStatus.DONE, {"id": 7}, 1)
    assert (len(ledger), Note.objects.using(alias).count()) == (1, 1)
    assert entry(done).status == EntryStatus.DONE


@pytest.mark.parametrize("stored", [True, False])
def test_the_answer_to_the_start_of_a_step_may_be_lost(alias: str, play: Play, ledger: Ledger, stored: bool) -> None:
    def handler(context: JobContext) -> Any:
        context.step("warm up", lambda: None)
        with commit_fails(alias, number=1, stored=stored):
            return context.step("charge", ledger.add, "paid")

    done = attempt(play(handler))
    assert (done.status, done.result, len(ledger)) == (JobStatus.DONE, "paid", 1)


@pytest.mark.parametrize("kind", ["step", "idempotent_step"])
def test_a_server_that_finishes_a_commit_after_we_have_looked_is_not_taken_for_somebody_else(
    alias: str, play: Play, ledger: Ledger, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Journal._stored
    looks: list[Any] = []

    def too_early(journal: Journal, key: str, status: EntryStatus) -> int | None:
        looks.append(None if not looks else stored(journal, key, status))
        return looks[-1]

    def handler(context: JobContext) -> Any:
        context.step("warm up", lambda: None)
        monkeypatch.setattr(Journal, "_stored", too_early)
        with commit_fails(alias, number=2 if kind == "step" else 1, stored=True):
            return getattr(context, kind)("charge", ledger.add, "paid")

    done = attempt(play(handler))
    assert (done.status, done.result, len(ledger), len(looks)) == (JobStatus.DONE, "paid", 1, 2)


@pytest.mark.parametrize("clause", [ZeroDivisionError, Exception, BaseException])
def test_an_outcome_that_cannot_be_stored_for_a_whole_lease_stops_the_run(
    alias: str, play: Play, ledger: Ledger, clause: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the handler catches: the step stays started, and the next attempt finds it in doubt.

    The job goes back: its worker lives, so nobody would rescue it.
    """

    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("no route to the database")

    def charge() -> None:
        ledger.add()
        monkeypatch.setattr(Journal, "_in_transaction", unreachable)
        monkeypatch.setattr(Journal, "_stored", unreachable)

    def handler(context: JobContext) -> str:
        for name, function in (("charge", charge), ("ship", ledger.add)):
            with contextlib.suppress(clause):
                context.step(name, function)
        return "all is well"

    job = play(handler)
    stopped = attempt(job, lease=0.05)
    assert (stopped.status, stopped.attempts, stopped.crashes) == (JobStatus.SCHEDULED, 1, 0)
    assert "could not be recorded as done for a whole lease: no route" in (stopped.last_error or "")
    monkeypatch.undo()
    assert attempt(job).status == JobStatus.BLOCKED
    assert (len(ledger), entries(job).count()) == (1, 1)


@pytest.fixture
def finished() -> Iterator[list[str]]:
    """The statuses that `job_finished` tells of."""
    statuses = list[str]()

    def hear(status: str, **_: Any) -> None:
        statuses.append(status)

    signals.job_finished.connect(hear)
    yield statuses
    signals.job_finished.disconnect(hear)


def lose_first_answer(
    monkeypatch: pytest.MonkeyPatch, verb: str, *, meanwhile: Callable[[], Any] = lambda: None
) -> list[str]:
    """Let a verb write, and lose its connection, the first time; what it returns grows with each try."""
    write, tries = getattr(transitions, verb), list[str]()

    def write_and_lose_the_answer(*args: Any, **kwargs: Any) -> Any:
        result = write(*args, **kwargs)
        tries.append(verb)
        if len(tries) == 1:
            meanwhile()
            raise OperationalError("server closed the connection unexpectedly")
        return result

    monkeypatch.setattr(transitions, verb, write_and_lose_the_answer)
    return tries


@pytest.mark.parametrize("verb", ["suspend", "confirm_cancel"])
def test_an_end_whose_answer_is_lost_is_told_once_and_as_it_is(
    alias: str,
    play: Play,
    finished: list[str],
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker offers it again, and the guard finds what the first try wrote."""
    caplog.set_level("INFO", "gnlqueue")

    def handler(context: JobContext) -> None:
        if verb == "suspend":
            context.sleep("until tomorrow", timedelta(days=1))
        queue.cancel(context.job_id)
        context.check()

    tries = lose_first_answer(monkeypatch, verb)
    job = play(handler)
    Worker(["default"], drain=True, heartbeat=False).run()

    status, word = ("scheduled", "asleep") if verb == "suspend" else ("cancelled", "cancelled")
    assert (jobs().get(pk=job.pk).status, len(tries)) == (status, 2)
    assert finished == ([] if verb == "suspend" else ["cancelled"])
    assert caplog.text.count(f"{word:<9}  ") == 1
    assert "lost  " not in caplog.text


def test_a_job_that_is_cancelled_as_it_falls_asleep_has_finished(alias: str, play: Play, finished: list[str]) -> None:
    def handler(context: JobContext) -> None:
        suspended = JobSuspended("a moment", timezone.now() + timedelta(days=1))
        queue.cancel(context.job_id)
        raise suspended

    job = play(handler)
    assert attempt(job).status == JobStatus.CANCELLED
    assert finished == ["cancelled"]


@pytest.mark.parametrize("verb", ["suspend", "fail", "postpone_unknown"])
def test_a_job_that_is_cancelled_before_its_end_is_offered_again_has_finished_once(
    alias: str,
    play: Play,
    finished: list[str],
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The attempt's end was written, only the answer was lost; whoever cancelled the waiting job has told of that."""
    caplog.set_level("INFO", "gnlqueue")

    def handler(context: JobContext) -> None:
        if verb == "suspend":
            context.sleep("until tomorrow", timedelta(days=1))
        raise OSError("no answer")

    tries = lose_first_answer(monkeypatch, verb, meanwhile=lambda: queue.cancel(job))
    job = queue.enqueue("nobody.knows") if verb == "postpone_unknown" else play(handler)
    Worker(["default"], drain=True, heartbeat=False).run()

    assert (jobs().get(pk=job.pk).status, len(tries)) == ("cancelled", 2)
    assert finished == ["cancelled"]
    word = {"suspend": "asleep", "fail": "failed", "postpone_unknown": "unknown"}[verb]
    assert caplog.text.count(f"{word:<9}  ") == 1
    assert "lost  " not in caplog.text
