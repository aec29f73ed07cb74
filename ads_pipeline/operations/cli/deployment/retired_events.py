"""The command `ledger retire-events`: deletes the events of ended runs for good, with the operator and the reason."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Annotated

import typer

from ads_pipeline.domain.errors import BadCommand, RunOpen
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import RunHead
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.operations.cli.command_line.logged_commands import build_request
from ads_pipeline.operations.cli.command_line.options import (
    DATE_FORMAT,
    DryRun,
    Operator,
    OptionalRunName,
    Reason,
    Yes,
)
from ads_pipeline.operations.cli.command_line.output import OutputConsole
from ads_pipeline.operations.cli.command_line.parsing import find_run, open_ledger_for_writing, parse_day
from ads_pipeline.settings.environment import Settings


def retire_events(
    settings: Settings,
    run: OptionalRunName = None,
    *,
    reason: Reason,
    ended_before: Annotated[
        str | None,
        typer.Option(metavar=DATE_FORMAT, help="All runs that ended before the start of this day, in UTC."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    operator: Operator = None,
) -> None:
    """Delete the events of ended runs for good.

    The run's snapshot stays, and no event can be appended to the run again. All snapshots are brought up to date
    first, because they show which runs have ended. The deletion is logged with the operator and the reason, for each
    run in the same transaction; "ads-pipeline audit" lists it.
    """
    request = build_request(reason=reason, operator=operator, filters="")
    day = None if ended_before is None else parse_day(ended_before)
    if (run is None) is (ended_before is None):
        raise BadCommand("give either a run or --ended-before, not both")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise BadCommand(
            "standard input is not a terminal: use --yes to delete, or --dry-run to see what would be deleted"
        )
    with open_ledger_for_writing(settings) as ledger:
        log = ledger.events
        Follower(log).catch_up()  # a run counts as ended once its last events are folded
        heads = _find_retirable_runs(log, run, day)
        none = f"no run that ended before {day} has events" if day else f"run {run} has no events any more"
        description = _describe(heads) or f"nothing: {none}"
        if dry_run:
            message = f"would delete {description}"
        else:
            if heads and not yes:
                typer.confirm(f"Delete {description} for good?", abort=True, err=True)
            for number, head in enumerate(heads, 1):
                action_id = request.action_id if len(heads) == 1 else f"{request.action_id}.{number}"
                log.retire(
                    head.engine_run_id, replace(request, action_id=action_id, filters=f"run {head.engine_run_id}")
                )
            message = f"deleted {description}" + (f"\naction {request.action_id}" if heads else "")
    OutputConsole().print(message, soft_wrap=True)


def _find_retirable_runs(log: EventLog, run_prefix: str | None, day: date | None) -> list[RunHead]:
    """Return the runs to retire. Raises RunOpen if the named run has not ended."""
    if day is not None:
        return log.list_retirable_runs(datetime(day.year, day.month, day.day, tzinfo=UTC))
    head = find_run(log, run_prefix or "")
    if head.retired_at is not None:
        return []
    status = log.get_current_snapshot(head.engine_run_id).status
    if not status.is_terminal:
        raise RunOpen(head.engine_run_id, str(status))
    return [head]


def _describe(heads: Sequence[RunHead]) -> str:
    events = count_of(sum(head.last_seq for head in heads), "event")
    runs = f"run {heads[0].engine_run_id}" if len(heads) == 1 else count_of(len(heads), "run")
    return f"{events} of {runs}" if heads else ""
