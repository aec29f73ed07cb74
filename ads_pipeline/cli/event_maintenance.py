"""Implements `ads-pipeline events follow` and `events retire`. `events` prints runs and events."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Final

import typer

from ads_pipeline.cli.events import format_seconds
from ads_pipeline.cli.output import OutputConsole, count_of
from ads_pipeline.cli.parsing import find_run, open_event_log
from ads_pipeline.domain.run_snapshots import LagLevel
from ads_pipeline.errors import BadCommand, RunOpen
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import RunHead
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.settings import Settings

ALARM_MESSAGES: Final = {
    LagLevel.HIGH: "the snapshots are {behind} behind the events",
    LagLevel.RESYNC: "the snapshots are {behind} behind the events and are resynchronized",
    LagLevel.NORMAL: "the alarm is over: the snapshots are {behind} behind the events",
}


def follow(settings: Settings, *, once: bool) -> None:
    """Fold new events into the snapshots until Ctrl-C or SIGTERM, or with `once` the present events."""
    with open_event_log(settings) as log:
        follower = Follower(log)
        folded = follower.catch_up(_print_alarm) if once else _follow_until_stopped(follower)
    OutputConsole().print(f"folded {count_of(folded, 'event')} into snapshots")


def retire(
    settings: Settings, run_prefix: str | None, *, ended_before: date | None, needs_confirmation: bool, dry_run: bool
) -> None:
    """Delete the events of one run, or of all runs that ended before a day, after a confirmation.

    Raises RunOpen for a run that has not ended, and BadCommand if there is no terminal for the confirmation.
    """
    if (run_prefix is None) is (ended_before is None):
        raise BadCommand("give either a run or --ended-before, not both")
    if needs_confirmation and not dry_run and not sys.stdin.isatty():
        raise BadCommand(
            "standard input is not a terminal: use --yes to delete, or --dry-run to see what would be deleted"
        )
    with open_event_log(settings) as log:
        Follower(log).catch_up()  # a run counts as ended once its last events are folded
        heads = _find_retirable_runs(log, run_prefix, ended_before)
        description = _describe(heads)
        if dry_run:
            message = f"would delete {description}"
        else:
            if needs_confirmation and heads:
                typer.confirm(f"Delete {description} for good?", abort=True, err=True)
            for head in heads:
                log.retire(head.run_id)
            message = f"deleted {description}"
    OutputConsole().print(message, soft_wrap=True)


def _follow_until_stopped(follower: Follower) -> int:
    """Follow in a thread, so that Ctrl-C and SIGTERM do not interrupt a transaction."""
    stopped = threading.Event()
    with _sigterm_as_interrupt(), ThreadPoolExecutor(max_workers=1) as pool:
        try:
            future = pool.submit(follower.follow, stopped, _print_alarm)
            with suppress(KeyboardInterrupt):
                future.result()
        finally:
            stopped.set()
        return future.result()


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _print_alarm(level: LagLevel, lag: timedelta) -> None:
    message = ALARM_MESSAGES[level].format(behind=format_seconds(lag))
    print(f"{level}: {message}", file=sys.stderr, flush=True)  # noqa: T201 - standard output is the program's


def _find_retirable_runs(log: EventLog, run_prefix: str | None, day: date | None) -> list[RunHead]:
    """Return the runs to retire. Raises RunOpen if the named run has not ended."""
    if day is not None:
        return log.list_retirable_runs(datetime(day.year, day.month, day.day, tzinfo=UTC))
    head = find_run(log, run_prefix or "")
    if head.retired_at is not None:
        return []
    status = log.get_current_snapshot(head.run_id).status
    if not status.is_terminal:
        raise RunOpen(head.run_id, str(status))
    return [head]


def _describe(heads: Sequence[RunHead]) -> str:
    if not heads:
        return "nothing: no such run has ended and still has events"
    events = count_of(sum(head.last_seq for head in heads), "event")
    return f"{events} of " + (count_of(len(heads), "run") if len(heads) > 1 else f"run {heads[0].run_id}")
