"""Derives the number of days that a request may span from the outcomes of earlier API operations."""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Final

from ads_pipeline.domain.fetching.outages import TIMED_OUT
from ads_pipeline.domain.fetching.quota import NarrowedRequest
from ads_pipeline.google_ads.faults.fault_table import SINGLE_DAYS_ONLY
from ads_pipeline.google_ads.requests.ranges import KnownWidths
from ads_pipeline.ledger.ledger import LedgerReader

# A refusal is a rule of Google for the query. A timeout depends on the size of the account and on the day.
REFUSALS_COUNT_FOR: Final = timedelta(days=30)
TIMEOUTS_COUNT_FOR: Final = timedelta(days=7)


def read_known_widths(ledger: LedgerReader, source: str, now: datetime) -> KnownWidths:
    """The widths at which requests worked after a wider one had been refused, or had not ended in time.

    A refusal narrows the query for every customer, a timeout only for its customer.
    """
    refused, timed_out = defaultdict[str, list[NarrowedRequest]](list), dict[tuple[str, str], int]()
    for each in ledger.quota.list_narrowed(source, now - REFUSALS_COUNT_FOR):
        if each.outcome != TIMED_OUT:
            refused[each.query_name].append(each)
        elif each.worked_days is not None and each.at >= now - TIMEOUTS_COUNT_FOR:
            report = each.customer_id, each.query_name
            timed_out[report] = max(each.worked_days, timed_out.get(report, 1))
    of_queries = {name: width for name, requests in refused.items() if (width := _find_width(requests))}
    return KnownWidths(of_queries=of_queries, of_customers=timed_out)


def _find_width(requests: list[NarrowedRequest]) -> int | None:
    """The most days that worked, below the fewest that were refused. None when nothing has worked since."""
    if any(each.outcome == SINGLE_DAYS_ONLY for each in requests):
        return 1
    fewest_refused = min(each.days for each in requests)
    worked = (each.worked_days for each in requests if each.worked_days is not None)
    return max((days for days in worked if days < fewest_refused), default=None)
