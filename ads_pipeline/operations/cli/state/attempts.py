"""Lists verdicts for `state why --attempts`, and formats one for people and for JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import Attempt, StateFilter
from ads_pipeline.operations.cli.command_line.options import Filters, Page
from ads_pipeline.operations.cli.command_line.output import cell, fields_of, format_instant, grid_of, write_results


def list_attempts(
    ledger: LedgerReader, selection: StateFilter, filters: Filters, page: Page, *, as_json: bool
) -> None:
    """Write the verdicts on the selected partitions, in the order recorded. `filters` is how they were selected."""
    start = None if page.after is None else _parse_attempt(page.after)
    found = ledger.runs.page_of_attempts(selection, after=start, limit=page.limit + 1)
    shown, more = page.cut(found, lambda each: f"{each.verdict.run.key}/{each.attempt_no}")
    notes = [filters.count(len(shown), "attempt"), *more]
    write_results(map(attempt_fields, shown), _attempt_blocks(shown), notes, as_json=as_json)


def describe_verdict(attempt: Attempt) -> str:
    """Outcome, effect, time and reason, on one line that does not repeat the run."""
    verdict = attempt.verdict
    effect = "" if str(attempt.effect) == str(verdict.outcome) else f", {attempt.effect.replace('_', ' ')}"
    validation = f" ({verdict.validation_id})" if verdict.validation_id else ""
    reason = f": {verdict.reason.error_class}: {verdict.reason.text}" if verdict.reason else ""
    return f"{verdict.outcome}{effect}{validation} at {format_instant(attempt.judged_at)}{reason}"


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """The fields of an attempt and of its verdict, for JSON."""
    verdict = attempt.verdict
    return fields_of(
        verdict,
        reason=verdict.reason and asdict(verdict.reason),
        error_class=verdict.error_class,
        error_message=verdict.error_message,
        rows_failed=verdict.rows_failed,
        attempt_no=attempt.attempt_no,
        ordinal=attempt.ordinal,
        effect=attempt.effect,
        judged_at=attempt.judged_at,
    )


def _parse_attempt(word: str) -> tuple[PartitionKey, int]:
    """Parse source/customer_id/query_name/YYYY-MM-DD/number."""
    partition, _, number = word.rpartition("/")
    if not (number.isascii() and number.isdigit()):
        raise BadName("attempt", word, "an attempt is source/customer_id/query_name/YYYY-MM-DD/number")
    return parse_key(partition), int(number)


def _attempt_blocks(shown: Iterable[Attempt]) -> Iterator[RenderableType]:
    for key, listed in groupby(shown, lambda each: each.verdict.run.key):
        yield cell(key, style="bold")
        verdicts = ((each.attempt_no, f"{each.verdict.run.run_id} {describe_verdict(each)}") for each in listed)
        yield from (grid_of(verdicts, justify="right"), Text(""))
