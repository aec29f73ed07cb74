"""Names that the warehouse uses itself: columns beside those of a contract, and views beside those of the queries."""

from collections.abc import Mapping
from typing import Final

DATE_COLUMN: Final = "logical_date"
KEY_COLUMNS: Final = ("customer_id", "run_id", "schema_version")
SEAL_COLUMNS: Final = ("currency_code", "extracted_at")  # from the seal of the run; null where the seal has none
CURRENT_SUFFIX: Final = "_current"  # of the view that shows only current runs
SETTLED_SUFFIX: Final = "_settled"  # of the view that shows only figures which the source no longer changes
DAYS, ACCOUNTS, RESTATEMENTS, LOADS = "days", "accounts", "restatements", "loads"
# The columns that partition the tables which no query has. Tables of queries are partitioned by their day.
PARTITION_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    DAYS: ("query_name", "month"),
    ACCOUNTS: (),
    RESTATEMENTS: ("restated_on",),
    LOADS: ("loaded_on",),
}
_IDENTITY_COLUMNS: Final = ("date", "customer_id")  # `contract_models.Row` declares them for every query
# Names of columns and views that a later release may add are refused now, because they could never be renamed.
_RESERVED_COLUMNS: Final = frozenset(
    (
        *(DATE_COLUMN, *KEY_COLUMNS, *SEAL_COLUMNS, "is_current"),
        *("ads_pipeline_run", "partition_logical_date", "partition_customer_id"),  # the validator's, beside each row
    )
)
_RESERVED_VIEWS: Final = frozenset(PARTITION_COLUMNS)
_RESERVED_SUFFIXES: Final = (CURRENT_SUFFIX, SETTLED_SUFFIX, "_latest", "_history")


def find_view_problem(query_name: str) -> str | None:
    """The reason why no query may have this name; None when it may."""
    if query_name in _RESERVED_VIEWS:
        return f"the name {query_name} is reserved for a view of the warehouse"
    suffix = next((each for each in _RESERVED_SUFFIXES if query_name.endswith(each)), None)
    return f"names that end in {suffix} are reserved for views of the warehouse" if suffix else None


def find_column_problem(column: str) -> str | None:
    """The reason why no contract may declare this column beside the date and the customer; None when it may.

    Readers of Delta compare names without regard to case.
    """
    if column.casefold() in _RESERVED_COLUMNS and column not in _IDENTITY_COLUMNS:
        return f"the column name {column} is reserved: every table has, or may get, a column of this name"
    return None
