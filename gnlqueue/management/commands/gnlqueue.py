"""`manage.py gnlqueue`: look at the queue and act on jobs from a shell."""

from __future__ import annotations

import json
import os
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from textwrap import indent
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections
from django.db.models import QuerySet

from gnlqueue import queue
from gnlqueue.connection import require_tables
from gnlqueue.dialects import read_clock
from gnlqueue.exceptions import DatabaseNotReady, GnlqueueError
from gnlqueue.management import decisions
from gnlqueue.management.flags import WRONG, database_alias, positive
from gnlqueue.management.output import arguments_of, say_if_more
from gnlqueue.management.running import add_worker_arguments, run_worker
from gnlqueue.models import Job, JobQuerySet, JobStatus, QueueState, WorkerProcess
from gnlqueue.queue.reading import dead_letters
from gnlqueue.queue.transactions import alias_of
from gnlqueue.redaction import redacted
from gnlqueue.registry import registered

EXIT_SOME_FAILED = 1


class Command(BaseCommand):
    help = "Look at the queue, act on jobs, or run a worker."
    requires_system_checks = []  # looking at the queue must work even if something else is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
        worker = commands.add_parser("worker", help="run jobs; the same as manage.py runworker")
        worker.set_defaults(run=run_worker)
        add_worker_arguments(worker)
        self._add_djangos_flags(worker, verbosity="0: log only warnings and errors (default: 1)")
        stats = self._subcommand(commands, "stats", self._stats, "count the jobs")
        stats.add_argument("--queue", help="only those of this queue")
        stats.add_argument("--json", action="store_true", help="as one JSON object")
        dead = self._subcommand(commands, "dead", self._dead, "list dead-lettered jobs, newest first")
        dead.add_argument("--queue", help="only those of this queue")
        dead.add_argument("--task", metavar="NAME", help="only those of this task")
        dead.add_argument("--limit", type=positive(int), default=20, help="how many (default: 20)")
        dead.add_argument("--json", action="store_true", help="as JSON, one object per line")
        dead.add_argument(
            "--traceback-of", type=int, metavar="ID", help="show the traceback of this job's last attempt"
        )
        retry = self._subcommand(commands, "retry", self._retry, "make dead or cancelled jobs ready again")
        retry.add_argument("ids", type=int, nargs="*", metavar="ID")
        retry.add_argument("--all-dead", action="store_true", help="every dead job")
        retry.add_argument("--queue", help="with --all-dead: only those of this queue")
        retry.add_argument("--task", metavar="NAME", help="with --all-dead: only those of this task")
        cancel = self._subcommand(commands, "cancel", self._cancel, "cancel jobs")
        cancel.add_argument("ids", type=int, nargs="+", metavar="ID")
        pause = self._subcommand(commands, "pause", self._pause, "let workers claim nothing more from a queue")
        # Not `queue`: Django could not tell it from --queue, where `call_command` has that as a keyword.
        pause.add_argument("name", metavar="QUEUE")
        resume = self._subcommand(commands, "resume", self._resume, "let workers claim from a paused queue again")
        resume.add_argument("name", metavar="QUEUE")
        prune = self._subcommand(
            commands, "prune", self._prune, "delete jobs that finished long ago, each with its journal"
        )
        prune.add_argument(
            "--days", type=_days, required=True, help="those that finished more than this many days ago (0: all)"
        )
        prune.add_argument("--queue", help="only those of this queue")
        prune.add_argument("--dead", action="store_true", help="dead ones too, not only done and cancelled ones")

        blocked = self._subcommand(
            commands,
            "blocked",
            partial(decisions.show_blocked, self),
            "list the decisions that wait for a human, oldest first",
        )
        blocked.add_argument("--limit", type=positive(int), default=20, help="how many (default: 20)")
        resolving = self._subcommand(
            commands, "resolve", partial(decisions.decide, self), "decide about a step in doubt, or about a mismatch"
        )
        resolving.add_argument("entry", type=int, metavar="ENTRY", help="the number that `gnlqueue blocked` shows")
        answer = resolving.add_mutually_exclusive_group(required=True)
        answer.add_argument("--happened", metavar="JSON", help="in doubt: it happened, with this result")
        answer.add_argument(
            "--not-happened",
            action="store_true",
            help="in doubt: it did not happen; run it again, once. Mismatch: the code asks for another step; run that",
        )
        answer.add_argument("--fail-job", action="store_true", help="dead-letter the job; the doubt stays")
        answer.add_argument("--go-on", action="store_true", help="mismatch: the code has been put right")
        answer.add_argument("--use-recorded", action="store_true", help="mismatch: use what was recorded")
        resolving.add_argument("--reason", required=True, help="why; kept with the decision")
        resolving.add_argument("--by", help="who decides (default: the user of this shell)")

    def _subcommand(self, commands: Any, name: str, run: Callable[[dict[str, Any]], Any], help: str) -> ArgumentParser:
        parser: ArgumentParser = commands.add_parser(name, help=help, description=help)
        parser.set_defaults(run=run)
        parser.add_argument("--database", type=database_alias, metavar="ALIAS", help="alias of the queue's database")
        self._add_djangos_flags(parser)
        return parser

    def _add_djangos_flags(self, parser: ArgumentParser, *, verbosity: str = SUPPRESS) -> None:
        """Let the flags of every command stand after the subcommand too, where people write them."""
        # Without a default of their own, which would hide what stands before the subcommand.
        add = partial(parser.add_argument, default=SUPPRESS)
        add("-v", "--verbosity", type=int, choices=range(4), help=verbosity)
        for flag in ("--settings", "--pythonpath"):
            add(flag, help=SUPPRESS)
        for flag in ("--traceback", "--no-color", "--force-color"):
            add(flag, action="store_true", help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            status = options["run"](options)
            self.stdout.flush()
        except BrokenPipeError:  # nobody reads any more, as with `| head`; Python would complain at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except WRONG as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(_why(error, options["database"])) from error
        if status:
            sys.exit(status)

    def _stats(self, options: dict[str, Any]) -> None:
        counts = queue.stats(options["queue"], using=options["database"])
        if options["json"]:
            self.stdout.write(json.dumps(counts))
            return
        for name, count in counts.items():
            line = f"{name:<12}{count:>12,}"
            style = self.style.ERROR if count and name in {"dead", "blocked", "expired"} else str
            self.stdout.write(self.style.SUCCESS(line) if name == "total" else style(line))
        if names := self._paused(options):
            self.stdout.write(self.style.WARNING(f"paused      {', '.join(names)}"))
        for name in self._unserved(options):
            said = f"unserved    {name}: jobs wait, and no live worker serves it. manage.py runworker --queues {name}"
            self.stdout.write(self.style.WARNING(said))

    def _unserved(self, options: dict[str, Any]) -> list[str]:
        """Return the queues whose jobs nobody claims: misspelt ones, or those of workers that are gone."""
        alias = alias_of(options["database"])
        now, jobs = read_clock(alias), Job.objects.using(alias)
        ready, scheduled = jobs.with_status(JobStatus.READY), jobs.with_status(JobStatus.SCHEDULED)
        waiting = _queues_of(ready) | _queues_of(scheduled.filter(run_at__lte=now))
        if options["queue"]:
            waiting &= {options["queue"]}
        if not waiting:
            return []
        served = {name for each in WorkerProcess.objects.using(alias) if each.is_live(now) for name in each.queues}
        # Or by a consumer of the project's own, which is no worker and on no list.
        served |= _queues_of(jobs.with_status(JobStatus.IN_PROGRESS).filter(lease_expires_at__gt=now))
        return sorted(waiting - served - set(self._paused(options)))

    def _dead(self, options: dict[str, Any]) -> None:
        if options["traceback_of"] is not None:
            self._traceback(queue.get(options["traceback_of"], using=options["database"]))
            return
        jobs = list(self._dead_letters(options)[: options["limit"] + 1])
        for job in jobs[: options["limit"]]:
            if options["json"]:
                self.stdout.write(json.dumps(self._as_json(job)))
            else:
                self.stdout.write(
                    f"{self.style.ERROR(f'job {job.pk}')}  {job.task_name}({arguments_of(job)})  queue "
                    f"{job.queue_name}, {_counted(job.attempts, 'attempt')}, {job.finished_at:%Y-%m-%d %H:%M:%S} UTC\n"
                    f"{indent(job.last_error or '', '    ')}"
                )
        if not options["json"]:
            which = "".join(f" --{flag} {options[flag]}" for flag in ("queue", "task") if options[flag])
            again = f"Run again: manage.py gnlqueue retry ID, or retry --all-dead{which}."
            hint = f"{again} See why: manage.py gnlqueue dead --traceback-of ID."
            self.stdout.write(hint if jobs else self.style.SUCCESS(_no_dead_jobs(options)))
            say_if_more(self, jobs, options["limit"])

    def _dead_letters(self, options: dict[str, Any]) -> JobQuerySet:
        return dead_letters(options["queue"], options["task"], using=options["database"])

    def _traceback(self, job: Job) -> None:
        attempt = job.failed_attempts.order_by("-id").first()
        if attempt is None:
            raise CommandError(f"{job} has no failed attempt.")
        self.stdout.write(
            f"attempt {attempt.number} on {attempt.worker_id}, ended {attempt.ended_at:%Y-%m-%d %H:%M:%S} UTC"
        )
        self.stdout.write(attempt.error)

    def _retry(self, options: dict[str, Any]) -> int:
        ids = options["ids"]
        if bool(ids) == options["all_dead"]:
            raise CommandError("Name the jobs to retry, or use --all-dead.")
        for flag in ("queue", "task"):
            if ids and options[flag]:
                raise CommandError(f"--{flag} goes with --all-dead: a job is named by its id alone.")
        if options["all_dead"]:
            ids = list(self._dead_letters(options).values_list("pk", flat=True))  # without what they failed with
            if not ids:
                self.stdout.write(self.style.SUCCESS(_no_dead_jobs(options)))
        return self._each(ids, queue.retry, "ready again", options)

    def _cancel(self, options: dict[str, Any]) -> int:
        return self._each(options["ids"], queue.cancel, "", options)

    def _pause(self, options: dict[str, Any]) -> None:
        name, alias = options["name"], alias_of(options["database"])
        queue.pause(name, using=alias)
        self.stdout.write(f"paused {name}: running jobs go on. To undo this: manage.py gnlqueue resume {name}")
        named = any(task.options.queue_name == name for task in registered().values())
        if not named and not Job.objects.using(alias).filter(queue_name=name).exists():
            hint = f"No task of this project names the queue {name}, and no job is in it: is it misspelt?"
            self.stdout.write(self.style.WARNING(hint))

    def _resume(self, options: dict[str, Any]) -> None:
        name, paused = options["name"], self._paused(options)
        queue.resume(name, using=options["database"])
        if name in paused:
            self.stdout.write(f"resumed {name}")
        else:
            others = f"paused: {', '.join(paused)}" if paused else "no queue is"
            self.stdout.write(self.style.WARNING(f"{name} was not paused; {others}"))

    def _paused(self, options: dict[str, Any]) -> list[str]:
        paused = QueueState.objects.using(alias_of(options["database"])).filter(paused_at__isnull=False)
        return sorted(paused.values_list("queue_name", flat=True))

    def _prune(self, options: dict[str, Any]) -> None:
        statuses = [JobStatus.DONE, JobStatus.CANCELLED, *([JobStatus.DEAD] if options["dead"] else [])]
        count = queue.prune(options["days"], statuses=statuses, queue_name=options["queue"], using=options["database"])
        self.stdout.write(f"pruned {_counted(count, 'job')}")

    def _each(self, ids: list[int], verb: Any, done: str, options: dict[str, Any]) -> int:
        refused = 0
        for id in ids:
            try:
                job = verb(id, using=options["database"])
            except GnlqueueError as error:
                refused += 1
                self.stderr.write(self.style.ERROR(str(error)))
            else:
                state = done or ("asked to stop" if job.cancel_requested_at else job.get_status_display().lower())
                self.stdout.write(f"job {job.pk}  {job.task_name}: {state}")
        return EXIT_SOME_FAILED if refused else 0

    def _as_json(self, job: Job) -> dict[str, Any]:
        args, kwargs = redacted(job)
        return {
            "id": job.pk,
            "task_name": job.task_name,
            "queue_name": job.queue_name,
            "args": args,
            "kwargs": kwargs,
            "attempts": job.attempts,
            "finished_at": job.finished_at and job.finished_at.isoformat(),
            "last_error": job.last_error,
        }


def _why(error: DatabaseError, alias: str | None) -> str:
    """Return what to say about an error of the database: that it is not migrated, if that is what is wrong."""
    try:
        require_tables(connections[alias_of(alias)])
    except DatabaseNotReady as missing:
        return str(missing)
    except DatabaseError:
        pass  # it cannot be reached, and says so itself
    text = str(error).strip()
    return f"The database did not answer as expected. Is it running, and migrated (manage.py migrate)? It said: {text}"


def _days(text: str) -> timedelta:
    try:
        return timedelta(days=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a number of days.") from None


def _queues_of(jobs: QuerySet[Job]) -> set[str]:
    return set(jobs.order_by().values_list("queue_name", flat=True).distinct())


def _no_dead_jobs(options: dict[str, Any]) -> str:
    of_task = f" of the task {options['task']!r}" if options["task"] else ""
    in_queue = f" in the queue {options['queue']!r}" if options["queue"] else ""
    return f"No dead jobs{of_task}{in_queue}."


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
