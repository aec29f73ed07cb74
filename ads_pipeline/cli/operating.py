"""The operators' commands: the acts of `state` and what is due, and the group `audit`.

Their options are `options`', what they do is in a module of its own for each kind; here the two are put together.
"""

import os
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import typer
from typer.core import TyperCommand

from ads_pipeline.cli import acts
from ads_pipeline.cli.asked import Asked
from ads_pipeline.cli.options import (
    AsJson,
    Customers,
    DryRun,
    ErrorClass,
    EvenTerminal,
    Everything,
    Force,
    Operator,
    Partitions,
    Queries,
    Reason,
    RunId,
    Since,
    Until,
    Yes,
)
from ads_pipeline.settings import Settings, read_settings
from ads_pipeline.transitions import Act

TYPED: Final = "ads_pipeline.typed"
DEMOTE: Final = """Take back what readers have, as if the validator had rejected it.

It is gone for every reader before it shows as failed, and never comes back by itself; "state restore" gives readers
an earlier run again. Spark is started.
"""
Work = Callable[[Settings, Asked], int]


class Typed(TyperCommand):
    """A command that remembers how it was typed, for the log of acts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = shlex.join([*ctx.command_path.split()[1:], *args])
        return super().parse_args(ctx, args)


def add_acts(state: typer.Typer) -> None:
    """Put the acts on partitions below `state`."""
    _add(state, Act.REQUEUE, _retry)
    for act in (Act.MARK_TERMINAL, Act.CLEAR_TERMINAL, Act.REPROCESS, Act.WITHDRAW):
        _add(state, act, _command(partial(_perform, act=act)))
    state.command("demote", cls=Typed, help=DEMOTE)(_command(_demote))
    state.command("restore", cls=Typed)(_restore)


def _add(state: typer.Typer, act: Act, command: Callable[..., None]) -> None:
    verb = acts.VERBS[act]
    state.command(verb.name, cls=Typed, help=verb.help)(command)


def _perform(settings: Settings, asked: Asked, *, act: Act) -> int:
    return acts.perform(settings, act, asked)


def _demote(settings: Settings, asked: Asked) -> int:
    from ads_pipeline.cli import overrule  # noqa: PLC0415 - Spark's client comes with it

    return overrule.demote(settings, asked)


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
        everything: Everything = False,
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
    everything: Everything = False,
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
    _end(acts.perform(read_settings(os.environ), Act.REQUEUE, asked, even_terminal=even_terminal, force=force))


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
    everything: Everything = False,
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
    from ads_pipeline.cli import overrule  # noqa: PLC0415 - Spark's client comes with it

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
    _end(overrule.restore(read_settings(os.environ), asked, run_id=run))


def _asked(context: typer.Context, **typed: Any) -> Asked:
    """The act as it was typed; what was left out stays as `Asked` has it."""
    return Asked(words=context.meta[TYPED], **{name: value for name, value in typed.items() if value is not None})


def _end(code: int) -> None:
    if code:
        raise typer.Exit(code)
