"""Declares the operators' commands: the control actions of `state`, `state due`, and the group `audit`.

`options` declares the options. The other modules of this folder, `due` and `audit` execute the commands.
"""

import os
import shlex
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from ads_pipeline.cli import audit, due
from ads_pipeline.cli.actions import control_actions
from ads_pipeline.cli.actions.arguments import ActionArguments
from ads_pipeline.cli.options import (
    After,
    AllPartitions,
    AsJson,
    Customers,
    DryRun,
    ErrorClass,
    Force,
    IncludeTerminal,
    Limit,
    OneCustomer,
    OneQuery,
    Operator,
    Partitions,
    Queries,
    Reason,
    RunId,
    Since,
    Until,
    Yes,
)
from ads_pipeline.cli.parsing import parse_window
from ads_pipeline.cli.states import state_filter
from ads_pipeline.domain.transitions import Action
from ads_pipeline.settings import Settings, read_settings

audit_group: Final = typer.Typer(no_args_is_help=True, help="List control actions, verdicts and their results.")
COMMAND_LINE: Final = "ads_pipeline.command_line"
DEMOTE: Final = """Reject the runs that readers see, as if the validator had rejected them.

The rows disappear for every reader before the status becomes failed. "state restore" publishes an earlier run again.
Starts Spark.
"""
PARK: Final = """Stop fetching an account or a query until it is released.

Sealed runs are judged as usual. Errors of an account or of a query park it automatically.
"""
RELEASE: Final = """Resume fetching a parked account or query.

Partitions that failed because of it are not retried automatically; use "state retry".
"""
ActionId = Annotated[
    str | None, typer.Option("--action", metavar="ACTION_ID", help="List the partitions that this action changed.")
]
ActionFunction = Callable[[Settings, ActionArguments], int]


class RecordedCommand(TyperCommand):
    """A command that keeps its command line for the log of actions."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[COMMAND_LINE] = shlex.join([*ctx.command_path.split()[1:], *args])
        return super().parse_args(ctx, args)


def add_action_commands(state: typer.Typer) -> None:
    """Add the control actions and `due` to the group `state`."""
    _add(state, Action.REQUEUE, _retry)
    for action in (Action.ENQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL, Action.REPROCESS, Action.WITHDRAW):
        _add(state, action, _build_command(partial(_run_action, action=action)))
    state.command("demote", cls=RecordedCommand, help=DEMOTE)(_build_command(_demote))
    state.command("restore", cls=RecordedCommand)(_restore)

    state.command("due")(_due)
    state.command("park", cls=RecordedCommand, help=PARK)(_build_parking_command(due.park))
    state.command("release", cls=RecordedCommand, help=RELEASE)(_build_parking_command(due.release))


def _add(state: typer.Typer, action: Action, command: Callable[..., None]) -> None:
    declared = control_actions.ACTION_COMMANDS[action]
    state.command(declared.name, cls=RecordedCommand, help=declared.help)(command)


def _run_action(settings: Settings, arguments: ActionArguments, *, action: Action) -> int:
    return control_actions.run_action(settings, action, arguments)


def _demote(settings: Settings, arguments: ActionArguments) -> int:
    from ads_pipeline.cli.actions import demote_and_restore  # noqa: PLC0415

    return demote_and_restore.demote(settings, arguments)


def _build_command(function: ActionFunction) -> Callable[..., None]:
    """A command with the options that all actions share."""

    def command(
        context: typer.Context,
        partitions: Partitions = None,
        *,
        reason: Reason,
        customer: Customers = None,
        query: Queries = None,
        since: Since = None,
        until: Until = None,
        all_partitions: AllPartitions = False,
        dry_run: DryRun = False,
        yes: Yes = False,
        operator: Operator = None,
        as_json: AsJson = False,
    ) -> None:
        arguments = _build_arguments(
            context,
            reason=reason,
            operator=operator,
            partitions=partitions,
            customer=customer,
            query=query,
            since=since,
            until=until,
            all_partitions=all_partitions,
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        )
        _exit(function(read_settings(os.environ), arguments))

    return command


def _retry(
    context: typer.Context,
    partitions: Partitions = None,
    *,
    reason: Reason,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    error_class: ErrorClass = None,
    all_partitions: AllPartitions = False,
    include_terminal: IncludeTerminal = False,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    arguments = _build_arguments(
        context,
        reason=reason,
        operator=operator,
        partitions=partitions,
        customer=customer,
        query=query,
        since=since,
        until=until,
        error_class=error_class,
        all_partitions=all_partitions,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )
    settings = read_settings(os.environ)
    _exit(
        control_actions.run_action(
            settings, Action.REQUEUE, arguments, include_terminal=include_terminal, force=force
        )
    )


def _restore(
    context: typer.Context,
    partitions: Partitions = None,
    *,
    reason: Reason,
    run: RunId = None,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    all_partitions: AllPartitions = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """Publish an earlier run again: the newest accepted run before the current one.

    The validator judges that run again first. If it rejects the run now, the partition stays unchanged. Otherwise
    the current run is rejected. Without a current run, the newest accepted run is published. Starts Spark.
    """
    from ads_pipeline.cli.actions import demote_and_restore  # noqa: PLC0415

    arguments = _build_arguments(
        context,
        reason=reason,
        operator=operator,
        partitions=partitions,
        customer=customer,
        query=query,
        since=since,
        until=until,
        all_partitions=all_partitions,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )
    _exit(demote_and_restore.restore(read_settings(os.environ), arguments, run_id=run))


def _due(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the partitions that need a new run now: open requests, and failures whose retry is due.

    Fresh days come first, then backfills; within each, the longest due first. Parked accounts and queries follow.
    The command changes nothing, so extractors may poll it.
    """
    filters = {"customer": customer, "query": query, "since": since, "until": until}
    due.print_due(read_settings(os.environ), filters, limit=limit, as_json=as_json)


def _build_parking_command(function: Callable[[Settings, ActionArguments], None]) -> Callable[..., None]:
    def command(
        context: typer.Context,
        *,
        reason: Reason,
        customer: OneCustomer = None,
        query: OneQuery = None,
        operator: Operator = None,
    ) -> None:
        options = {"customer": customer and [customer], "query": query and [query]}
        arguments = _build_arguments(context, reason=reason, operator=operator, **options)
        function(read_settings(os.environ), arguments)

    return command


@audit_group.command("actions")
def _actions(*, action: ActionId = None, after: After = None, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List the control actions of operators and of the retry policy, newest first.

    Each with its time, operator, command, filters, reason and number of changed partitions.
    """
    settings = read_settings(os.environ)
    if action is None:
        audit.list_actions(settings, after=after, limit=limit, as_json=as_json)
    else:
        audit.list_action_partitions(settings, action, after=after, limit=limit, as_json=as_json)


@audit_group.command("terminal")
def _terminal(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the failed partitions that are terminal, with the reason.

    They are marked, too old, or have failed too often. "state retry --clear-terminal" retries them.
    """
    settings = read_settings(os.environ)
    selection = state_filter(settings, customer=customer, query=query, status=None, days=parse_window(since, until))
    audit.list_terminal(settings, selection, after=after, limit=limit, as_json=as_json)


@audit_group.command("attempts")
def _attempts(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the verdicts on the matching partitions, in the order recorded.

    Each with its outcome and its effect on the partition; a rejection also with its error class and message.
    """
    settings = read_settings(os.environ)
    selection = state_filter(settings, customer=customer, query=query, status=None, days=parse_window(since, until))
    audit.list_attempts(settings, selection, after=after, limit=limit, as_json=as_json)


@audit_group.command("parked")
def _parked(*, as_json: AsJson = False) -> None:
    """List the parked accounts and queries, with time and reason.

    "state release" resumes fetching.
    """
    audit.list_parked(read_settings(os.environ), as_json=as_json)


def _build_arguments(context: typer.Context, **options: Any) -> ActionArguments:
    """Build the arguments; an option that was not given keeps its default."""
    given = {name: value for name, value in options.items() if value is not None}
    return ActionArguments(command_line=context.meta[COMMAND_LINE], **given)


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(code)
