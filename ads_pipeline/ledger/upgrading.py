"""Brings a ledger of an earlier release to this one's schema, and makes anew what is folded from its logs."""

from dataclasses import dataclass

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.ledger import database
from ads_pipeline.ledger.reader import HERE
from ads_pipeline.ledger.status.status_table import StatusTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """From which revision to which, and how many rows `partition_status` has now."""

    before: str | None
    after: str
    statuses: int


def upgrade(url: str, *, space: Tenancy = HERE) -> Upgraded:
    """Migrate the ledger. Safe to run again, as after a crash between the two steps, and while others write."""
    engine = database.open_engine(url)
    try:
        before, after = database.revisions(engine)
        database.migrate(engine)
        return Upgraded(before=before, after=after, statuses=StatusTable(engine, space=space).rebuild())
    finally:
        engine.dispose()
