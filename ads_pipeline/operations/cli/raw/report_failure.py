"""The command `raw report-failure`, for extractors that run outside Dagster."""

import uuid
from datetime import UTC, datetime
from typing import Annotated

import typer

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES
from ads_pipeline.domain.quoting import quoted, suggest
from ads_pipeline.operations.cli.command_line.options import AsJson
from ads_pipeline.operations.cli.command_line.output import fields_of, write_results
from ads_pipeline.operations.cli.command_line.parsing import open_ledger_for_writing
from ads_pipeline.operations.cli.state.forecast import describe_forecast, forecast_fields
from ads_pipeline.operations.cli.state.selection import parse_own, require_possible
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.settings.environment import Settings

INSTANT = "2026-03-01T04:05:06Z"
Partition = Annotated[str, typer.Argument(metavar="PARTITION", help="customer/query/YYYY-MM-DD.")]
ErrorClass = Annotated[str, typer.Option("--error-class", metavar="NAME", help="The kind of the error.")]
Message = Annotated[
    str,
    typer.Option(metavar="TEXT", help="What went wrong. It is stored, escaped and cut at 2,000 characters."),
]
WaitUntil = Annotated[
    str | None, typer.Option(metavar="INSTANT", help=f"No retry before this time, such as {INSTANT}.")
]
FailedAt = Annotated[str | None, typer.Option("--at", metavar="INSTANT", help="When it failed. Default: now.")]
FailureId = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Names this attempt, so that a repeated report changes nothing. Default: the time of --at, or a new id.",
    ),
]


def report_failure(
    settings: Settings,
    partition: Partition,
    *,
    error_class: ErrorClass,
    message: Message,
    wait_until: WaitUntil = None,
    at: FailedAt = None,
    failure_id: FailureId = None,
    as_json: AsJson = False,
) -> None:
    """Report a fetch that failed before a run was sealed.

    The failure counts for the retry policy: the partition is due again after a delay, or parked when its account or
    query has to be repaired. It is no attempt at a verdict. Do not put secrets or report rows into the message.
    """
    key = parse_own(partition, settings)
    if not message.strip():
        raise BadCommand("--message is empty: give what the source answered")
    failed_at = _parse_instant("--at", at)
    failure = FailedFetch(
        key=key,
        error_class=error_class,
        error_message=message,
        wait_until=_parse_instant("--wait-until", wait_until),
        failed_at=failed_at,
        failure_id=failure_id or (f"at-{failed_at:%Y%m%dT%H%M%S.%fZ}" if failed_at else str(uuid.uuid4())),
    )
    with open_ledger_for_writing(settings) as ledger:
        require_possible(key, settings, DayRules.read(ledger, settings, now=datetime.now(UTC)))
        recorded = key in ledger.failed_fetches.record([failure], settings.retry_policy)
        forecast = ledger.retry_queue.forecast([ledger.states.get(key)], settings.retry_policy)[key]
    notes = [f"{'recorded' if recorded else 'already recorded:'} failure {failure.failure_id} of {key}"]
    notes += [f"{label}: {text}" for label, text in describe_forecast(forecast).items()]
    if error_class not in ERROR_POLICIES:
        hint = suggest(error_class, sorted(ERROR_POLICIES))
        notes.append(f"{error_class} is not a known class, so it is retried; {hint}")
    fields = fields_of(key, failure_id=failure.failure_id, recorded=recorded) | forecast_fields(forecast)
    write_results([fields], (), notes, as_json=as_json)


def _parse_instant(option: str, text: str | None) -> datetime | None:
    """Parse ISO 8601. Raises BadCommand without a UTC offset: a local time would be wrong by hours."""
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise BadCommand(f"{option} {quoted(text)}: write an instant with its UTC offset, such as {INSTANT}")
    return instant.astimezone(UTC)
