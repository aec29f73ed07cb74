"""Restatements: accepted runs beside the accepted runs that they replaced, and their events."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from ads_pipeline.domain.measures import Figures, Measures, PartitionRestatement
from ads_pipeline.domain.transitions import Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    key,
    record_verdict,
    registered_runs,
    rejection,
)

FIRST = Measures(cost_micros=1_000_000, conversions=2.5, conversions_value=10.25)
SECOND = Measures(cost_micros=1_001_000, conversions=4.0, conversions_value=10.25)
WINDOW = DayWindow(source="google_ads", query_name="campaign_daily", since=date(2026, 2, 1), until=date(2026, 2, 28))


def measured(verdict: Verdict, measures: Measures) -> Verdict:
    return replace(verdict, measures=measures)


def restated_events(ledger: Ledger) -> list[dict[str, Any]]:
    events = [each.event for each in ledger.events.fetch(ledger.origin.engine_run_id)]
    return [dict(each.event_data) for each in events if each.event_type == "PartitionRestated"]


def test_restatement_has_the_figures_of_both_runs(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The accepted attempt stands beside the accepted one before it; a rejected one between them does not count."""
    first, bad, second = registered_runs(timed_ledger, key(), "r1", "r2", "r3")
    record_verdict(timed_ledger, measured(acceptance(first), FIRST))
    record_verdict(timed_ledger, rejection(bad))
    clock.tick()
    record_verdict(timed_ledger, measured(acceptance(second), SECOND))
    assert timed_ledger.restatements.find(WINDOW) == [
        PartitionRestatement(
            key=key(),
            attempt_no=3,
            judged_at=clock.now,
            before=Figures(run_id="r1", rows=3, measures=FIRST),
            after=Figures(run_id="r3", rows=3, measures=SECOND),
        )
    ]
    assert timed_ledger.restatements.find(replace(WINDOW, customers=frozenset({"7"}))) == []


def test_restatement_emits_both_values(timed_ledger: Ledger) -> None:
    """The event is appended with the verdict, once, and only when a figure changed."""
    verdicts = [
        measured(acceptance(run), measures)
        for run, measures in zip(
            registered_runs(timed_ledger, key(), "r1", "r2", "r3"), (FIRST, SECOND, SECOND), strict=True
        )
    ]
    for verdict in (*verdicts, *verdicts):
        record_verdict(timed_ledger, verdict)
    assert restated_events(timed_ledger) == [
        {
            "before": {
                "run_id": "r1",
                "rows": 3,
                "cost_micros": 1_000_000,
                "conversions": 2.5,
                "conversions_value": 10.25,
            },
            "after": {
                "run_id": "r2",
                "rows": 3,
                "cost_micros": 1_001_000,
                "conversions": 4.0,
                "conversions_value": 10.25,
            },
        }
    ]
    assert [each.attempt_no for each in timed_ledger.restatements.find(WINDOW)] == [2, 3]


def test_verdicts_of_one_transaction_restate_too(timed_ledger: Ledger) -> None:
    """Several partitions at once, each beside its own earlier run; the contract may lack the columns."""
    partitions = [key("1"), key("2")]
    runs = [registered_runs(timed_ledger, each, "r1", "r2") for each in partitions]
    timed_ledger.verdicts.record([measured(acceptance(first), FIRST) for first, _ in runs])
    timed_ledger.verdicts.record([acceptance(second) for _, second in runs])
    found = timed_ledger.restatements.find(WINDOW)
    assert [(each.key, each.before.measures, each.after.measures) for each in found] == [
        (each, FIRST, Measures()) for each in partitions
    ]
    assert [each["after"] for each in restated_events(timed_ledger)] == [{"run_id": "r2", "rows": 3}] * 2


@pytest.mark.invariant("S10")
def test_older_run_that_is_accepted_later_restates_nothing(timed_ledger: Ledger) -> None:
    """It never had authority."""
    older, newer = registered_runs(timed_ledger, key(), "r1", "r2")
    record_verdict(timed_ledger, measured(acceptance(newer), FIRST))
    record_verdict(timed_ledger, measured(acceptance(older), SECOND))
    assert (timed_ledger.restatements.find(WINDOW), restated_events(timed_ledger)) == ([], [])


def test_attempts_keep_their_measures(timed_ledger: Ledger) -> None:
    """Also those of a rejected run whose rows could be read."""
    first, bad = registered_runs(timed_ledger, key(), "r1", "r2")
    verdicts = [measured(acceptance(first), FIRST), measured(rejection(bad), SECOND)]
    timed_ledger.verdicts.record(verdicts)
    assert [each.verdict for each in timed_ledger.runs.attempts(key())] == verdicts
