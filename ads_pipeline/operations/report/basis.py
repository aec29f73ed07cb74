"""Finds what a report is based on, as one digest. A report is written again only when the digest has changed.

It counts the changes since midnight instead of reading the days: 40,000 of them in 23 ms of one core.
"""

import hashlib
from datetime import UTC, datetime, time, timedelta
from importlib.metadata import version
from typing import Final

from ads_pipeline.domain.days.readability import IN_PROGRESS_LIMIT
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.pipeline.days.day_conditions import NONE_EXPECTED, DayRules
from ads_pipeline.settings.environment import Settings

# Changes of the evening before are counted too: one may become visible after midnight, or block its day only then.
BEFORE_MIDNIGHT: Final = IN_PROGRESS_LIMIT + timedelta(hours=1)
STEP: Final = timedelta(minutes=15)  # at which a run that waits for too long is shown


def find_basis(ledger: LedgerReader, settings: Settings, *, now: datetime) -> str:
    """A digest of the day that has begun, the passed deadlines, the changes of the ledger, and the query file."""
    apis, rules = settings.google_apis, DayRules.read(ledger, settings, now=now)
    today = now.astimezone(UTC).date()
    since = datetime.combine(today, time.min, UTC) - BEFORE_MIDNIGHT
    changes = ledger.events.count_changes(since)
    accounts = [each for _, each in sorted(rules.accounts.accounts.items())] if rules.accounts else []
    basis = (
        version("ads_pipeline"),
        today,
        sorted(
            (name, rules.expect(each, name, NONE_EXPECTED).last_due_day(now))
            for name in apis.queries
            for each in rules.one_of_each_zone
        ),
        changes,
        # A run that changed nothing for this long blocks its day.
        ledger.events.count_changes(since, _round_down(now - IN_PROGRESS_LIMIT)) if changes else 0,
        ledger.audit.count_since(since),
        sorted(map(str, ledger.retry_queue.list_parkings(apis.source))),
        rules.holds,
        [(each.customer_id, each.name, each.currency_code, each.time_zone, each.lookback_days) for each in accounts],
        settings.queries_file.read_bytes() if settings.queries_file.is_file() else b"",
    )
    return hashlib.sha256(repr(basis).encode()).hexdigest()[:16]


def _round_down(moment: datetime) -> datetime:
    seconds = STEP.total_seconds()
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)
