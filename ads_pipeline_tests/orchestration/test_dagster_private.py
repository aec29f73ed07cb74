"""The private names of Dagster mean what this package takes them to mean, stand in one module, and may be missing."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

import ads_pipeline
from ads_pipeline.orchestration.event_storage import dagster_private
from ads_pipeline.orchestration.event_storage.dagster_private import (
    NAMES,
    SLOW_COMMAND,
    SLOW_EVENTS,
    SUPPRESS_MATERIALIZATION,
    WRONG_DAYS,
    DagsterSqliteStorage,
    LocalArtifactStorage,
    LocalComputeLogManager,
    PrivateName,
    build_target,
)
from ads_pipeline.spark.engine_address import engine_link
from ads_pipeline_tests.orchestration import backfill_of_one, hidden_name
from ads_pipeline_tests.orchestration.builders import open_location
from ads_pipeline_tests.pipeline.builders import key, seal_run
from ads_pipeline_tests.processes import ROOT
from ads_pipeline_tests.spark.servers import build_environment

# Partitioned checks and backfill policies are beta features.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
PACKAGE = Path(ads_pipeline.__file__).parent
ASSET = dg.AssetKey("rows")
KEYS = {"a", "b"}
NO_SPARK = f"{backfill_of_one.__name__}:{backfill_of_one.no_session.__name__}"
PARTITIONS = dg.StaticPartitionsDefinition(sorted(KEYS))
RANGE = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}


def test_private_names_stand_in_one_module() -> None:
    """No other module of the package imports a private module of Dagster, and each name is used."""
    importers = {
        path.name
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dagster") and "._" in str(node.module)
    }
    assert importers == {"dagster_private.py"}
    texts = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name not in importers]
    users = [*texts, Path(dagster_private.__file__).read_text().partition("BATCHED_EVENTS")[2]]
    assert [name for name in NAMES if not any(name in text for text in users)] == []


@pytest.mark.parametrize("suppressed", [True, False])
def test_suppressed_output_emits_no_materialization(suppressed: bool) -> None:
    """Without the metadata key, Dagster emits a materialization of each partition of the range."""

    @dg.asset(key=ASSET, partitions_def=PARTITIONS, backfill_policy=dg.BackfillPolicy.single_run())
    def rows() -> dg.Output[int]:
        return dg.Output(7, metadata={SUPPRESS_MATERIALIZATION: True} if suppressed else {})

    with dg.instance_for_test() as instance:
        assert materialize(instance, [rows]).success
        assert instance.get_materialized_partitions(ASSET) == (set() if suppressed else KEYS)


@pytest.mark.parametrize("targeted", [True, False])
def test_check_status_needs_the_target_materialization(targeted: bool) -> None:
    """Without it, Dagster shows no status of a materialized partition that a range run has checked."""

    @dg.asset(key=ASSET, partitions_def=PARTITIONS, backfill_policy=dg.BackfillPolicy.single_run())
    def rows() -> int:
        return 7

    @dg.asset_check(asset=ASSET, partitions_def=PARTITIONS)  # type: ignore[arg-type] # as in asset_checks
    def valid(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        stored = context.instance.event_log_storage.get_latest_storage_id_by_partition(
            ASSET, dg.DagsterEventType.ASSET_MATERIALIZATION, KEYS
        )
        for name, storage_id in stored.items():
            target = build_target(storage_id, context.run.run_id)
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


@dataclass(frozen=True, slots=True)
class Loaded:
    """A deployment in which one partition is loaded."""

    home: Path
    partition: str


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Loaded:
    home = tmp_path_factory.mktemp("loaded") / "home"
    with open_location(home, spark) as location:
        location.deployment.pipeline.judge_and_load([seal_run(location.deployment, key(1))])
    shutil.rmtree(home / "dagster", ignore_errors=True)
    engine_link(home).parent.mkdir(exist_ok=True)
    engine_link(home).symlink_to("/nowhere/socket")
    return Loaded(home, key(1).dagster_key)


@dataclass(frozen=True, slots=True)
class Finished:
    """A backfill that has ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def backfills() -> "Iterator[subprocess.Popen[str]]":
    """The process that starts backfills."""
    command = [sys.executable, "-m", hidden_name.__name__]
    shell = {name: value for name, value in build_environment().items() if not name.startswith("ADS_PIPELINE_")}
    with subprocess.Popen(command, env=shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def run_without(
    backfills: "subprocess.Popen[str]", loaded: Loaded, directory: Path, private: PrivateName
) -> Finished:
    """Run a backfill of the loaded partition in a process for which Dagster lacks a name."""
    shutil.copytree(loaded.home, directory / "home", symlinks=True)
    out, err = directory / "out", directory / "err"
    backfill = hidden_name.Backfill(
        module=private.module,
        name=private.name,
        partition=loaded.partition,
        environment={
            "ADS_PIPELINE_HOME": str(directory / "home"),
            "ADS_PIPELINE_SPARK": NO_SPARK,
            "DAGSTER_HOME": str(ROOT),
        },
        out=str(out),
        err=str(err),
    )
    assert backfills.stdin
    assert backfills.stdout
    backfills.stdin.write(json.dumps(asdict(backfill)) + "\n")
    backfills.stdin.flush()
    return Finished(int(backfills.stdout.readline()), out.read_text(), err.read_text())


OWN_INSTANCE = replace(
    NAMES["ExecuteRunArgs"], module="dagster._core.instance.types:MayHaveInstanceWeakref", name="_instance"
)
HIDDEN = {name: each for name, each in NAMES.items() if each.loss != WRONG_DAYS} | {"own instance": OWN_INSTANCE}


@pytest.mark.parametrize("name", HIDDEN)
def test_missing_name_costs_time_and_not_results(
    backfills: "subprocess.Popen[str]", loaded: Loaded, tmp_path: Path, name: str
) -> None:
    """The code location loads, a backfill of a partition runs, and one warning says what is lost."""
    private = HIDDEN[name]
    done = run_without(backfills, loaded, tmp_path, private)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown == {
        "success": True,
        "materialized": [[loaded.partition], [loaded.partition]],
        "batches": private.loss != SLOW_EVENTS,
        "health": name not in {"CheckRunHealthResult", "WorkerStatus"},
        "launched": "DefaultRunLauncher requires a workspace to be included in its LaunchRunContext",
    }
    begin = f"Dagster {dg.__version__} has no "
    warnings = {line.partition(begin)[2] for line in done.stderr.splitlines() if begin in line}
    assert len(warnings) == 1  # the log of a run shows a record twice
    assert warnings.pop().endswith(f"{private.name}: {private.loss}")


def test_name_without_which_results_are_wrong_stops_the_code_location(
    backfills: "subprocess.Popen[str]", loaded: Loaded, tmp_path: Path
) -> None:
    """The sentence names the version, the consequence and the command that installs another version."""
    private = NAMES["SUPPRESS_MATERIALIZATION"]
    done = run_without(backfills, loaded, tmp_path, private)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith(
        f"Dagster {dg.__version__} has no {private.path}, which ads_pipeline needs: otherwise a run would report "
        "days as materialized that it has not loaded. Install a version that has it: pip install 'dagster==1.13.*'"
    )


def test_renamed_method_of_a_storage_is_a_missing_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An override that Dagster never calls would lose events. A process says so once."""
    assert dagster_private.has_batched_events()
    renamed = replace(NAMES["SqlEventLogStorage"], methods=("store_events_under_another_name",))
    monkeypatch.setitem(NAMES, "SqlEventLogStorage", renamed)
    assert not dagster_private.has_batched_events()
    assert not dagster_private.has_batched_events()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [SLOW_EVENTS]


def test_command_that_cannot_be_loaded_ahead_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run loads it itself."""
    monkeypatch.setitem(sys.modules, "dagster._cli.api", None)
    dagster_private.load_run_command()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [SLOW_COMMAND]
