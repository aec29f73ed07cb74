"""The demo and an operator's day with the lake in a bucket and the ledger in Postgres."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.lake.storage.s3_server import KEY_ID, SECRET
from ads_pipeline_tests.operations.cli.running import CommandLine, CommandResult
from ads_pipeline_tests.spark.servers import cluster, hide

SHOWN = "SELECT customer_id, count(DISTINCT logical_date) AS days FROM campaign_daily GROUP BY ALL ORDER BY ALL"


@pytest.fixture(params=["local", *(["cluster"] if TIMES > 1 else [])])
def spark_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Spark on this machine; with SOAK also a cluster whose workers cannot see the home."""
    if request.param == "local":
        request.getfixturevalue("spark")  # the commands of this process use it
        yield "local[2]"
        return
    home = tmp_path / "home"
    home.mkdir()
    with cluster(tmp_path / "servers", hide(home)) as (address, _servers):
        yield address


@pytest.mark.timeout(1200)
def test_operators_day_in_a_bucket(tmp_path: Path, postgres_url: str, s3_location: str, spark_address: str) -> None:
    """The demo, a demotion, a restoration and a repair: the home holds nothing of the lake, and nothing a secret."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_EXECUTOR_MEMORY": "512m", "SPARK_LOCAL_IP": "127.0.0.1"}
    own = {"ADS_PIPELINE_DATABASE_URL": postgres_url, "ADS_PIPELINE_LAKE": s3_location, "COLUMNS": "200"}
    cli = CommandLine(home=tmp_path / "home", more=variables | own | {"ADS_PIPELINE_SPARK": spark_address})
    output = list[CommandResult]()

    def run(*arguments: str, code: int = 0) -> CommandResult:
        starts_spark = {"demo", "demote", "restore", "reconcile"} & {*arguments[:2]}
        is_process = "demo" in arguments or (starts_spark and spark_address != "local[2]")
        output.append(cli.process(*arguments) if is_process else cli.run(*arguments))
        assert output[-1].code == code, (arguments, output[-1].out[-2000:], output[-1].err[-2000:])
        return output[-1]

    demo = run("demo")
    assert f" queries below {s3_location}/raw" in demo.out
    before = run("warehouse", "query", SHOWN, "--json").objects
    assert before
    visible = run("state", "inspect", "--status", "success", "--query", "campaign_daily", "--json").objects[0]
    partition = f"{visible['customer_id']}/campaign_daily/{visible['logical_date']}"
    run("state", "demote", partition, "--reason", "wrong currency", "--yes")
    assert run("warehouse", "query", SHOWN, "--json").objects != before
    run("state", "restore", partition, "--reason", "it was right", "--yes", "--run", visible["current_run_id"])
    assert run("warehouse", "query", SHOWN, "--json").objects == before
    _lose_newest_log_entry(f"{s3_location}/warehouse")
    assert run("reconcile", "--plan", code=1).out
    run("reconcile")
    assert run("warehouse", "query", SHOWN, "--json").objects == before
    assert "sealed runs" in run("raw", "verify", code=1).lines[-1]  # the demo has a damaged run
    lake_check = next(line for line in run("doctor").lines if line.split()[1:2] == ["lake"])
    assert lake_check.startswith("ok")
    lake = {file.name.partition("/")[0] for file in open_store(s3_location).list("")}
    assert lake == {"raw", "warehouse", "partition_status.parquet"}
    assert not {"raw", "warehouse", "partition_status.parquet"} & {path.name for path in cli.home.iterdir()}
    _assert_no_secret(output, cli.home, postgres_url, s3_location)


def _lose_newest_log_entry(warehouse: str) -> None:
    """What a restored backup of the bucket lacks: the last commit of a table."""
    store = open_store(warehouse)
    *_, newest = (
        file.name for file in store.list("google_ads/campaign_daily/_delta_log") if file.name.endswith(".json")
    )
    store.delete(newest)


def _assert_no_secret(output: list[CommandResult], home: Path, database: str, lake: str) -> None:
    """No output, file of the home, table of the database or object of the lake holds the credentials."""
    texts = [f"{result.out}{result.err}".encode() for result in output]
    texts += [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    store = open_store(lake)
    texts += [store.read(file.name) for file in store.list("")]
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        for schema in ("ads_pipeline", "dagster_records"):
            names = sa.inspect(connection).get_table_names(schema=schema)
            assert names
            for name in names:
                rows = connection.exec_driver_sql(f'SELECT t::text FROM "{schema}"."{name}" AS t').scalars()
                texts += [row.encode() for row in rows]
    engine.dispose()
    assert len(texts) > 100
    assert not [text for text in texts if SECRET.encode() in text or KEY_ID.encode() in text]
