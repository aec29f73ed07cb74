"""The operators' commands: the acts of `state` and what is due, and the group `audit`.

Their options are `options`', what they do is in a module of its own for each kind; here the two are put together.
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
    AsJson,
    Customers,
    DryRun,
    ErrorClass,
    EvenTerminal,
    AllPartitions,
    Force,
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

audit_group: Final = typer.Typer(no_args_is_help=True, help="Ask what was done, by whom, and what it came to.")
COMMAND_LINE: Final = "ads_pipeline.typed"
DEMOTE: Final = """Take back what readers have, as if the validator had rejected it.

It is gone for every reader before it shows as failed, and never comes back by itself; "state restore" gives readers
an earlier run again. Spark is started.
"""
PARK: Final = """Have nothing fetched for an account or a query, until it is released.

What is sealed all the same is judged as always. Faults of an account or of a query park it by themselves.
"""
RELEASE: Final = """Let an account or a query that was parked be fetched again.

What failed by the fault that parked it is not tried again by that alone: "state retry" has it tried.
"""
ActionId = Annotated[
    str | None, typer.Option("--act", metavar="ACT_ID", help="List the partitions that this act changed.")
]
Work = Callable[[Settings, ActionArguments], int]


class RecordedCommand(TyperCommand):
    """A command that remembers how it was typed, for the log of acts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[COMMAND_LINE] = shlex.join([*ctx.command_path.split()[1:], *args])
        return super().parse_args(ctx, args)


def add_action_commands(state: typer.Typer) -> None:
    """Put the acts, and what is due, below `state`."""
    _add(state, Action.REQUEUE, _retry)
    for act in (Action.ENQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL, Action.REPROCESS, Action.WITHDRAW):
        _add(state, act, _command(partial(_perform, act=act)))
    state.command("demote", cls=RecordedCommand, help=DEMOTE)(_command(_demote))
    state.command("restore", cls=RecordedCommand)(_restore)

    state.command("due")(_due)
    state.command("park", cls=RecordedCommand, help=PARK)(_parking(due.park))
    state.command("release", cls=RecordedCommand, help=RELEASE)(_parking(due.release))


def _add(state: typer.Typer, act: Action, command: Callable[..., None]) -> None:
    verb = control_actions.ACTION_COMMANDS[act]
    state.command(verb.name, cls=RecordedCommand, help=verb.help)(command)


def _perform(settings: Settings, asked: ActionArguments, *, act: Action) -> int:
    return control_actions.run_action(settings, act, asked)


def _demote(settings: Settings, asked: ActionArguments) -> int:
    from ads_pipeline.cli.actions import demote_and_restore  # noqa: PLC0415

    return demote_and_restore.demote(settings, asked)


def _command(work: Work) -> Callable[..., None]:
    """A command with the options that all acts share."""

    def command(
        context: typer.Context,
        partitions: Partitions = None,
        *,
        reason: Reason,
        customer: Customers = None,
        query: Queries = None,
        since: Since = None,
        until: Until = None,
        everything: AllPartitions = False,
        dry_run: DryRun = False,
        yes: Yes = False,
        operator: Operator = None,
        as_json: AsJson = False,
    ) -> None:
        asked = _asked(
            context,
            reason=reason,
            operator=operator,
            partitions=partitions,
            customer=customer,
            query=query,
            since=since,
            until=until,
            everything=everything,
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        )
        _end(work(read_settings(os.environ), asked))

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
    everything: AllPartitions = False,
    even_terminal: EvenTerminal = False,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    asked = _asked(
        context,
        reason=reason,
        operator=operator,
        partitions=partitions,
        customer=customer,
        query=query,
        since=since,
        until=until,
        error_class=error_class,
        everything=everything,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )
    _end(
        control_actions.run_action(
            read_settings(os.environ), Action.REQUEUE, asked, include_terminal=even_terminal, force=force
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
    everything: AllPartitions = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    operator: Operator = None,
    as_json: AsJson = False,
) -> None:
    """Give readers an earlier run again: the newest that was accepted before the one they have.

    It is judged once more first, by today's rules; what would be rejected today is left as it is. The run that
    readers have is rejected with it. Where readers have none, the newest accepted run is given back. Spark is
    started.
    """
    from ads_pipeline.cli.actions import demote_and_restore  # noqa: PLC0415

    asked = _asked(
        context,
        reason=reason,
        operator=operator,
        partitions=partitions,
        customer=customer,
        query=query,
        since=since,
        until=until,
        everything=everything,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )
    _end(demote_and_restore.restore(read_settings(os.environ), asked, run_id=run))


def _due(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the partitions that are wanted now: those asked for, and failures whose time has come.

    Fresh days come first, then older ones; in each the longest wanted first. Below stands what is parked. Extractors
    may ask for it as often as they like: it changes nothing.
    """
    asked = {"customer": customer, "query": query, "since": since, "until": until}
    due.print_due(read_settings(os.environ), asked, limit=limit, as_json=as_json)


def _parking(work: Callable[[Settings, ActionArguments], None]) -> Callable[..., None]:
    """A command with the options that parking and releasing share."""

    def command(
        context: typer.Context,
        *,
        reason: Reason,
        customer: OneCustomer = None,
        query: OneQuery = None,
        operator: Operator = None,
    ) -> None:
        named = {"customer": customer and [customer], "query": query and [query]}
        work(read_settings(os.environ), _asked(context, reason=reason, operator=operator, **named))

    return command


@audit_group.command("acts")
def _acts(*, act: ActionId = None, after: After = None, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List what operators and the policy of retries did, newest first.

    Who, when, by which words, with which filters and why, and on how many partitions.
    """
    settings = read_settings(os.environ)
    if act is None:
        audit.list_actions(settings, after=after, limit=limit, as_json=as_json)
    else:
        audit.list_action_partitions(settings, act, after=after, limit=limit, as_json=as_json)


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
    """List the failed partitions that are not tried again, and why.

    They are marked, too old, or have failed too often; "state retry --clear-terminal" has them tried all the same.
    """
    settings = read_settings(os.environ)
    wanted = state_filter(settings, customer=customer, query=query, status=None, days=parse_window(since, until))
    audit.list_terminal(settings, wanted, after=after, limit=limit, as_json=as_json)


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
    """List the verdicts on the partitions that match, in the order recorded.

    Each with its outcome, what it did to the partition, and where it rejected a run the class of error and the words.
    """
    settings = read_settings(os.environ)
    wanted = state_filter(settings, customer=customer, query=query, status=None, days=parse_window(since, until))
    audit.list_attempts(settings, wanted, after=after, limit=limit, as_json=as_json)


@audit_group.command("parked")
def _parked(*, as_json: AsJson = False) -> None:
    """List the accounts and queries for which nothing is fetched, since when and why.

    "state release" lets one be fetched again.
    """
    audit.list_parked(read_settings(os.environ), as_json=as_json)


def _asked(context: typer.Context, **typed: Any) -> ActionArguments:
    """The act as it was typed; what was left out stays as `Asked` has it."""
    return ActionArguments(
        command_line=context.meta[COMMAND_LINE], **{name: value for name, value in typed.items() if value is not None}
    )


def _end(code: int) -> None:
    if code:
        raise typer.Exit(code)
