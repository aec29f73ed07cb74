"""The IO manager of all assets: the only part of their runs that writes to the ledger.

It registers sealed runs, records verdicts, moves pointers, and passes on only successful partitions. It reads the
status of a partition from the ledger and never from Dagster.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import dagster as dg

from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.orchestration.event_storage.batching import batched_events
from ads_pipeline.orchestration.event_storage.dagster_private import SUPPRESS_MATERIALIZATION
from ads_pipeline.orchestration.materializations import (
    build_materialization,
    describe_inputs,
    describe_source,
    version_tags,
)
from ads_pipeline.orchestration.metadata import describe_load, describe_run
from ads_pipeline.orchestration.naming.names import ResourceName
from ads_pipeline.orchestration.partitions import parse_partition_names
from ads_pipeline.orchestration.resources import (
    RunResources,
    SparkResource,
    StepResources,
    claim_and_warn,
    select_due,
)
from ads_pipeline.orchestration.step_values import CommittedPartitions, LoadablePartitions, SealedPartitions
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days

if TYPE_CHECKING:  # they load Spark
    from pyspark.sql import SparkSession

    from ads_pipeline.lake.warehouse.staging import StartSpark
    from ads_pipeline.pipeline.loading import LoadResult
    from ads_pipeline.pipeline.pipeline import Pipeline
    from ads_pipeline.pipeline.validation import JudgingResult

MetadataByKey = Mapping[PartitionKey, Mapping[str, Any]]
_T = TypeVar("_T", SealedPartitions, CommittedPartitions)


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
        self._opened: Pipeline | None = None

    @property
    def step_resources(self) -> StepResources:
        """The resources of assets and checks. A verdict is recorded by the validator, and by nothing else."""
        resources, source = self._resources, self._resources.source
        return StepResources(
            settings=resources.settings,
            names=resources.names,
            ledger=resources.reader,
            due=resources.due,
            claim=resources.claim,
            fetches=source.fetches,
            land=source.land,
            judge=self.judge,
            commit=self.commit,
        )

    def judge(self, spark: "SparkSession", runs: Sequence[Run]) -> "JudgingResult":
        """Have the validator judge runs, and record its verdicts.

        The check calls this, because Dagster gives the output of a check to no IO manager.
        """
        return self._pipeline(lambda: spark).validation.judge(runs)

    def commit(self, spark: SparkResource, loadable: LoadablePartitions) -> "LoadResult":
        """Commit the runs to their table. `handle_output` moves the pointers. Spark starts only when it is needed."""
        from ads_pipeline.pipeline.loading import LoadResult  # noqa: PLC0415 - it loads Spark's client

        if not loadable.states:
            return LoadResult()
        return self._pipeline(lambda: spark.spark_session).loader.commit(loadable.states.values(), loadable.judged)

    def load_input(self, context: dg.InputContext) -> LoadablePartitions:
        """Claim the due partitions of the run, and return those whose status is success."""
        keys = self._find_due(context.asset_partition_keys, context.asset_key)
        claim = claim_and_warn(self._resources.claim, keys, context.log)
        return self._resources.ledger.read_at_once(
            lambda ledger: LoadablePartitions.read(ledger, claim.granted, claim.held)
        )

    def handle_output(self, context: dg.OutputContext, obj: SealedPartitions | CommittedPartitions) -> None:
        """Write the output to the ledger, and emit a materialization per finished partition.

        A warning lists those left out. The step does not fail: the status of a run is about the engine, and the
        checks are about the data.
        """
        keys = self._find_due(context.asset_partition_keys, context.asset_key)
        if isinstance(obj, SealedPartitions):
            granted = [key for key in keys if key not in obj.held]
            metadata, problem = self._register(context, obj.landed, granted), "have no sealed run"
            tags = dict.fromkeys(metadata, describe_source(self._resources.names, self._resources.source_name))
        else:
            granted = [key for key in keys if key not in obj.loadable.held]
            metadata, problem = dict(self._publish(obj)), "were not loaded"
            if not obj.committed.written:  # nothing was loaded, and runs may have been rejected
                self._resources.tables.publish_or_log()
            newest = {key: obj.loadable.newest[key] for key in metadata}
            tags = describe_inputs(self._resources.names, context.step_context.instance, newest)
        with batched_events(context.step_context.instance):
            for key, entry in metadata.items():
                entry_tags = version_tags(entry) | tags.get(key, {})
                context.log_event(build_materialization(context.asset_key, key, entry, entry_tags))
        if left_out := [key for key in granted if key not in metadata]:
            first = left_out[0]
            message = "%d of %d partitions %s. First: %s, %s"
            context.log.warning(message, len(left_out), len(keys), problem, first, self._find_reason(first))

    def _register(self, context: dg.OutputContext, landed: Landed, keys: list[PartitionKey]) -> MetadataByKey:
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
        newest = resources.ledger.runs.newest([key for key in keys if key not in not_fetched])
        return {
            key: describe_run(registered, landed.notes.get(registered.run, {}))
            for key, (registered, _outcome) in newest.items()
        }

    def _publish(self, output: CommittedPartitions) -> Iterator[tuple[PartitionKey, dict[str, Any]]]:
        """Move the pointers, and yield the metadata of each loaded partition.

        While its pointer has not moved, one that could not be fetched, or whose newest run was not accepted, is left
        out: nothing was loaded, and assets downstream would run for nothing.
        """
        if self._opened is None:  # nothing was to be loaded
            return
        published = self._opened.loader.publish(output.committed)
        moved, visible = set(published.moved), set(published.published)
        written = [(load, each.table_version) for each in output.committed.written for load in each.runs]
        repeated = {
            load.run.key
            for load, _version in written
            if load.run in visible - moved and output.loadable.newest[load.run.key].run == load.run
        }
        if repeated:
            repeated -= self._resources.find_not_fetched()
        for load, table_version in written:
            key, before = load.run.key, output.loadable.pointers.get(load.run.key)
            if load.run in moved or key in repeated:
                yield (
                    key,
                    describe_load(
                        load.run,
                        before,
                        names=self._resources.names,
                        rows=load.record_count,
                        schema_version=load.facts.schema_version,
                        table_version=before.table_version if before and load.run not in moved else table_version,
                        measures=output.loadable.measures,
                        currency=load.facts.currency_code or "",
                    ),
                )

    def _pipeline(self, start_spark: "StartSpark") -> "Pipeline":
        self._opened = self._opened or self._resources.pipeline(start_spark)
        return self._opened

    def _find_reason(self, key: PartitionKey) -> str:
        resources = self._resources

        def describe(ledger: LedgerReader) -> DayCondition:
            rules = DayRules.read(ledger, resources.settings, now=datetime.now(UTC))
            return describe_days(ledger, [key], rules)[key]

        day = resources.ledger.read_at_once(describe)
        return f"{day.entry.label.lower()}: {day.reason}"

    def _find_due(self, names: Any, asset: dg.AssetKey) -> list[PartitionKey]:
        keys = parse_partition_names(names, source=self._resources.source_name, query_name=asset.path[-1])
        return select_due(keys, self._resources.due)


IO_MANAGER: Final = ResourceName[PartitionStateIOManager]("partition_state")
