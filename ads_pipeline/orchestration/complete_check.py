"""The check `complete` of each warehouse asset: one result for all its days.

Dagster shows the result of an arbitrary partition as the state of a partitioned check, so the overview of an asset
would be green while days fail. A check without partitions has no such choice.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.days.conditions import (
    CONDITIONS,
    NEEDS_OPERATOR,
    UNREADABLE_CONDITIONS,
    count_unreadable,
    urgency,
)
from ads_pipeline.domain.days.day_ranges import DayRange, count_conditions
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.orchestration.event_storage.dagster_private import build_target
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import STEP_RESOURCES, StepResources
from ads_pipeline.pipeline.days.day_conditions import DayRules, find_gaps
from ads_pipeline.settings.environment import Settings

COMPLETE: Final = "complete"
MAX_SINGLE: Final = 100


def build_complete_check(names: Names, name: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(  # type: ignore[arg-type] # Dagster's type lacks evaluations that name their target
        asset=names.warehouse(name),
        name=COMPLETE,
        description=(
            "Shows for all expected days together what readers get, and how many need somebody. Dagster shows one "
            "arbitrary partition as the state of `readable`; this check is the state of the whole table."
        ),
        required_resource_keys=names.require(STEP_RESOURCES),
    )
    def complete(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        yield _evaluate(context.instance, names.find(context, STEP_RESOURCES), name)
        yield dg.Output(None)

    return complete


def evaluate_complete(
    names: Names,
    ledger: LedgerReader,
    settings: Settings,
    name: str,
    *,
    rules: DayRules,
    target: Any | None = None,
) -> dg.AssetCheckEvaluation:
    """Evaluate all expected days of a query: failed when a day needs somebody, a warning when one is not readable."""
    apis = settings.google_apis
    window = DayWindow(source=apis.source, query_name=name, since=apis.start_date, until=rules.now.date())
    first_days = ledger.days.first_days(apis.source)
    found = find_gaps(
        ledger,
        window,
        UNREADABLE_CONDITIONS.union(NEEDS_OPERATOR),
        first_days=first_days,
        rules=rules,
    )
    ranges = sorted(
        found.ranges, key=lambda each: (*urgency(each.condition, each.last.logical_date), each.last.customer_id)
    )
    counts = count_conditions(ranges)
    labels = {CONDITIONS[condition].label.lower(): number for condition, number in counts.items()}
    metadata: dict[str, Any] = {
        "expected": str(found.expected),
        **{label: str(each) for label, each in labels.items()},
    }
    if ranges:
        metadata["next_command"] = settings.command(f"ads-pipeline state inspect --query {name}")
    if single := first_days.describe_single([name], apis.start_date):
        metadata["not_expected"] = "\n".join(single[:MAX_SINGLE])
    needed = sum(counts[condition] for condition in NEEDS_OPERATOR)
    return dg.AssetCheckEvaluation(
        asset_key=names.warehouse(name),
        check_name=COMPLETE,
        passed=not ranges,
        severity=dg.AssetCheckSeverity.ERROR if needed else dg.AssetCheckSeverity.WARN,
        description=_describe(ranges, found.expected, needed, Counter(labels)),
        metadata=metadata,
        target_materialization_data=target,
    )


def find_last_materialization(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Any | None:
    """The last materialization of the asset. Without it, Dagster hides the result after each new materialization."""
    for record in instance.get_asset_records([asset]):
        if (last := record.asset_entry.last_materialization_record) is not None:
            return build_target(last.storage_id, last.run_id, last.timestamp)
    return None


def report_complete(instance: dg.DagsterInstance, resources: StepResources, name: str, rules: DayRules) -> None:
    """Store the result outside a step of its own, for runs that do not run the check."""
    instance.report_runless_asset_event(_evaluate(instance, resources, name, rules))


def _evaluate(
    instance: dg.DagsterInstance, resources: StepResources, name: str, rules: DayRules | None = None
) -> dg.AssetCheckEvaluation:
    """Evaluate the query as of one moment, by rules that were read before or are read then."""
    settings = resources.settings
    # For a result without a target, Dagster lists all partitions: 7 s of CPU for 1,000 customers and three years.
    target = find_last_materialization(instance, resources.names.warehouse(name))

    def evaluate(ledger: LedgerReader) -> dg.AssetCheckEvaluation:
        read = rules or DayRules.read(ledger, settings, now=datetime.now(UTC))
        return evaluate_complete(resources.names, ledger, settings, name, rules=read, target=target)

    return resources.ledger.read_at_once(evaluate)


def _describe(ranges: Sequence[DayRange], expected: int, needed: int, counts: Counter[str]) -> str:
    if not ranges:
        return count_unreadable(0, expected)
    key, day = ranges[0].last, ranges[0].day
    total = f"{needed:,} of {expected:,} expected days {'needs' if needed == 1 else 'need'} you"
    listed = ", ".join(f"{number:,} {label}" for label, number in counts.most_common())
    first = f"{key.customer_id}, {key.logical_date}, {day.entry.label}: {day.reason}"
    return f"{total if needed else count_unreadable(counts.total(), expected)}: {listed}. First: {first}"
