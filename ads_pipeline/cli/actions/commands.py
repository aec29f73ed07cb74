"""Declares the `state` commands that change partitions, accounts and queries.

The other modules of this folder and `due` execute them.
"""

import os
import shlex
from collections.abc import Callable, Container
from functools import partial
from inspect import Signature, signature
from typing import Any, Final

import typer
from typer.core import TyperCommand

from ads_pipeline.cli import due
from ads_pipeline.cli.actions import control_actions
from ads_pipeline.cli.actions.arguments import ActionArguments
from ads_pipeline.cli.options import OneCustomer, OneQuery, Operator, Reason
from ads_pipeline.domain.transitions import Action
from ads_pipeline.settings import Settings, read_settings

COMMAND_LINE: Final = "ads_pipeline.command_line"
RETRY_OPTIONS: Final = frozenset({"error_class", "clear_terminal", "force"})
RESTORE_OPTIONS: Final = frozenset({"run_id"})
NOT_SHARED: Final = RETRY_OPTIONS | RESTORE_OPTIONS | {"command_line"}
DEMOTE: Final = """Reject the runs that readers see, as if the validator had rejected them.

The rows disappear for every reader before the status becomes failed. "state restore" publishes an earlier run again.
Starts Spark.
"""
RESTORE: Final = """Publish an earlier run again: the newest accepted run before the current one.

The validator judges that run again first. If it rejects the run now, the partition stays unchanged. Otherwise
the current run is rejected. Without a current run, the newest accepted run is published. Starts Spark.
"""
PARK: Final = """Stop fetching an account or a query until it is released.

Sealed runs are judged as usual. Errors of an account or of a query park it automatically.
"""
RELEASE: Final = """Resume fetching a parked account or query.

Partitions that failed because of it are not retried automatically; use "state retry".
"""


class RecordedCommand(TyperCommand):
    """A command that keeps its command line for the log of actions."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[COMMAND_LINE] = shlex.join([*ctx.command_path.split()[1:], *args])
        return super().parse_args(ctx, args)


def add_action_commands(state: typer.Typer) -> None:
    """Add the control actions and `due` to the group `state`."""
    for action, declared in control_actions.ACTION_COMMANDS.items():
        options = RETRY_OPTIONS if action is Action.REQUEUE else ()
        execute = partial(control_actions.run_action, action=action)
        _add_action(state, declared.name, execute, help_text=declared.help, own_options=options)
    _add_action(state, "demote", _demote, help_text=DEMOTE)
    _add_action(state, "restore", _restore, help_text=RESTORE, own_options=RESTORE_OPTIONS)
    state.command("due")(due.list_due)
    _add_parking(state, "park", due.park, help_text=PARK)
    _add_parking(state, "release", due.release, help_text=RELEASE)


def _add_action(
    state: typer.Typer,
    name: str,
    execute: Callable[[Settings, ActionArguments], int],
    *,
    help_text: str,
    own_options: Container[str] = (),
) -> None:
    """Add a command with the shared fields of ActionArguments as its options, and with its own ones."""

    def command(context: typer.Context, **options: Any) -> None:
        arguments = ActionArguments(command_line=context.meta[COMMAND_LINE], **options)
        code = execute(read_settings(os.environ), arguments)
        if code:
            raise typer.Exit(code)

    context, _options = signature(command).parameters.values()
    fields = signature(ActionArguments).parameters.values()
    chosen = [field for field in fields if field.name not in NOT_SHARED or field.name in own_options]
    vars(command)["__signature__"] = Signature(
        [context.replace(kind=context.KEYWORD_ONLY), *chosen]
    )  # Typer reads it
    state.command(name, cls=RecordedCommand, help=help_text)(command)


def _demote(settings: Settings, arguments: ActionArguments) -> int:
    from ads_pipeline.cli.actions import demote_and_restore  # noqa: PLC0415 - it loads Spark's client

    return demote_and_restore.demote(settings, arguments)


def _restore(settings: Settings, arguments: ActionArguments) -> int:
    from ads_pipeline.cli.actions import demote_and_restore  # noqa: PLC0415 - as above

    return demote_and_restore.restore(settings, arguments)


def _add_parking(
    state: typer.Typer, name: str, execute: Callable[[Settings, ActionArguments], None], *, help_text: str
) -> None:
    @state.command(name, cls=RecordedCommand, help=help_text)
    def command(
        context: typer.Context,
        *,
        reason: Reason,
        customer: OneCustomer = None,
        query: OneQuery = None,
        operator: Operator = None,
    ) -> None:
        arguments = ActionArguments(
            command_line=context.meta[COMMAND_LINE],
            reason=reason,
            customer=[customer] if customer else None,
            query=[query] if query else None,
            operator=operator,
        )
        execute(read_settings(os.environ), arguments)
