"""Loads a group of commands when one of them is used, so that the help of the program needs no database library."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import typer

from ads_pipeline.operations.cli.command_line.options import command

# The sentence stands in the help of the program and of the group.
GROUPS: Final[Mapping[str, str]] = {
    "state": "Show which partitions are safe to read, and change their state.",
    "raw": "List raw runs, and verify them against their seals.",
    "warehouse": "Query the warehouse, and list loads and missing days.",
    "events": "Show the events of runs.",
    "ledger": "Copy the ledger, print its digest, set rights of roles.",
    "audit": "List control actions, verdicts and their results.",
    "accounts": "List and discover the accounts that are fetched.",
    "queries": "List, check and add the queries of the query file.",
}


@cache
def load_group(name: str, kind: type[Any]) -> Any:
    """The group with this name, as Click's class of this kind."""
    # Typer gives a group the settings of the program that contains it.
    program = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    program.add_typer(_import_group(name), name=name, help=GROUPS[name], cls=kind, no_args_is_help=True)
    program.callback()(_do_nothing)
    return typer.main.get_group(program).commands[name]


def _do_nothing() -> None: ...


def _import_group(name: str) -> typer.Typer:  # noqa: PLR0911 - one branch for each group
    match name:
        case "state":
            from ads_pipeline.operations.cli.state.actions import add_action_commands  # noqa: PLC0415
            from ads_pipeline.operations.cli.state.listing import state  # noqa: PLC0415
            from ads_pipeline.operations.cli.state.why import print_report  # noqa: PLC0415

            command(state, "why")(print_report)
            add_action_commands(state)
            return state
        case "raw":
            from ads_pipeline.operations.cli.raw.report_failure import report_failure  # noqa: PLC0415
            from ads_pipeline.operations.cli.raw.runs import raw_runs  # noqa: PLC0415

            command(raw_runs, "report-failure")(report_failure)
            return raw_runs
        case "warehouse":
            from ads_pipeline.operations.cli.warehouse.gaps import list_gaps  # noqa: PLC0415
            from ads_pipeline.operations.cli.warehouse.rows import warehouse  # noqa: PLC0415

            command(warehouse, "gaps")(list_gaps)
            return warehouse
        case "events":
            from ads_pipeline.operations.cli.deployment.events_commands import run_events  # noqa: PLC0415

            return run_events
        case "ledger":
            from ads_pipeline.operations.cli.deployment.ledger_commands import ledger  # noqa: PLC0415

            return ledger
        case "audit":
            from ads_pipeline.operations.cli.state.audit import audit  # noqa: PLC0415

            return audit
        case "accounts":
            from ads_pipeline.operations.cli.google_ads.accounts_commands import accounts  # noqa: PLC0415

            return accounts
        case _:
            from ads_pipeline.operations.cli.google_ads.queries_commands import queries  # noqa: PLC0415

            return queries
