"""Builds the sensor `readable_changes`: it requests the checks where the ledger changed outside a run of the assets.

A run of the assets evaluates its own checks. An operator's command, `reconcile`, a deadline that passes, and a run
that died or was cancelled do not. Dagster clears the checks of every partition of a cancelled run.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.days.conditions import CONDITIONS, Condition
from ads_pipeline.domain.days.readability import IN_PROGRESS_LIMIT, DayCondition
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration.asset_checks import check_keys
from ads_pipeline.orchestration.complete_check import evaluate_complete, find_last_materialization
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS, DATE
from ads_pipeline.orchestration.resources import SENSOR_RESOURCES, SensorResources
from ads_pipeline.orchestration.runs.due_partitions import build_run_config, digest_of
from ads_pipeline.orchestration.runs.run_tags import (
    QUERY_TAG,
    describe_range,
    log_requests,
    partition_names,
    range_tags,
)
from ads_pipeline.orchestration.sensors.earlier_runs import leaving_out, parse_names
from ads_pipeline.orchestration.sensors.run_requests import cover_with_ranges
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.days.deadlines import find_blocked, find_due

OVERLAP: Final = timedelta(minutes=10)  # an event may become visible later than its time
FIRST_WINDOW: Final = timedelta(days=1)
INTERVAL_SECONDS: Final = 20
CLEARING_STATUSES: Final = (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)
DECIDED_BY_DEADLINE: Final = frozenset(each for each, entry in CONDITIONS.items() if entry.needs_no_event)
BLOCKED_INTERVAL: Final = timedelta(minutes=15)  # between searches, which compare all partitions with their runs


@dataclass(slots=True, kw_only=True)
class Changes:
    """The partitions to check again. `cleared` holds those whose checks a dead or cancelled run cleared, by run.

    Those in `due` passed a deadline, which most of them met. Those in `unjudged` have a run without a verdict: the
    sensor `raw_arrivals` requests them. A run of `valid` alone would judge them and load nothing.
    """

    changed: set[PartitionKey] = field(default_factory=set)
    due: set[PartitionKey] = field(default_factory=set)
    unjudged: set[PartitionKey] = field(default_factory=set)
    has_other_runs: bool = False  # a command or a job changed something
    cleared: dict[PartitionKey, str] = field(default_factory=dict)


def build_readable_sensor(
    names: Names, partitions: dg.MultiPartitionsDefinition, query_names: Sequence[str], *, now: Clock
) -> dg.SensorDefinition:
    @dg.sensor(
        name=names.name("readable_changes"),
        required_resource_keys=names.require(SENSOR_RESOURCES),
        target=dg.AssetSelection.assets(
            *names.assets(query_names)
        ),  # with their checks; the UI shows only their names
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests runs of the checks where the ledger changed outside a run of the assets.",
    )
    def readable_changes(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)
        at = now()
        last_tick, recent_keys = _parse_cursor(context.cursor, at)
        since = last_tick - OVERLAP
        with dg.partition_loading_context(dynamic_partitions_store=context.instance):
            rules = DayRules.read(sensor_resources.ledger, sensor_resources.settings, now=at)
            changes = _find_changes(context, sensor_resources, partitions, query_names, since, rules)
            known = _select_known(names, context.instance, partitions, changes, query_names, at)
            if changes.has_other_runs or changes.due or changes.cleared:
                _publish_tables(sensor_resources, changes)
            described = describe_days(sensor_resources.ledger, known, rules)
            found = list(_build_requests(names, partitions, described, changes))
        requests = [request for request in found if request.run_key not in recent_keys]
        log_requests(names, context.log, requests)
        return dg.SensorResult(
            run_requests=requests,
            asset_events=[
                evaluate_complete(
                    names,
                    sensor_resources.ledger,
                    sensor_resources.settings,
                    name,
                    rules=rules,
                    target=find_last_materialization(context.instance, names.warehouse(name)),
                )
                for name in sorted({key.query_name for key in described} if requests else ())
            ],
            skip_reason=None if requests else "nothing changed outside the runs of the assets",
            cursor=json.dumps([at.isoformat(), [request.run_key for request in found]]),
        )

    return readable_changes


def _publish_tables(resources: SensorResources, changes: Changes) -> None:
    """Write `days` and the tables beside it. A run or `reconcile` writes a new one: that may take minutes."""
    from ads_pipeline.pipeline.completeness import completeness_tables  # noqa: PLC0415 - it loads Arrow and Delta

    completeness_tables.CompletenessTables(ledger=resources.ledger, settings=resources.settings).publish_if_present(
        changes.due | changes.changed | changes.cleared.keys()
    )


def _parse_cursor(cursor: str | None, now: datetime) -> tuple[datetime, Sequence[str]]:
    """The time of the last tick and the run keys that it found. A cursor that somebody has changed starts again."""
    try:
        at, run_keys = json.loads(cursor or "")
        return min(datetime.fromisoformat(at).astimezone(UTC), now), list(run_keys)
    except (ValueError, TypeError):
        return now - FIRST_WINDOW, ()


def _find_changes(
    context: dg.SensorEvaluationContext,
    resources: SensorResources,
    partitions: dg.MultiPartitionsDefinition,
    query_names: Sequence[str],
    since: datetime,
    rules: DayRules,
) -> Changes:
    names, changes, others = resources.names, Changes(), list[str]()
    loaded = {names.warehouse(name) for name in query_names}
    for run_id in resources.events.list_changed_runs(since):
        run = context.instance.get_run_by_id(run_id)
        if run is None or (names.tag(QUERY_TAG) not in run.tags and not run.asset_selection):
            others.append(run_id)  # a command, or a job that has no checks
        elif run.status is dg.DagsterRunStatus.SUCCESS and loaded.isdisjoint(run.asset_selection or ()):
            others.append(run_id)
    # Runs that were cancelled in the queue have no event in the ledger, and cleared their checks all the same.
    ended, assets = dg.RunsFilter(statuses=list(CLEARING_STATUSES), updated_after=since), names.assets(query_names)
    for run in context.instance.get_runs(filters=ended):
        checked = _find_assets(run).intersection(assets)
        with leaving_out(run, context.log):
            found = partition_names(run.tags, partitions) if checked else ()
            keys = _parse_range(found, checked, resources.source_name)
            changes.cleared.update(dict.fromkeys(keys, run.run_id))
    changes.has_other_runs = bool(others)
    changes.changed.update(resources.events.list_changed_partitions(others, since))
    checked_again = changes.changed | changes.cleared.keys()
    changes.unjudged.update(run.key for run in resources.ledger.runs.unjudged(sorted(checked_again)))
    changes.due.update(find_due(resources.ledger, resources.source_name, query_names, since, rules))
    last_tick, interval = since + OVERLAP, BLOCKED_INTERVAL.total_seconds()
    if rules.now.timestamp() // interval != last_tick.timestamp() // interval:
        oldest = rules.now - IN_PROGRESS_LIMIT - 2 * (BLOCKED_INTERVAL + OVERLAP)
        changes.due.update(find_blocked(resources.ledger, resources.source_name, query_names, oldest, rules))
    return changes


def _find_assets(run: dg.DagsterRun) -> set[dg.AssetKey]:
    """The assets that the run runs or checks."""
    return {check.asset_key for check in run.asset_check_selection or ()}.union(run.asset_selection or ())


def _parse_range(names: Sequence[str], assets: Iterable[dg.AssetKey], source: str) -> Iterator[PartitionKey]:
    for query_name in sorted({asset.path[-1] for asset in assets}):
        yield from parse_names(names, source=source, query_name=query_name)


def _select_known(
    names: Names,
    instance: dg.DagsterInstance,
    partitions: dg.MultiPartitionsDefinition,
    changes: Changes,
    query_names: Sequence[str],
    now: datetime,
) -> list[PartitionKey]:
    """The partitions that Dagster has."""
    customers = set(instance.get_dynamic_partitions(names.name(CUSTOMERS)))
    first = str(partitions.get_partitions_def_for_dimension(DATE).get_first_partition_key())
    return [
        key
        for key in sorted(changes.changed | changes.due | changes.cleared.keys())
        if key.customer_id in customers
        and key.query_name in query_names
        and first <= key.logical_date.isoformat() < now.date().isoformat()
    ]


def _build_requests(
    names: Names,
    partitions: dg.MultiPartitionsDefinition,
    described: Mapping[PartitionKey, DayCondition],
    changes: Changes,
) -> Iterator[dg.RunRequest]:
    """Yield requests of few runs. The key of each names what its partitions show, so that nothing is repeated."""
    groups = defaultdict[tuple[str, bool], list[PartitionKey]](list)
    for key, day in described.items():
        is_cleared = key in changes.cleared
        is_changed = key in changes.changed and day.condition is not Condition.NOT_EXPECTED
        if is_cleared or is_changed or day.condition in DECIDED_BY_DEADLINE:
            has_verdict = (is_cleared or is_changed) and key not in changes.unjudged
            groups[_find_cause(key, changes), has_verdict].append(key)
    for (cause, runs_valid), keys in groups.items():
        for found in cover_with_ranges(partitions, [(key,) for key in keys]):
            days = [described[key] for key in found.keys]
            shown = [
                (str(key), day.condition, day.since, changes.cleared.get(key))
                for key, day in zip(found.keys, days, strict=True)
            ]
            tags = range_tags(names, found.query_names, found.start, found.end, why=_explain(days, cause))
            checks = [check_keys(names, name) for name in found.query_names]
            yield dg.RunRequest(
                run_key=f"checks of {describe_range(names, tags)}, {digest_of(shown)}",
                asset_selection=[],
                asset_check_keys=[each for valid, readable in checks for each in (valid, readable)[not runs_valid :]],
                run_config=build_run_config(names, dict.fromkeys(found.keys, cause)),
                tags=tags,
            )


def _find_cause(key: PartitionKey, changes: Changes) -> str:
    if key in changes.cleared:
        return "a run failed or was cancelled"
    return "the ledger changed outside a run" if key in changes.changed else "a deadline passed"


def _explain(days: Sequence[DayCondition], cause: str) -> str:
    counts = Counter(day.entry.label.lower() for day in days)
    shown = ", ".join(f"{number} {label}" for label, number in counts.most_common())
    return f"now {shown}; {cause}"
