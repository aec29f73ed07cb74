"""Chooses the requests while a source or an account is on hold: none at first, then one day, the probe.

The other days stay due. They are requested once the probe was answered, so that a hold costs no failed fetch a day.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from ads_pipeline.domain.fetching.outages import PROBE_LIMIT
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.partition import PartitionKey


def limit_to_holds(
    requested: Mapping[PartitionKey, str], holds: Iterable[Hold], now: datetime
) -> dict[PartitionKey, str]:
    """The requests that no hold stops, in their order."""
    found = dict(requested)
    for hold in holds:
        covered = [key for key in found if hold.covers(key.customer_id)]
        probe = None if _is_closed(hold, now) else _choose_probe(covered, hold)
        found = {key: why for key, why in found.items() if key == probe or not hold.covers(key.customer_id)}
    return found


def describe_holds(holds: Iterable[Hold]) -> str:
    """The holds on one line, with the command that lifts each; empty without any."""
    return "; ".join(f"{hold}. To lift it now: {hold.release_command}" for hold in holds)


def _is_closed(hold: Hold, now: datetime) -> bool:
    """Return whether no call is granted yet: the time has not come, or a probe has no outcome."""
    return hold.until > now or (hold.probe_at is not None and hold.probe_at > now - PROBE_LIMIT)


def _choose_probe(covered: list[PartitionKey], hold: Hold) -> PartitionKey | None:
    """A day of another account than the one that failed last, because its fault may be its own."""
    others = (key for key in covered if key.customer_id != hold.failed_customer)
    return next(others, covered[0] if covered else None)
