"""The groups of commands, and the function of each command, which is loaded when the command is used or described.

So the help of the program needs no database library, and a command loads no module of another one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from ads_pipeline.operations.cli.command_line.options import command

MAX_SENTENCE: Final = 300
ACTIONS: Final = (
    *("acknowledge", "retry", "enqueue", "terminal", "reprocess", "withdraw", "demote", "restore", "rejudge"),
    *("park", "release"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The help of a group, and the function of each command as `module:function` below this folder."""

    help: str
    commands: Mapping[str, str]


GROUPS: Final[Mapping[str, Group]] = {
    "state": Group(
        help="Show which partitions are safe to read, and change their state.",
        commands={
            "inspect": "state.listing:inspect",
            "why": "state.why:print_report",
            **{name: f"state.actions:{name}" for name in ACTIONS},
            "due": "state.due:list_due",
        },
    ),
    "raw": Group(
        help="List raw runs, and verify them against their seals.",
        commands={
            "list": "raw.runs:list_runs",
            "verify": "raw.runs:verify",
            "report-failure": "raw.report_failure:report_failure",
        },
    ),
    "warehouse": Group(
        help="Query the warehouse, and list loads, restatements and missing days.",
        commands={
            "query": "warehouse.rows:query",
            "loads": "warehouse.rows:loads",
            "gaps": "warehouse.gaps:list_gaps",
            "restatements": "warehouse.restatements:list_restatements",
        },
    ),
    "events": Group(
        help="Show the runs, their events and their snapshots.",
        commands={"runs": "deployment.events_commands:list_runs", "tail": "deployment.events_commands:tail"},
    ),
    "ledger": Group(
        help="Copy or compare the ledger, set rights of roles, and delete old events.",
        commands={
            "copy": "deployment.ledger_commands:ledger_copy",
            "roles": "deployment.ledger_commands:ledger_roles",
            "retire-events": "deployment.retired_events:retire_events",
        },
    ),
    "accounts": Group(
        help="List and discover the accounts that are fetched.",
        commands={
            "list": "google_ads.accounts_commands:list_accounts",
            "discover": "google_ads.accounts_commands:discover",
        },
    ),
    "queries": Group(
        help="Check the queries of the query file, and add queries.",
        commands={
            "check": "google_ads.queries_commands:check_queries",
            "new": "google_ads.queries_commands:add_query",
        },
    ),
}


class HelpGroup(TyperGroup):
    """Commands whose help shows the first sentence of each in full. An unknown name is answered with similar ones."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands: dict[str, Any] = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(MAX_SENTENCE)) for name, each in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. For an unknown one, fail with the full names of commands of any group."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or name in self.list_commands(ctx)):
            program = ctx.find_root()
            similar = _find_similar(args, program.command.list_commands(program))
            hint = f" Did you mean {' or '.join(f'{program.info_name} {each}' for each in similar)}?"
            ctx.fail(f"No such command {name!r}.{hint if similar else ''}")
        return super().resolve_command(ctx, args)


class CommandsOfGroup(HelpGroup):
    """The commands of one group, each of which is loaded when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer gives it
        return list(GROUPS[str(self.name)].commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the same
        function = GROUPS[str(self.name)].commands.get(cmd_name)
        return None if function is None else _load_command(cmd_name, function)


@cache
def load_group(name: str) -> CommandsOfGroup:
    """The group with this name. None of its commands is loaded yet."""
    return CommandsOfGroup(name=name, help=GROUPS[name].help, no_args_is_help=True, rich_markup_mode=None)


@cache
def _load_command(name: str, function: str) -> Any:
    module, _colon, attribute = function.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), attribute)
    program = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    command(program, name)(found)
    return typer.main.get_command(program)


def _find_similar(words: Sequence[str], top: Sequence[str]) -> list[str]:
    """The full names of the commands with the first word as their name, or else with the most similar name.

    A similar group is completed by the second word, if that is one of its commands.
    """
    name, second = words[0], "".join(words[1:2])
    full_names = [*top, *(f"{group} {each}" for group, found in GROUPS.items() for each in found.commands)]
    names = {each.rpartition(" ")[2] for each in full_names}
    nearest = [name] if name in names else get_close_matches(name, names, n=1)
    found = [each for each in full_names if each.rpartition(" ")[2] in nearest]
    return [f"{each} {second}" if each in GROUPS and second in GROUPS[each].commands else each for each in found]
