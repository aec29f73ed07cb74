"""Builds the materializations of partitions, and reports those that no run of the assets has reported.

A demotion, a restore and `reconcile` change a table outside the assets. Dagster cannot remove a materialization of a
single partition, so a partition that lost its rows gets one with 0 rows.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.days.conditions import READABLE_CONDITIONS, Condition
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.errors import RawError
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.sql.ledger_values import Pointer
from ads_pipeline.orchestration.metadata import describe_load, describe_removal, find_materializations
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import dimension_tags
from ads_pipeline.orchestration.resources import StepResources
from ads_pipeline.orchestration.step_values import find_measures

DATA_VERSION: Final = "dagster/data_version"
CODE_VERSION: Final = "dagster/code_version"
NO_ROWS: Final = "none"  # the data version of a partition whose rows were removed


def build_materialization(
    asset: dg.AssetKey, key: PartitionKey, metadata: Mapping[str, Any], tags: Mapping[str, str]
) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset_key=asset, partition=key.dagster_key, metadata=metadata, tags=dimension_tags(key) | dict(tags)
    )


def version_tags(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The versions of the code and of the data of a registered or loaded run, from its metadata."""
    return {CODE_VERSION: metadata["schema_version"], DATA_VERSION: metadata["run_id"]}


def describe_source(names: Names, source: str) -> dict[str, str]:
    """The tags of a raw materialization about its source. Without both, Dagster shows the partition as unsynced."""
    name = names.key(source).to_user_string()
    return {f"dagster/input_data_version/{name}": "INITIAL", f"dagster/input_event_pointer/{name}": "NULL"}


def describe_inputs(
    names: Names, instance: dg.DagsterInstance, newest: Mapping[PartitionKey, RegisteredRun]
) -> dict[PartitionKey, dict[str, str]]:
    """The tags that name the raw materialization of each partition. Without them, all show as unsynced.

    `newest` has the newest registered run of each partition of one query.
    """
    if not newest:
        return {}
    raw = names.raw(next(iter(newest)).query_name)
    storage_ids, name = find_materializations(instance, raw, newest), raw.to_user_string()
    return {
        key: {
            f"dagster/input_data_version/{name}": registered.run.run_id,
            f"dagster/input_event_pointer/{name}": str(storage_ids[key]),
        }
        for key, registered in newest.items()
        if key in storage_ids
    }


def find_currency(raw: RawRuns, run: Run) -> str:
    """The currency of the costs, as the seal of the run states it. Other extractors may leave it out."""
    with suppress(RawError):
        return raw.read_seal(run).facts.currency_code or ""
    return ""


def find_unreported(
    instance: dg.DagsterInstance,
    resources: StepResources,
    asset: dg.AssetKey,
    described: Mapping[PartitionKey, DayCondition],
) -> list[dg.AssetMaterialization]:
    """The materializations that are missing: of each day whose last one is not about the run that readers see.

    A day without any materialization is left out: no run of the assets has loaded it. So is a day in progress: a run
    will report its load.
    """
    shown = _find_shown(instance, asset, described)
    pointers = resources.ledger.publications.pointers(shown)
    visible = {
        key: pointer
        for key, pointer in pointers.items()
        if pointer.is_published and described[key].condition in READABLE_CONDITIONS
    }
    changed = [key for key, version in shown.items() if version != _version_of(visible.get(key))]
    if not changed:
        return []
    newest = {key: registered for key, (registered, _outcome) in resources.ledger.runs.newest(changed).items()}
    inputs, measures = describe_inputs(resources.names, instance, newest), find_measures(resources.ledger, changed)
    found = []
    for key in changed:
        pointer, day, before = visible.get(key), described[key], shown[key]
        if pointer is not None:
            currency = find_currency(resources.raw, pointer.run)
            metadata = describe_load(
                pointer.run,
                None,
                names=resources.names,
                rows=pointer.record_count,
                schema_version=pointer.schema_version,
                table_version=pointer.table_version,
                measures=measures,
                currency=currency,
            )
            tags = version_tags(metadata)
        else:
            version = newest[key].schema_version if key in newest else None
            metadata = describe_removal(before, f"{day.entry.label}: {day.reason}")
            tags = {DATA_VERSION: NO_ROWS} | ({CODE_VERSION: version} if version else {})
        found.append(build_materialization(asset, key, metadata, tags | inputs.get(key, {})))
    return found


def _find_shown(
    instance: dg.DagsterInstance, asset: dg.AssetKey, described: Mapping[PartitionKey, DayCondition]
) -> dict[PartitionKey, str]:
    """The data version of the last materialization of each day that has one and is not in progress."""
    names = {key.dagster_key: key for key, day in described.items() if day.condition is not Condition.IN_PROGRESS}
    if not names:
        return {}  # Dagster takes an empty list for all partitions
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        asset, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION], asset_partitions=list(names)
    )
    return {names[str(name)]: found[DATA_VERSION] for name, found in tags.items() if DATA_VERSION in found}


def _version_of(pointer: Pointer | None) -> str:
    return NO_ROWS if pointer is None else pointer.run.run_id
