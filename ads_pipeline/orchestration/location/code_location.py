"""Builds the Dagster code location: assets, checks, sensors, schedules and resources over one deployment."""

import logging
import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster as dg

from ads_pipeline.google_ads.configuration import ClientConfiguration, check_installation, read_configuration
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.database import Engine
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration import resources
from ads_pipeline.orchestration.asset_checks import build_readable_check, build_valid_check
from ads_pipeline.orchestration.assets import build_assets
from ads_pipeline.orchestration.catalog import TEAM, Labels, build_external_assets, build_report
from ads_pipeline.orchestration.complete_check import build_complete_check
from ads_pipeline.orchestration.fetching import build_fetching_source
from ads_pipeline.orchestration.io_manager import IO_MANAGER, PartitionStateIOManager
from ads_pipeline.orchestration.naming.names import UNPREFIXED, Names
from ads_pipeline.orchestration.partitions import define_partitions
from ads_pipeline.orchestration.resources import (
    CONTROL_ACTIONS,
    LEDGER_ENGINE,
    RUN_RESOURCES,
    SENSOR_RESOURCES,
    SPARK,
    STEP_RESOURCES,
    RunResources,
    SensorResources,
    SourceFactory,
    SparkResource,
    StepResources,
)
from ads_pipeline.orchestration.runs.due_partitions import DUE_SCHEMA, read_due
from ads_pipeline.orchestration.runs.ended_runs import build_event_origin, close_if_ended
from ads_pipeline.orchestration.runs.lost_lease import end_on_loss
from ads_pipeline.orchestration.runs.origin_files import note_origin
from ads_pipeline.orchestration.runs.step_processes import find_wait
from ads_pipeline.orchestration.schedules import build_schedules
from ads_pipeline.orchestration.sensors.sensor_list import build_sensors
from ads_pipeline.settings.environment import Settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline.validation.contract_registry import read_contracts


def _now() -> datetime:
    return datetime.now(UTC)


def build_location(
    settings: Settings,
    *,
    names: Names = UNPREFIXED,
    labels: Labels = TEAM,
    # The steps of a run share one process: one Spark session, one lease, and the seals that were read.
    executor: dg.ExecutorDefinition | None = dg.in_process_executor,
    now: Clock = _now,
    source_factory: SourceFactory | None = None,
) -> dg.Definitions:
    """Build all definitions of a deployment. Nothing is called, and nothing else in the process changes.

    Raises BadSettings when extraction is on and the client or its credentials are missing.
    """
    note_origin([settings.queries_file, settings.home / DEFAULT_QUERIES_FILE.name])
    configuration = _read_client_configuration(settings)
    if configuration is not None:
        source_factory = source_factory or build_fetching_source(configuration)
    factory = source_factory or resources.build_external_source
    queries = list(settings.google_apis.queries)
    partitions = define_partitions(names, settings.google_apis.start_date)
    with warnings.catch_warnings():
        # Partitioned checks and backfill policies are beta features; the pinned Dagster version has them.
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        assets = [
            *_build_query_assets(names, labels, settings, partitions),
            build_report(names, labels, queries, settings, now=now),
        ]
        external = build_external_assets(names, labels, queries, settings)
        sensors = build_sensors(
            names,
            partitions,
            queries,
            arrival_interval=settings.arrival_interval,
            fetches=configuration is not None,
            has_webhook=settings.webhook is not None,
            now=now,
        )
        checks = _build_checks(names, queries, partitions)
        schedules = build_schedules(names, queries, configuration)
        return dg.Definitions(
            assets=[*assets, *external],
            asset_checks=checks,
            sensors=sensors,
            schedules=schedules,
            resources=_build_resources(names, settings, factory, _name_steps([*assets, *checks], schedules)),
            executor=executor,
        )


def _read_client_configuration(settings: Settings) -> ClientConfiguration | None:
    """The configuration of the client of Google Ads; None when extraction is off."""
    if settings.google_ads is None:
        return None
    check_installation(settings.google_apis.api_version, f"{settings.queries_file}: api_version")
    configuration = read_configuration(settings.google_ads, os.environ)
    for warning in configuration.warnings:
        logging.getLogger(__name__).warning("%s", warning)
    note_origin(configuration.files)
    return configuration


def _build_query_assets(
    names: Names, labels: Labels, settings: Settings, partitions: dg.MultiPartitionsDefinition
) -> list[dg.AssetsDefinition]:
    apis = settings.google_apis
    contracts = read_contracts(settings.queries_file, apis)
    return [
        asset
        for name, query in apis.queries.items()
        for asset in build_assets(names, labels, name, query, settings, partitions=partitions, contracts=contracts)
    ]


def _build_checks(
    names: Names, query_names: Sequence[str], partitions: dg.MultiPartitionsDefinition
) -> list[dg.AssetChecksDefinition]:
    per_partition = (build_valid_check, build_readable_check)
    checks = [build(names, name, partitions=partitions) for name in query_names for build in per_partition]
    return [*checks, *(build_complete_check(names, name) for name in query_names)]


def _name_steps(
    definitions: Iterable[dg.AssetsDefinition], schedules: Iterable[dg.ScheduleDefinition]
) -> frozenset[str]:
    """The steps of the product, in runs of assets and in those of its jobs."""
    jobs = [schedule.job for schedule in schedules if isinstance(schedule.job, dg.JobDefinition)]
    return frozenset(each.op.name for each in definitions).union(*(job.graph.node_dict for job in jobs))


def _build_resources(
    names: Names, settings: Settings, source_factory: SourceFactory, steps: Collection[str]
) -> dict[str, Any]:
    """The resources of a deployment, whose steps have these names in every run."""
    built = {
        LEDGER_ENGINE.text: _build_ledger_engine(settings),
        RUN_RESOURCES.text: _build_run_resources(names, settings, source_factory, steps),
        STEP_RESOURCES.text: _build_step_resources(names),
        SENSOR_RESOURCES.text: _build_sensor_resources(names, settings, source_factory),
        CONTROL_ACTIONS.text: _build_control_actions(names, settings),
        IO_MANAGER.text: _build_io_manager(names),
        SPARK.text: _build_pyspark(settings),
    }
    return {names.name(text): resource for text, resource in built.items()}


# They are not configurable resources, because Dagster would show the database's password and Spark's token.
def _build_pyspark(settings: Settings) -> dg.ResourceDefinition:
    @dg.resource(description="The Spark session of the run. It starts when a step first needs it.")
    def pyspark(_context: dg.InitResourceContext) -> Iterator[SparkResource]:
        from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415 - it takes longer than Dagster itself

        from ads_pipeline.spark.session import SPARK_SETTINGS, release_session, start_spark  # noqa: PLC0415 - loads Spark's client

        if settings.spark.startswith("sc://"):
            yield LazyPySparkResource(spark_config=SPARK_SETTINGS | {"spark.remote": settings.spark})
            return
        # An engine needs a channel of its own with a token, an own JVM needs its options in the environment, and both
        # are chosen when a step first needs Spark. None of it can be an option of a session.
        started = list[Any]()

        class SessionFromSettings(LazyPySparkResource):
            @property
            def spark_session(self) -> Any:
                if not started:
                    started.append(start_spark(settings))
                return started[0]

        yield SessionFromSettings(spark_config={})
        for spark in started:
            release_session(spark, settings)

    return pyspark


def _build_ledger_engine(settings: Settings) -> dg.ResourceDefinition:
    @dg.resource(description="The one connection pool on the ledger's database.")
    def ledger_engine(context: dg.InitResourceContext) -> Iterator[Engine]:
        answer_seconds = resources.TICK_ANSWER_SECONDS if context.run is None else None
        with resources.open_ledger_engine(settings, answer_seconds=answer_seconds) as engine:
            yield engine

    return ledger_engine


def _build_run_resources(
    names: Names, settings: Settings, source_factory: SourceFactory, steps: Collection[str]
) -> dg.ResourceDefinition:
    @dg.resource(
        config_schema=DUE_SCHEMA,
        required_resource_keys=names.require(LEDGER_ENGINE),
        description="Ledger, raw runs and warehouse for the IO manager and the jobs, with write access under the "
        "lease of the run.",
    )
    def run_resources(context: dg.InitResourceContext) -> Iterator[RunResources]:
        run, instance = context.run, context.instance
        if run is None or instance is None:
            raise dg.DagsterInvariantViolationError("run_resources can be opened only in a run")
        engine, origin = names.find(context, LEDGER_ENGINE), build_event_origin(run)
        due = read_due(context.resource_config, settings.google_apis.source)
        with resources.open_run_resources(
            settings,
            names,
            engine,
            origin,
            source_factory,
            due=due,
            on_loss=end_on_loss(),
            find_wait=lambda: find_wait(instance, run, steps, settings.step_wait),
            close_if_ended=partial(close_if_ended, instance),
        ) as opened:
            yield opened

    return run_resources


def _build_sensor_resources(names: Names, settings: Settings, source_factory: SourceFactory) -> dg.ResourceDefinition:
    @dg.resource(
        required_resource_keys=names.require(LEDGER_ENGINE),
        description="Ledger and raw runs for sensors: read access, and the log of completed runs.",
    )
    def sensor_resources(context: dg.InitResourceContext) -> SensorResources:
        return resources.build_sensor_resources(settings, names, names.find(context, LEDGER_ENGINE), source_factory)

    return sensor_resources


def _build_control_actions(names: Names, settings: Settings) -> dg.ResourceDefinition:
    @dg.resource(
        required_resource_keys=names.require(LEDGER_ENGINE),
        description="Control actions on partitions, such as requeue. They cannot record a verdict.",
    )
    def control_actions(context: dg.InitResourceContext) -> Iterator[ControlActions]:
        with Ledger.running(names.find(context, LEDGER_ENGINE), tenancy=settings.tenancy) as ledger:
            yield ledger.actions

    return control_actions


def _build_io_manager(names: Names) -> dg.IOManagerDefinition:
    @dg.io_manager(
        required_resource_keys=names.require(RUN_RESOURCES),
        description="Registers sealed runs, records verdicts and moves pointers in the ledger. It passes on only "
        "partitions whose status is success.",
    )
    def partition_state(context: dg.InitResourceContext) -> PartitionStateIOManager:
        return PartitionStateIOManager(names.find(context, RUN_RESOURCES))

    return partition_state


def _build_step_resources(names: Names) -> dg.ResourceDefinition:
    @dg.resource(
        required_resource_keys=names.require(IO_MANAGER),
        description="Ledger and raw runs for assets and checks, which can read and not write.",
    )
    def step_resources(context: dg.InitResourceContext) -> StepResources:
        return names.find(context, IO_MANAGER).step_resources

    return step_resources
