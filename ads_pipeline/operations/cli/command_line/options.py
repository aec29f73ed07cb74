"""Declares the options of all commands, groups of them, and how a function becomes a command.

A command is a function with a docstring. `command` adds it to the program; `groups` names those of each group:

    @command(app, "metrics")
    def metrics(settings: Settings, filters: Filters, *, as_json: AsJson = False) -> None:
        \"\"\"Print the state of the deployment.\"\"\"

A parameter that is a dataclass stands for the options that the dataclass declares. `parsing` checks names and dates.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, TypeVar

import typer

from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.sql.ledger_values import MAX_PAGE_SIZE, StateFilter
from ads_pipeline.operations.cli.command_line.logged_commands import RecordedCommand
from ads_pipeline.operations.cli.command_line.parsing import DateWindow, parse_customers, parse_queries, parse_window
from ads_pipeline.settings.environment import Settings, read_settings

DATE_FORMAT: Final = "YYYY-MM-DD"
Customers = Annotated[
    list[str] | None,
    typer.Option("--customer", "--customer-id", metavar="ID", help="Only this customer, digits only. Repeatable."),
]
Queries = Annotated[
    list[str] | None, typer.Option("--query", "--query-name", metavar="NAME", help="Only this query. Repeatable.")
]
Since = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="Only this logical date and later.")]
Until = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="Only this logical date and earlier.")]
LogicalDate = Annotated[
    str | None,
    typer.Option(metavar=DATE_FORMAT, help="Only this logical date, in place of a window of days."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object per line, with every field.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=MAX_PAGE_SIZE, help="Show at most N entries.")]
After = Annotated[
    str | None, typer.Option(metavar="ENTRY", help="Continue after this entry; the previous page prints it.")
]
Partitions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PARTITION", help="customer/query/YYYY-MM-DD, with or without source/ in front. Repeatable."
    ),
]
OneOrMostUrgent = Annotated[
    str | None,
    typer.Argument(
        metavar="PARTITION",
        help="customer/query/YYYY-MM-DD, with or without source/ in front. Default: the most urgent day.",
    ),
]
RUN_HELP: Final = "The run id, or at least its first four characters."
RunName = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)]
OptionalRunName = Annotated[str | None, typer.Argument(metavar="RUN", help=RUN_HELP)]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="The reason; it is logged with the action.")]
Operator = Annotated[str | None, typer.Option(metavar="NAME", help="Who requests it. Default: the login name.")]
AllPartitions = Annotated[
    bool, typer.Option("--all", help="Act on every partition; required without partitions and filters.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
ClearTerminal = Annotated[
    bool, typer.Option("--clear-terminal", help="Include terminal partitions; clear their marks first.")
]
Force = Annotated[bool, typer.Option("--force", help="Include partitions without a raw run.")]
ErrorClass = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only partitions whose last failure has this class.")
]
RunId = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="The run to restore. Default: the previous accepted run."),
]
OneCustomer = Annotated[
    str | None, typer.Option("--customer", "--customer-id", metavar="ID", help="The customer, digits only.")
]
OneQuery = Annotated[str | None, typer.Option("--query", "--query-name", metavar="NAME", help="The query.")]
OneSource = Annotated[
    str | None, typer.Option(metavar="NAME", help="The source, as the query file names it: everything is meant.")
]

Function = TypeVar("Function", bound=Callable[..., Any])
Row = TypeVar("Row")


def join_options(group: Any) -> str:
    """The options of a group that are given, as a shell reads them."""
    words = []
    for each in fields(group):
        option, given = f"--{each.name.replace('_', '-')}", getattr(group, each.name)
        for value in given if isinstance(given, list) else [given]:
            words += [option] if value is True else [option, str(value)] if value else []
    return shlex.join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The options that select partitions. The text of a value is its options as a shell reads them."""

    customer: Customers = None
    query: Queries = None
    since: Since = None
    until: Until = None
    logical_date: LogicalDate = None

    def __str__(self) -> str:
        return join_options(self)

    @property
    def days(self) -> DateWindow:
        """The selected days. Raises BadName or BadCommand for dates that are malformed or contradict each other."""
        return parse_window(self.since, self.until, self.logical_date)

    def select(self, settings: Settings) -> StateFilter:
        """The filter. Raises BadName for a malformed customer and for a query that the query file does not define."""
        days, customers = self.days, parse_customers(self.customer)
        return StateFilter(
            source=settings.google_apis.source,
            customer_ids=frozenset(customers) if customers else None,
            query_names=frozenset(parse_queries(self.query, settings)) if self.query else None,
            since=days.since,
            until=days.until,
        )

    def count(self, number: int, noun: str) -> str:
        """The number of entries; for none also what was looked for."""
        return count_of(number, noun) if number else f"0 {noun}s match {self}" if str(self) else f"0 {noun}s"

    @property
    def selected(self) -> str:
        """The given options, to end a sentence about what they select; empty without any."""
        return f" for {self}" if str(self) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The options of a list that is shown page by page."""

    after: After = None
    limit: Limit = 100

    def cut(self, found: Sequence[Row], name: Callable[[Row], object]) -> tuple[Sequence[Row], list[str]]:
        """The entries to show, and the note on how to continue. Pass at least one entry more than the limit."""
        shown = found[: self.limit]
        more = len(found) > len(shown)
        return shown, ["more follow; continue with", f"  --after {name(shown[-1])}"] if more else []


def command(program: typer.Typer, name: str) -> Callable[[Function], Function]:
    """Add the decorated function to the program, and return it unchanged.

    The docstring is the help. Typer calls the function with its options: a dataclass is built from the options of its
    fields, which may be dataclasses too, and a parameter of type `Settings` gets the settings of this process. A true
    or positive result is the exit code.
    """

    def add(function: Function) -> Function:
        parameters = signature(function).parameters.values()

        def run(**given: Any) -> None:
            code = function(**{each.name: _build(each.annotation, each.name, given) for each in parameters})
            if code:
                raise typer.Exit(int(code))

        run.__doc__ = function.__doc__
        vars(run)["__signature__"] = Signature([each for option in parameters for each in _expand(option)])
        program.command(name, cls=RecordedCommand)(run)
        return function

    return add


def _expand(parameter: Parameter) -> Iterator[Parameter]:
    """The parameters that Typer declares as options in place of this one."""
    if _is_group(parameter.annotation):
        for each in signature(parameter.annotation).parameters.values():
            yield from _expand(each)
    elif parameter.annotation is not Settings:
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)


def _build(kind: Any, name: str, given: Mapping[str, Any]) -> Any:
    if kind is Settings:
        return read_settings(os.environ)
    if _is_group(kind):
        return kind(**{each.name: _build(each.type, each.name, given) for each in fields(kind)})
    return given[name]


def _is_group(kind: Any) -> bool:
    return is_dataclass(kind) and kind is not Settings
