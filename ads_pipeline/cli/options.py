"""Declares the arguments and options that several commands share, with their help.

`parsing` and `actions.arguments` check their values.
"""

from typing import Annotated, Final

import typer

from ads_pipeline.ledger.reader import MAX_PAGE_SIZE

DATE_FORMAT: Final = "YYYY-MM-DD"
Customers = Annotated[
    list[str] | None,
    typer.Option("--customer", metavar="ID", help="Only this customer, digits only. Repeatable."),
]
Queries = Annotated[list[str] | None, typer.Option("--query", metavar="NAME", help="Only this query. Repeatable.")]
Since = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="Only this logical date and later.")]
Until = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="Only this logical date and earlier.")]
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
OneCustomer = Annotated[str | None, typer.Option("--customer", metavar="ID", help="The customer, digits only.")]
OneQuery = Annotated[str | None, typer.Option("--query", metavar="NAME", help="The query.")]
