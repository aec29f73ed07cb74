"""Declares the arguments and options that several commands share, with their help.

Which command has which is for `main` and `operating` to say; what their words may be, for `words` and `asked`.
"""

from typing import Annotated, Final

import typer

from ads_pipeline.ledger.reader import LARGEST_PAGE

DAY: Final = "YYYY-MM-DD"
Customers = Annotated[
    list[str] | None,
    typer.Option("--customer", metavar="ID", help="Only this customer, in digits. May be given again."),
]
Queries = Annotated[
    list[str] | None, typer.Option("--query", metavar="NAME", help="Only this query. May be given again.")
]
Since = Annotated[str | None, typer.Option(metavar=DAY, help="Only this logical date and later ones.")]
Until = Annotated[str | None, typer.Option(metavar=DAY, help="Only this logical date and earlier ones.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object a line, with every field.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=LARGEST_PAGE, help="Show at most so many.")]
After = Annotated[
    str | None, typer.Option(metavar="PLACE", help="Go on after this place, as the previous page names it.")
]
Partitions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PARTITION", help="customer/query/YYYY-MM-DD, with or without source/ before it. May be several."
    ),
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept with the act.")]
Operator = Annotated[str | None, typer.Option(metavar="NAME", help="Who orders it; the login name, unless told.")]
Everything = Annotated[
    bool, typer.Option("--all", help="Every partition is meant: needed where nothing is named and nothing narrows.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, however many partitions there are.")]
EvenTerminal = Annotated[
    bool, typer.Option("--clear-terminal", help="Terminal ones too; marks on them are cleared first.")
]
Force = Annotated[bool, typer.Option("--force", help="Also those of which raw holds no run.")]
ErrorClass = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only partitions whose last failure was of this class.")
]
RunId = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Which run to give back; the accepted one before, unless told."),
]
OneCustomer = Annotated[str | None, typer.Option("--customer", metavar="ID", help="The account, in digits.")]
OneQuery = Annotated[str | None, typer.Option("--query", metavar="NAME", help="The query.")]
