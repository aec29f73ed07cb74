"""Builds runs and runs commands for tests of `ads-pipeline events`."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from ads_pipeline.domain.run_events import Event
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.testing.event_strategies import make_event
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.operations.cli.running import MAIN_SCRIPT, CommandLine

RUN, OTHER = "3f2a91bc-1111-4111-8111-111111111111", "3f2a91cd-2222-4222-8222-222222222222"
STEP = "google_ads/1180250317/campaign_daily/2026-03-02"
HOSTILE = "\x1b[31m[red]\nforged :smile:\u2028\u202e\x7f"
HINT = '; "ads-pipeline events runs" lists the runs'


def make_run(run_id: str = RUN, *, ended: bool = True) -> list[Event]:
    """Return the events of a run with a succeeded, a failed and a running step."""
    return [
        make_event(run_id, "RunStarted"),
        *(make_event(run_id, "StepStarted", step) for step in (STEP, "second", "third")),
        make_event(run_id, "StepCompleted", "third", event_data={"rows": 3}),
        make_event(run_id, "StepFailed", STEP, event_data={"why": "cost_micros must be at least 0", "rows": 1}),
        *([make_event(run_id, "RunFailed")] if ended else []),
    ]


def append_at(url: str, instant: datetime, events: list[Event]) -> None:
    """Append the events with this instant as the time of the store."""
    with open_part(EventLog, url, clock=lambda: instant) as log:
        log.append_many(events)


@contextmanager
def running(cli: CommandLine, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in a process until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN_SCRIPT, *arguments],
        env=cli.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()
