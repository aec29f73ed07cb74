"""A Dagster code location over one deployment, and functions to run it and to read what Dagster shows."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

import dagster as dg
from alembic.script import ScriptDirectory
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._utils.env import environ
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.event_storage.instance_storage import BATCH_SIZE, InstanceStorage
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS, define_partitions
from ads_pipeline.orchestration.resources import (
    RunResources,
    SourceFactory,
    open_ledger_engine,
    open_run_resources,
)
from ads_pipeline.orchestration.sensors.run_requests import AssetKeyBuilder, RequestedPartitions
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.pipeline.builders import QUERY, LocalDeployment

UNPREFIXED = Names()
RAW, WAREHOUSE = Names().raw(QUERY), Names().warehouse(QUERY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A deployment, its definitions and a Dagster instance."""

    deployment: LocalDeployment
    settings: Settings
    defs: dg.Definitions
    instance: dg.DagsterInstance
    names: Names = field(default_factory=Names)

    def add_customers(self, *customers: int) -> None:
        self.instance.add_dynamic_partitions(self.names.name(CUSTOMERS), [str(customer) for customer in customers])

    def run(
        self,
        keys: Sequence[PartitionKey],
        assets: Sequence[dg.AssetKey] | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        run_config: Mapping[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Execute one run over the range from the first to the last partition."""
        run_tags = dict(tags or {}) | {
            "dagster/asset_partition_range_start": keys[0].dagster_key,
            "dagster/asset_partition_range_end": keys[-1].dagster_key,
        }
        job = self.defs.resolve_implicit_global_asset_job_def()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return job.execute_in_process(
                run_config=run_config,
                instance=self.instance,
                asset_selection=list(assets or self.names.assets([QUERY])),
                tags=run_tags,
                raise_on_error=False,
            )

    def materialized_and_failed(self, asset: dg.AssetKey) -> tuple[set[str], set[str]]:
        """Return the partitions that Dagster shows as materialized and as failed."""
        partitions = define_partitions(self.names, self.settings.google_apis.start_date)
        with dg.partition_loading_context(dynamic_partitions_store=self.instance):
            found = get_and_update_asset_status_cache_value(self.instance, asset, partitions)
            assert found is not None
            done = found.deserialize_materialized_partition_subsets(partitions).get_partition_keys()
            failed = found.deserialize_failed_partition_subsets(partitions).get_partition_keys()
        return set(map(str, done)), set(map(str, failed))

    def check_results(self) -> dict[str, bool]:
        """Map each checked partition to whether its last check passed."""
        partitions = define_partitions(self.names, self.settings.google_apis.start_date)
        check = dg.AssetCheckKey(self.names.raw(QUERY), "valid")
        with dg.partition_loading_context(dynamic_partitions_store=self.instance):
            state = self.instance.event_log_storage.get_asset_check_state([(check, partitions)])[check]
            return {
                str(name): status.value == "SUCCEEDED"
                for status, subset in state.subsets.items()
                if status.value in ("SUCCEEDED", "FAILED")
                for name in getattr(subset.value, "get_partition_keys", list)()
            }


def request_partitions(
    reasons: Mapping[PartitionKey, str],
    *,
    asset_keys: Sequence[AssetKeyBuilder] = (),
    names: Names = UNPREFIXED,
) -> RequestedPartitions:
    """What a sensor named `test` finds due."""
    return RequestedPartitions(
        names=names,
        sensor="test",
        source="google_ads",
        query_names=sorted({key.query_name for key in reasons} | {QUERY}),
        asset_keys=asset_keys or (names.raw, names.warehouse),
        reasons=reasons,
        why="test",
    )


def dagster_keys(*keys: PartitionKey) -> set[str]:
    return {key.dagster_key for key in keys}


@contextmanager
def open_location(
    home: Path,
    spark: SparkSession,
    *,
    clock: FakeClock | None = None,
    start_date: date | None = None,
    source_factory: SourceFactory | None = None,
    postgres_url: str | None = None,
    webhook: str | None = None,
    google_ads: str | None = None,
    names: Names = UNPREFIXED,
    instance: dg.DagsterInstance | None = None,
) -> Iterator[Location]:
    settings = read_settings({"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]"})
    settings = replace(settings, postgres_url=postgres_url, webhook=webhook, google_ads=google_ads)
    if start_date is not None:
        settings = replace(settings, google_apis=settings.google_apis.model_copy(update={"start_date": start_date}))
    home.mkdir(parents=True, exist_ok=True)
    opened = nullcontext(instance) if instance else open_instance(home)
    with Ledger.opened(settings.database_url) as ledger, opened as used:
        deployment = LocalDeployment(home=home, spark=spark, ledger=ledger)
        options: dict[str, Any] = {"now": clock} if clock else {}
        defs = build_location(settings, source_factory=source_factory, names=names, **options)
        yield Location(deployment=deployment, settings=settings, defs=defs, instance=used, names=names)


NO_OUTPUT: Final = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}


@contextmanager
def open_instance(home: Path, *, postgres_url: str | None = None) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance with the storage of the product, in SQLite or in Postgres.

    The output of steps is not kept. Dagster starts two processes a run to copy it.
    """
    variables = {
        "ADS_PIPELINE_HOME": str(home),
        "ADS_PIPELINE_DATABASE_URL": postgres_url,
        BATCH_SIZE[0]: BATCH_SIZE[1],
    }
    storage = {"custom": {"module": InstanceStorage.__module__, "class": InstanceStorage.__name__}}
    with (
        environ(cast("Mapping[str, str]", variables)),
        patch.object(ScriptDirectory, "from_config", _read_revisions_once),
        dg.instance_for_test({"storage": storage, "compute_logs": NO_OUTPUT}, temp_dir=str(home)) as instance,
    ):
        yield instance


# Dagster reads its 90 migration scripts for the file of each run.
_read_revisions_once = lru_cache(maxsize=8)(ScriptDirectory.from_config)


@contextmanager
def open_resources(location: Location, origin: EventOrigin, **options: Any) -> Iterator[RunResources]:
    """Open the resources of a run, on an engine of its own."""
    with (
        open_ledger_engine(location.settings) as engine,
        open_run_resources(location.settings, location.names, engine, origin, **options) as opened,
    ):
        yield opened
