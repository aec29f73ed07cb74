"""Builds the request of an operator's command, which is logged with the change: who, why, and the command line."""

import getpass
import shlex
import uuid
from contextvars import ContextVar
from typing import Any, Final

from typer.core import TyperCommand

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.ledger.sql.ledger_values import ActionRequest

COMMAND_LINE: Final = ContextVar[str]("command_line")  # as it was typed


class RecordedCommand(TyperCommand):
    """A command that keeps its command line for the log of actions."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        COMMAND_LINE.set(shlex.join([*ctx.command_path.split()[1:], *args]))
        return super().parse_args(ctx, args)


def build_request(*, reason: str, operator: str | None, filters: str) -> ActionRequest:
    """Build the request with a new id. Raises BadCommand when the reason or the operator is empty."""
    if not reason.strip():
        raise BadCommand("--reason is empty: give the reason; it is logged with the action")
    return ActionRequest(
        action_id=str(uuid.uuid4()),
        operator=_operator_name(operator),
        command=COMMAND_LINE.get(),
        reason=reason,
        filters=filters,
    )


def _operator_name(given: str | None) -> str:
    if given is not None:
        if not given.strip():
            raise BadCommand("--operator is empty: give the name of the person who requests the action")
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:  # a container may run under a user id without a name
        raise BadCommand("the login name is unknown: give your name by --operator") from error
