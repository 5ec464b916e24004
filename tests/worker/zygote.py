"""A process that has Django loaded and forks ``manage.py`` commands: starting one from nothing takes most of a second.

Its standard input takes one JSON object a line: the command's words, the environment, and the path of a FIFO for what
it writes. Its standard output says ``started`` or ``ended`` with a pid and an exit status, one a line.
"""

import json
import os
import select
import signal
import sys
import warnings
from typing import Any

running: set[int] = set()


def main() -> None:
    """Serve until the input ends."""
    import django
    from django.core.management import get_commands, load_command_class

    django.setup()
    for name in ("runworker", "gnlqueue"):
        load_command_class(get_commands()[name], name)
    news, tell = os.pipe()
    os.set_blocking(news, False)
    os.set_blocking(tell, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell)
    while True:
        readable, _, _ = select.select([sys.stdin, news], [], [])
        if news in readable:
            os.read(news, 4096)
            report_ends()
        if sys.stdin in readable:
            line = sys.stdin.readline()
            if not line:
                end_what_is_left()
                return
            pid = os.fork()
            if not pid:
                os.close(news)
                os.close(tell)
                become(**json.loads(line))
            running.add(pid)
            say("started", pid)


def end_what_is_left() -> None:
    """Kill what runs when pytest is gone; a test that came to its end has left nothing."""
    for pid in running:
        os.killpg(pid, signal.SIGKILL)


def report_ends() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        running.discard(pid)
        say("ended", pid, os.waitstatus_to_exitcode(status))


def say(what: str, pid: int, status: int | None = None) -> None:
    print(json.dumps([what, pid, status]), flush=True)  # noqa: T201  the protocol


def become(words: list[str], environment: dict[str, str], log: str) -> None:
    """Run the command in this process, as if it had just been started."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    output = os.open(log, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    status: Any = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        warnings.simplefilter("error")
        settings_of_the_test()
        from django.core.management import execute_from_command_line

        execute_from_command_line(["manage.py", *words])
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def settings_of_the_test() -> None:
    """Settle what is read once, at the start of a process."""
    from django.conf import settings
    from django.db import connections
    from django.test.signals import setting_changed

    from tests import servers
    from tests.app import faults
    from tests.settings import gnlqueue_settings

    for alias, database in servers.databases().items():
        connections.settings[alias].update({name: database.get(name, "") for name in ("NAME", "HOST", "PORT")})

    settings.GNLQUEUE = gnlqueue_settings()
    setting_changed.send(sender=None, setting="GNLQUEUE", value=settings.GNLQUEUE, enter=True)
    faults.install()


if __name__ == "__main__":
    main()
