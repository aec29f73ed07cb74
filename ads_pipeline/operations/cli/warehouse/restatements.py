"""The command `warehouse restatements`: each accepted run beside the accepted run that it replaced, in figures."""

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from ads_pipeline.domain.measures import PartitionRestatement
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters
from ads_pipeline.operations.cli.command_line.output import Column, fields_of, format_minute, write_list
from ads_pipeline.operations.cli.command_line.parsing import day_windows, open_ledger
from ads_pipeline.settings.environment import Settings

OnlyChanged = Annotated[bool, typer.Option("--changed", help="Only restatements that changed a figure.")]
MICROS: Final = 1_000_000
COLUMNS: Final = (
    Column("customer", "customer_id"),
    Column("query", "query_name", wrap=True),
    Column("day", "logical_date"),
    Column("restated", lambda row: format_minute(row["judged_at"]), from_width=100),
    Column("rows", lambda row: _change(row, "rows")),
    Column("cost", lambda row: _change(row, "cost")),
    Column("conversions", lambda row: _change(row, "conversions")),
    Column("value", lambda row: _change(row, "conversions_value"), from_width=120),
)


def list_restatements(
    settings: Settings, filters: Filters, *, changed: OnlyChanged = False, as_json: AsJson = False
) -> None:
    """List the accepted runs that replaced an accepted run, with rows, cost and conversions before and after.

    Costs are in units of the account's currency. Figures that the contract does not have are left empty.
    """
    windows = list(day_windows(settings, filters.select(settings)))
    with open_ledger(settings) as ledger:
        found = [each for window in windows for each in ledger.restatements.find(window)]
    rows = [_fields(each) for each in found if not changed or each.before.differs(each.after)]
    write_list(rows, COLUMNS, [filters.count(len(rows), "restatement")], as_json=as_json)


def _fields(restated: PartitionRestatement) -> dict[str, Any]:
    before, after = dict(_figures(restated, "before")), dict(_figures(restated, "after"))
    return fields_of(
        restated.key, attempt_no=restated.attempt_no, judged_at=restated.judged_at, before=before, after=after
    )


def _figures(restated: PartitionRestatement, side: str) -> Iterator[tuple[str, Any]]:
    figures = restated.before if side == "before" else restated.after
    yield "run_id", figures.run_id
    yield "rows", figures.rows
    yield "cost", None if figures.measures.cost_micros is None else figures.measures.cost_micros / MICROS
    yield "conversions", figures.measures.conversions
    yield "conversions_value", figures.measures.conversions_value


def _change(row: Any, name: str) -> str | None:
    before, after = row["before"][name], row["after"][name]
    if before is None or after is None:
        return None
    return f"{before:,.6g}" if before == after else f"{before:,.6g} → {after:,.6g}"
