"""Evaluates sensors as Dagster's daemon does, and makes the runs that they look at."""

from typing import Any

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.runs.due_partitions import read_run_config
from ads_pipeline.orchestration.runs.ended_runs import build_event_origin
from ads_pipeline.orchestration.runs.run_tags import END, START
from ads_pipeline_tests.orchestration.builders import UNPREFIXED, Location, open_resources
from ads_pipeline_tests.pipeline.builders import QUERY, key


def tick(location: Location, name: str = "raw_arrivals", *, cursor: str | None = None) -> dg.SensorResult:
    """Evaluate a sensor once, and add the customers that it requests as the daemon does."""
    sensor = location.defs.resolve_sensor_def(location.names.name(name))
    defined: Any = location.defs.resources
    names = sensor.required_resource_keys
    with dg.build_sensor_context(
        instance=location.instance,
        definitions=location.defs,
        cursor=cursor,
        resources={name: defined[name] for name in (*names, location.names.name("ledger_engine"))},
    ) as context:
        result = sensor._raw_fn(context)  # a call of the sensor would also pass the resources as arguments
    assert isinstance(result, dg.SensorResult)
    for request in result.dynamic_partitions_requests or []:
        location.instance.add_dynamic_partitions(str(request.partitions_def_name), list(request.partition_keys))
    return result


def requested_ranges(result: dg.SensorResult) -> list[str]:
    tags = [dict(request.tags or {}) for request in result.run_requests or []]
    return [f"{each[START]}..{each[END]}" for each in tags]


def due_partitions(request: dg.RunRequest, names: Names = UNPREFIXED) -> set[PartitionKey]:
    """The partitions that the requested run is for."""
    return set(read_run_config(names, request.run_config or {}, "google_ads") or ())


def execute_requests(location: Location, result: dg.SensorResult) -> None:
    """Execute the requested runs in this process."""
    for request in result.run_requests or []:
        start, end = (_parsed(request.tags[tag]) for tag in (START, END))
        location.run([start, end], request.asset_selection or (), tags=request.tags, run_config=request.run_config)


def _parsed(name: str) -> PartitionKey:
    customer, day = name.split("|")
    return key(int(customer), int(day[-2:]))


def create_run(location: Location, *keys: PartitionKey) -> dg.DagsterRun:
    """Create a run over the range of these partitions without starting it."""
    tags = {START: keys[0].dagster_key, END: keys[-1].dagster_key}
    job = location.defs.resolve_implicit_global_asset_job_def()
    return location.instance.create_run_for_job(
        job, tags=tags, asset_selection=frozenset(location.names.assets([QUERY]))
    )


def crash_run(location: Location, *keys: PartitionKey) -> dg.DagsterRun:
    """Start a run, register the sealed runs of these partitions, and stop it without its last events."""
    crashed = create_run(location, *keys)
    with open_resources(location, build_event_origin(crashed)) as resources:
        resources.claim(keys)
        resources.seals.register(resources.source.land(keys).runs)
    return crashed
