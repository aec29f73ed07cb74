"""The IO manager of all assets: it registers sealed runs and passes on only successful partitions.

It reads the status of a partition from the ledger and never from Dagster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import dagster as dg

from ads_pipeline.domain.fetching.retry_forecast import LeaseHolder
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.transitions import Status
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.orchestration.event_storage.batching import batched_events
from ads_pipeline.orchestration.event_storage.dagster_private import SUPPRESS_MATERIALIZATION
from ads_pipeline.orchestration.materializations import (
    build_materialization,
    describe_inputs,
    describe_source,
    version_tags,
)
from ads_pipeline.orchestration.metadata import describe_run
from ads_pipeline.orchestration.partitions import parse_partition_names
from ads_pipeline.orchestration.resources import RunResources
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days

MetadataByKey = Mapping[PartitionKey, Mapping[str, Any]]
Holders = Mapping[PartitionKey, LeaseHolder]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPartitions:
    """The output of a raw asset: what its source landed. `held` are partitions that other runs have claimed."""

    landed: Landed
    held: Holders


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPartitions:
    """The output of a warehouse asset: metadata of each loaded partition."""

    metadata: MetadataByKey
    held: Holders


_T = TypeVar("_T", SealedPartitions, LoadedPartitions)


def suppress_materialization(value: _T) -> dg.Output[_T]:
    """Wrap a value in an output without Dagster's own materialization events; the IO manager emits them.

    Dagster would emit one for every partition of the range, even without data. Per-partition metadata on the output
    takes time quadratic in the number of partitions.
    """
    return dg.Output(value, metadata={SUPPRESS_MATERIALIZATION: True})


class PartitionStateIOManager(dg.IOManager):
    """Stores outputs in the ledger; gives a warehouse asset the partitions that may be loaded."""

    def __init__(self, resources: RunResources) -> None:
        self._resources = resources

    def handle_output(self, context: dg.OutputContext, obj: SealedPartitions | LoadedPartitions) -> None:
        """Emit a materialization per finished partition, and log a warning for those left out.

        The step does not fail: the status of a run is about the engine, and the checks are about the data.
        """
        keys = self._find_due(context.asset_partition_keys, context.asset_key)
        granted = [key for key in keys if key not in obj.held]
        metadata = self._record(context, obj.landed, granted) if isinstance(obj, SealedPartitions) else obj.metadata
        inputs = self._describe_inputs(context, metadata) if isinstance(obj, LoadedPartitions) else None
        with batched_events(context.step_context.instance):
            for key, entry in metadata.items():
                tags = version_tags(entry) | (describe_source(key) if inputs is None else inputs.get(key, {}))
                context.log_event(build_materialization(context.asset_key, key, entry, tags))
        if left_out := [key for key in granted if key not in metadata]:
            problem = "have no sealed run" if isinstance(obj, SealedPartitions) else "were not loaded"
            context.log.warning(
                "%d of %d partitions %s. First: %s, %s",
                len(left_out),
                len(keys),
                problem,
                left_out[0],
                self._find_reason(left_out[0]),
            )

    def _record(self, context: dg.OutputContext, landed: Landed, keys: list[PartitionKey]) -> MetadataByKey:
        """Register sealed runs, record failed and skipped fetches, and describe the newest run of each partition.

        A partition that was not fetched is left out: its earlier run would look like a new one.
        """
        resources = self._resources
        resources.seals.register(landed.runs)
        if failed := landed.failed:
            resources.ledger.failed_fetches.record(failed, resources.settings.retry_policy)
            context.log.warning(
                "%d of %d partitions could not be fetched. First: %s, %s: %s",
                len(failed),
                len(keys),
                failed[0].key,
                failed[0].error_class,
                printable(failed[0].error_message),
            )
        if skipped := landed.skipped:
            resources.record_skipped(skipped)
            context.log.info(
                "skipped %d of %d partitions. First: %s, %s",
                len(skipped),
                len(keys),
                skipped[0].key,
                skipped[0].reason,
            )
        not_fetched = {each.key for each in landed.failed} | {each.key for each in landed.skipped}
        resources.not_fetched.update(not_fetched)
        newest = resources.ledger.runs.newest([key for key in keys if key not in not_fetched])
        return {
            key: describe_run(registered, landed.notes.get(registered.run, {}))
            for key, (registered, _outcome) in newest.items()
        }

    def load_input(self, context: dg.InputContext) -> list[PartitionKey]:
        """Return the due partitions of the run whose status is success."""
        keys = self._find_due(context.asset_partition_keys, context.asset_key)
        states = self._resources.ledger.states.get_many(keys)
        return [key for key in keys if states[key].status is Status.SUCCESS]

    def _describe_inputs(
        self, context: dg.OutputContext, keys: Iterable[PartitionKey]
    ) -> dict[PartitionKey, dict[str, str]]:
        newest = self._resources.ledger.runs.newest(keys)
        registered = {key: run for key, (run, _outcome) in newest.items()}
        return describe_inputs(context.step_context.instance, registered)

    def _find_reason(self, key: PartitionKey) -> str:
        resources = self._resources
        rules = DayRules.read(resources.ledger, resources.settings, now=datetime.now(UTC))
        day = describe_days(resources.ledger, [key], rules)[key]
        return f"{day.text.label.lower()}: {day.reason}"

    def _find_due(self, names: Any, asset: dg.AssetKey) -> list[PartitionKey]:
        keys = parse_partition_names(names, source=self._resources.source_name, query_name=asset.path[-1])
        return self._resources.select_due(keys)
