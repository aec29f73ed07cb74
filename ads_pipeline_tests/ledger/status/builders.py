"""Fills a ledger with partitions in every status condition."""

from datetime import timedelta

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    key,
    publish_runs,
    registered_runs,
    rejection,
    run,
)

DAY = timedelta(days=1)
DAYS = [key(day=day) for day in range(1, 6)]


def create_all_conditions(ledger: Ledger, clock: FakeClock) -> None:
    """Create partitions that are loaded, not loaded, accepted after a load, failed after a load, and only failed."""
    for partition in DAYS:
        registered_runs(ledger, partition, "r1", "r2")
    verdicts = [acceptance(run(partition, "r1")) for partition in DAYS[:4]] + [rejection(run(DAYS[4], "r1"))]
    ledger.verdicts.record(verdicts)
    clock.tick(DAY)
    publish_runs(ledger, run(DAYS[0], "r1"), run(DAYS[2], "r1"), run(DAYS[3], "r1"))
    clock.tick(DAY)
    ledger.verdicts.record([acceptance(run(DAYS[2], "r2")), rejection(run(DAYS[3], "r2"))])
