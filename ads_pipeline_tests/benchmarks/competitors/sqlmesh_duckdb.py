"""SQLMesh with DuckDB: a model by time range, whose days are deleted and inserted again by a plan."""

import os
from pathlib import Path

os.environ["SQLMESH__DISABLE_ANONYMIZED_ANALYTICS"] = "true"  # read on import

from sqlmesh import Context
from sqlmesh.core.config import Config, DuckDBConnectionConfig, GatewayConfig, ModelDefaultsConfig

from ads_pipeline_tests.benchmarks.competitors.serving import Batch, serve

MODEL = "ads.campaign_daily"
COLUMNS = (
    "{'date': 'DATE', 'customer_id': 'VARCHAR', 'campaign_id': 'BIGINT', 'campaign_name': 'VARCHAR', "
    "'campaign_status': 'VARCHAR', 'campaign_advertising_channel_type': 'VARCHAR', 'impressions': 'BIGINT', "
    "'clicks': 'BIGINT', 'cost_micros': 'BIGINT', 'conversions': 'DOUBLE', 'conversions_value': 'DOUBLE'}"
)
# A partition may have several runs: the newest one has the last folder name.
DEFINITION = """
MODEL (name {name}, kind INCREMENTAL_BY_TIME_RANGE (time_column date), start '{start}', cron '@daily');
SELECT
  date::DATE, customer_id::TEXT, campaign_id::BIGINT, campaign_name::TEXT, campaign_status::TEXT,
  campaign_advertising_channel_type::TEXT, impressions::BIGINT, clicks::BIGINT, cost_micros::BIGINT,
  conversions::DOUBLE, conversions_value::DOUBLE
FROM read_json(
  '{files}', format = 'newline_delimited', columns = {columns}, filename = TRUE,
  hive_partitioning = TRUE, hive_types = {{'logical_date': DATE}}
)
WHERE
  logical_date BETWEEN @start_date AND @end_date
  AND filename IN (SELECT MAX(file) FROM GLOB('{files}') GROUP BY REGEXP_REPLACE(file, '/run_id=.*', ''))
"""


class SqlMesh:
    def __init__(self) -> None:
        self._contexts: dict[Path, Context] = {}

    def load(self, batch: Batch) -> None:
        context, (start, end) = self._contexts.get(batch.home), batch.days
        if context is not None:
            context.plan(start=start, end=end, restate_models=[MODEL], auto_apply=True, no_prompts=True)
            return
        context = self._contexts[batch.home] = _open_project(batch, start)
        context.plan(auto_apply=True, no_prompts=True)

    def read_totals(self, home: Path) -> tuple[int, int]:
        connection = self._contexts[home].engine_adapter
        rows = connection.fetchone(f"SELECT count(*), sum(clicks) FROM {MODEL}")
        assert rows is not None
        return rows[0], rows[1]


def _open_project(batch: Batch, start: str) -> Context:
    files = f"{batch.root}/*/customer_id=*/query_name=*/logical_date=*/run_id=*/payload.jsonl"
    models = batch.home / "models"
    models.mkdir(parents=True)
    definition = DEFINITION.format(name=MODEL, start=start, files=files, columns=COLUMNS)
    (models / "campaign_daily.sql").write_text(definition)
    config = Config(
        gateways={"": GatewayConfig(connection=DuckDBConnectionConfig(database=str(batch.home / "merged.duckdb")))},
        model_defaults=ModelDefaultsConfig(dialect="duckdb"),
    )
    return Context(paths=[str(batch.home)], config=config)


if __name__ == "__main__":
    serve(SqlMesh())
