"""Keeps the snapshots of runs up to their events, and deletes the events of runs that have ended.

What the events say is shown by `events`.
"""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Final

import typer

from ads_pipeline.cli.events import seconds
from ads_pipeline.cli.output import Paper, counted
from ads_pipeline.cli.parsing import event_log_of, run_named
from ads_pipeline.domain.run_snapshots import Lag
from ads_pipeline.errors import BadCommand, RunOpen
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import RunHead
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.settings import Settings

ALARMS: Final = {
    Lag.HIGH: "the snapshots are {behind} behind the events",
    Lag.RESYNC: "the snapshots are {behind} behind the events, and are made whole again",
    Lag.NORMAL: "the alarm is over, the snapshots are {behind} behind the events",
}


def follow(settings: Settings, *, once: bool) -> None:
    """Project what is appended until told to stop, or what is there now; say how much that was."""
    with event_log_of(settings) as log:
        follower = Follower(log)
        projected = follower.catch_up(_alarm) if once else _until_stopped(follower)
    Paper().print(f"projected {counted(projected, 'event')}")


def retire(settings: Settings, word: str | None, *, ended_before: date | None, asks: bool, only_says: bool) -> None:
    """Delete the events of a run, or of all that ended before a day, if whoever is asked agrees."""
    if (word is None) is (ended_before is None):
        raise BadCommand("name either a run or --ended-before, and not both")
    if asks and not only_says and not sys.stdin.isatty():
        raise BadCommand("nobody can be asked here; --yes deletes, --dry-run says what would be deleted")
    with event_log_of(settings) as log:
        Follower(log).catch_up()  # only snapshots that are up to their events say which runs have ended
        heads = _meant(log, word, ended_before)
        what = _counted(heads)
        if only_says:
            said = f"would delete {what}"
        else:
            if asks and heads:
                typer.confirm(f"Delete {what} for ever?", abort=True, err=True)
            for head in heads:
                log.retire(head.run_id)
            said = f"deleted {what}"
    Paper().print(said, soft_wrap=True)


def _until_stopped(follower: Follower) -> int:
    """Follow in a thread, so that Ctrl-C does not break into a transaction; SIGTERM does the same."""
    stopped = threading.Event()
    with _terminable(), ThreadPoolExecutor(max_workers=1) as pool:
        try:
            followed = pool.submit(follower.follow, stopped, _alarm)
            with suppress(KeyboardInterrupt):
                followed.result()
        finally:
            stopped.set()
        return followed.result()


@contextmanager
def _terminable() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _alarm(lag: Lag, behind: timedelta) -> None:
    told = ALARMS[lag].format(behind=seconds(behind))
    print(f"{lag}: {told}", file=sys.stderr, flush=True)  # noqa: T201 - standard output is the program's


def _meant(log: EventLog, word: str | None, day: date | None) -> list[RunHead]:
    """The runs whose events are to go; RunOpen for one that was named and has not ended."""
    if day is not None:
        return log.ended_before(datetime(day.year, day.month, day.day, tzinfo=UTC))
    head = run_named(log, word or "")
    if head.retired_at is not None:
        return []
    status = log.open_snapshot(head.run_id).status
    if not status.terminal:
        raise RunOpen(head.run_id, str(status))
    return [head]


def _counted(heads: Sequence[RunHead]) -> str:
    if not heads:
        return "nothing: no such run has ended and still has its events"
    events = counted(sum(head.last_seq for head in heads), "event")
    return f"{events} of " + (counted(len(heads), "run") if len(heads) > 1 else f"run {heads[0].run_id}")
