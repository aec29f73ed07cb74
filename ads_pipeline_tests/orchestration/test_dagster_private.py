"""The private names of Dagster mean what this package takes them to mean, and stand in two modules."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import ads_pipeline
from ads_pipeline.orchestration import dagster_private
from ads_pipeline.orchestration.dagster_private import SUPPRESS_MATERIALIZATION, TargetMaterialization
from ads_pipeline.orchestration.event_storage import dagster_private_storages
from ads_pipeline.orchestration.event_storage.dagster_private_storages import (
    DagsterSqliteStorage,
    LocalArtifactStorage,
    LocalComputeLogManager,
)

# Partitioned checks and backfill policies are beta features.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
ROOT = Path(ads_pipeline.__file__).parent
ASSET = dg.AssetKey("rows")
NAMES = {"a", "b"}
PARTITIONS = dg.StaticPartitionsDefinition(sorted(NAMES))
RANGE = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}


def test_private_names_stand_in_two_modules() -> None:
    """No other module of the package imports a private module of Dagster, and each exported name is used."""
    importers = {
        path.name: {alias.name for alias in node.names}
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dagster.") and "._" in str(node.module)
    }
    assert list(importers) == ["dagster_private.py", "dagster_private_storages.py"]
    sources = [path.read_text() for path in (ROOT / "orchestration").rglob("*.py") if path.name not in importers]
    exported = [*dagster_private.__all__, *dagster_private_storages.__all__]
    assert [name for name in exported if not any(name in source for source in sources)] == []


@pytest.mark.parametrize("suppressed", [True, False])
def test_suppressed_output_emits_no_materialization(suppressed: bool) -> None:
    """Without the metadata key, Dagster emits a materialization of each partition of the range."""

    @dg.asset(key=ASSET, partitions_def=PARTITIONS, backfill_policy=dg.BackfillPolicy.single_run())
    def rows() -> dg.Output[int]:
        return dg.Output(7, metadata={SUPPRESS_MATERIALIZATION: True} if suppressed else {})

    with dg.instance_for_test() as instance:
        assert materialize(instance, [rows]).success
        assert instance.get_materialized_partitions(ASSET) == (set() if suppressed else NAMES)


@pytest.mark.parametrize("targeted", [True, False])
def test_check_status_needs_the_target_materialization(targeted: bool) -> None:
    """Without it, Dagster shows no status of a materialized partition that a range run has checked."""

    @dg.asset(key=ASSET, partitions_def=PARTITIONS, backfill_policy=dg.BackfillPolicy.single_run())
    def rows() -> int:
        return 7

    @dg.asset_check(asset=ASSET, partitions_def=PARTITIONS)  # type: ignore[arg-type] # as in asset_checks
    def valid(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        stored = context.instance.event_log_storage.get_latest_storage_id_by_partition(
            ASSET, dg.DagsterEventType.ASSET_MATERIALIZATION, NAMES
        )
        for name, storage_id in stored.items():
            target = TargetMaterialization(storage_id=storage_id, run_id=context.run.run_id, timestamp=0.0)
            yield dg.AssetCheckEvaluation(
                asset_key=ASSET,
                check_name="valid",
                partition=name,
                passed=name == "a",
                metadata={},
                target_materialization_data=target if targeted else None,
            )
        yield dg.Output(None)

    with dg.instance_for_test() as instance:
        assert materialize(instance, [rows, valid]).success
        check = dg.AssetCheckKey(ASSET, "valid")
        state = instance.event_log_storage.get_asset_check_state([(check, PARTITIONS)])[check]
        shown = {
            status.value: set(subset.subset_value.get_partition_keys())
            for status, subset in state.subsets.items()
            if not subset.is_empty
        }
    assert shown == ({"SUCCEEDED": {"a"}, "FAILED": {"b"}} if targeted else {})


def test_storage_classes_write_below_their_directory(tmp_path: Path) -> None:
    """The classes that `instance_storage` extends keep all files below the given directory."""
    records = DagsterSqliteStorage.from_local(str(tmp_path / "records"))
    records.run_storage.add_run(dg.DagsterRun(job_name="job"))
    assert (tmp_path / "records" / "history" / "runs.db").is_file()
    assert LocalArtifactStorage(str(tmp_path)).storage_dir == str(tmp_path / "storage")
    logs = LocalComputeLogManager(str(tmp_path / "logs"))
    assert Path(logs.get_captured_local_path(["run", "step"], "out")).is_relative_to(tmp_path / "logs")


def materialize(instance: dg.DagsterInstance, definitions: list[Any]) -> dg.ExecuteInProcessResult:
    resources = {"io_manager": dg.mem_io_manager}
    return dg.materialize(definitions, instance=instance, tags=RANGE, resources=resources)
