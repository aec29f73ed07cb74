"""Which ranges one fetch must make narrower: Google refuses the range of days, or cannot answer it in time.

`ranges` cuts. `pipeline.extraction.range_widths` reads from the ledger which widths worked in earlier runs.
"""

from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.google_ads.faults.fault_reading import Fault
from ads_pipeline.google_ads.faults.fault_table import RANGE_TOO_WIDE, SINGLE_DAYS_ONLY
from ads_pipeline.google_ads.requests.ranges import WIDEST, FetchRange, KnownWidths

TOO_WIDE: Final = frozenset({RANGE_TOO_WIDE, SINGLE_DAYS_ONLY})
# Of one customer and query in one run, without an answer in between. From 31 days, six halvings lead to a single day.
# When that day and its neighbour time out as well, the cause is not one day, and more requests would only cost hours.
MAX_TIMEOUTS_IN_A_ROW: Final = 7
_Report = tuple[str, str]  # customer and query


class Narrowing:
    """The widths that one call of the source has learned for its ranges."""

    def __init__(self, known: KnownWidths = WIDEST) -> None:
        self._known = known
        self._of_queries: dict[str, int] = {}
        self._too_old: dict[_Report, tuple[PartitionKey, Fault]] = {}
        self._timeouts: dict[_Report, list[Fault]] = {}

    def find(self, customer_id: str, query_name: str) -> int:
        """The most days that a request may span. Google's limit is one of the query, whatever the customer."""
        known = self._known.find(customer_id, query_name)
        return min(known, self._of_queries.get(query_name, known))

    def note_too_wide(self, fetch_range: FetchRange, error_class: str) -> None:
        """Google refuses a range of so many days. Its half is tried next, or single days if Google says so."""
        width = 1 if error_class == SINGLE_DAYS_ONLY else (fetch_range.width + 1) // 2
        self._of_queries[fetch_range.query_name] = width

    def note_too_old(self, key: PartitionKey, fault: Fault) -> None:
        """Google no longer has the figures of this day, and so of no earlier day of this customer and query."""
        self._too_old[key.customer_id, key.query_name] = key, fault

    def find_too_old(self, fetch_range: FetchRange) -> tuple[tuple[PartitionKey, ...], Fault | None]:
        """The days of the range that are known to be too old, and the fault of the day that showed it."""
        newest, fault = self._too_old.get(_report_of(fetch_range), (None, None))
        return tuple(key for key in fetch_range.keys if newest is not None and key <= newest), fault

    def note_timeout(self, fetch_range: FetchRange, fault: Fault) -> None:
        self._timeouts.setdefault(_report_of(fetch_range), []).append(fault)

    def note_answer(self, fetch_range: FetchRange) -> None:
        self._timeouts.pop(_report_of(fetch_range), None)

    def find_last_timeout(self, fetch_range: FetchRange) -> Fault | None:
        """The fault that stands for the range when too many requests before it timed out in a row; otherwise None."""
        timeouts = self._timeouts.get(_report_of(fetch_range), [])
        return timeouts[-1] if len(timeouts) >= MAX_TIMEOUTS_IN_A_ROW else None


def _report_of(fetch_range: FetchRange) -> _Report:
    return fetch_range.customer_id, fetch_range.query_name
