"""Homes: with unusual names every file is below the home, and only the owner can open what is created there."""

import os
import shutil
import stat
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

import ads_pipeline
from ads_pipeline.lake.storage.durable_files import leave_access_to_umask
from ads_pipeline.operations.doctor.dagster_records import has_records, read_statuses
from ads_pipeline.settings.environment import VARIABLES, Settings, read_settings
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.pipeline.builders import QUERY, LocalDeployment, key, open_deployment, seal_run

CHECKOUT = Path(ads_pipeline.__file__).parent.parent
ODD_NAMES = ("a  b#c", "a [b]{c,d}*", "é:'\"$(x);&")
SCALAR = f"SELECT count(*) AS n FROM {QUERY}"


@dg.asset
def seven() -> int:
    return 7


def settings_of(home: Path) -> Settings:
    return read_settings({"ADS_PIPELINE_HOME": str(home)})


def visible(deployment: LocalDeployment) -> list[tuple[str, int]]:
    with deployment.readers.connect([QUERY]) as connection:
        return connection.execute(f"SELECT customer_id, clicks FROM {QUERY} ORDER BY ALL").fetchall()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_whole_way_below_an_odd_home(name: str, tmp_path: Path, spark: SparkSession) -> None:
    """Runs are sealed, judged, loaded, replaced and read, and nothing is written beside the home."""
    home = tmp_path / name
    settings = settings_of(home)
    with open_deployment(home, spark, settings.database_url) as deployment:
        deployment.pipeline.judge_and_load([seal_run(deployment, key(1)), seal_run(deployment, key(2))])
        judged, _loaded = deployment.pipeline.judge_and_load([seal_run(deployment, key(1), "r2")])
        assert [str(each.state.status) for each in judged.recorded] == ["success"]
        assert len(visible(deployment)) == 4
        frame = deployment.readers.read_rows(spark, QUERY)
        assert frame is not None
        assert frame.count() == 4
        assert deployment.differences() == []
    assert CommandLine(home=home).run("reconcile").code == 0
    queried = CommandLine(home=home).run("warehouse", "query", SCALAR, "--json")
    assert queried.objects == [{"n": 4}]
    assert CommandLine(home=home).run("raw", "verify", "--since", "2026-01-01", "--until", "2026-01-01").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert {path.name for path in home.iterdir()} >= {"raw", "warehouse", "ledger.db", "partition_status.parquet"}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_dagster_records_are_below_an_odd_home(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's databases are below the home, and `doctor` finds them there."""
    home, checkout = tmp_path / name, tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(CHECKOUT / "dagster.yaml", checkout)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ADS_PIPELINE_HOME", str(home))
    with dg.DagsterInstance.from_config(str(checkout)) as instance:
        run = dg.materialize([seven], instance=instance)
        assert instance.get_run_by_id(run.run_id) is not None
        assert instance.get_latest_materialization_event(dg.AssetKey("seven")) is not None
    assert has_records(home, None)
    assert read_statuses(home, None, [run.run_id]) == {run.run_id: "SUCCESS"}
    assert {path.name for path in tmp_path.iterdir()} == {name, "checkout"}


def test_similar_homes_share_no_ledger(tmp_path: Path) -> None:
    """Homes whose names differ after a reserved character have a ledger each."""
    homes = [tmp_path / name for name in ("a", "a#b", "a#c", "a&b", "a b", "ab")]
    for home in homes:
        assert CommandLine(home=home).run("migrate").code == 0
    assert [home for home in homes if not (home / "ledger.db").is_file()] == []
    assert {path.name for path in tmp_path.iterdir()} == {home.name for home in homes}


def exposed(top: Path, withheld: int) -> set[str]:
    """The paths below a directory that have a withheld permission, also on each directory above them."""
    found = set()
    for path in top.iterdir():
        mode = path.lstat().st_mode
        if mode & withheld:
            found.add(path.name)
            found |= exposed(path, withheld) if path.is_dir() else set()
    return found


def fill_home(home: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """Create every kind of file below the home."""
    command_line = CommandLine(home=home, more=more)
    assert command_line.run("migrate").code == 0
    with open_deployment(home, spark, settings_of(home).database_url) as deployment:
        deployment.pipeline.judge_and_load([seal_run(deployment, key())])
        assert {f"ledger.db{end}" for end in ("", "-wal", "-shm")} <= {path.name for path in home.iterdir()}
        monkeypatch.setenv("ADS_PIPELINE_HOME", str(home))
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        with dg.DagsterInstance.from_config(str(CHECKOUT)) as instance:
            dg.materialize([seven], instance=instance)
        assert command_line.run("reconcile").code == 0
        assert_access(home, 0o077 if not more else 0o007)


def assert_access(home: Path, withheld: int) -> None:
    assert exposed(home, withheld) == set()
    assert [path for path in (home / "raw").rglob("*") if path.lstat().st_mode & withheld] == []
    assert {path.name for path in home.iterdir()} >= {"raw", "warehouse", "dagster", "partition_status.parquet"}


@pytest.mark.parametrize("exists", [True, False])
def test_only_the_owner_can_open_new_files(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """With the usual umask, and in a home that was open to all, nobody else can open what the product creates."""
    home = tmp_path / "home"
    before = os.umask(0o022)
    try:
        if exists:
            home.mkdir()
        fill_home(home, spark, monkeypatch)
    finally:
        os.umask(before)
    assert stat.S_IMODE(home.stat().st_mode) == (0o755 if exists else 0o700)


def test_umask_decides_where_the_setting_says_so(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group can read a home that was created with the umask 027."""
    home = tmp_path / "home"
    before = os.umask(0o027)
    try:
        fill_home(home, spark, monkeypatch, ADS_PIPELINE_FILE_ACCESS="umask")
    finally:
        os.umask(before)
        leave_access_to_umask(leave=False)
    modes = {name: stat.S_IMODE((home / name).stat().st_mode) for name in ("", "raw", "ledger.db", "dagster")}
    assert modes == {"": 0o750, "raw": 0o750, "ledger.db": 0o640, "dagster": 0o750}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home / "raw").rglob("*.json*")} == {0o440}
