"""An asset that follows the days of a table: Dagster runs it for each day that changed, and for no other."""

from datetime import date
from pathlib import Path

import dagster as dg
import duckdb
from deltalake import DeltaTable

from ads_pipeline.api import on_changed_days

QUERY = "campaign_daily"
SPEND = """
SELECT days.currency_code, customer_id, sum(rows.cost_micros) / 1e6 AS spend
FROM rows JOIN days USING (customer_id, run_id) GROUP BY ALL ORDER BY ALL
"""


def build_spend(home: Path, *, key_prefix: str = "", start_date: date = date(2024, 1, 1)) -> dg.AssetsDefinition:
    """The spend of each account, one CSV file for each day. A day that lacks an account has no file."""
    tables = home / "warehouse" / "google_ads"

    @dg.asset(
        group_name="agency",
        partitions_def=dg.DailyPartitionsDefinition(start_date.isoformat()),
        **on_changed_days(QUERY, key_prefix=key_prefix or ()),
    )
    def spend_by_account(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        day = context.partition_key
        file = home / "spend" / f"{day}.csv"
        of_day = [("logical_date", "=", date.fromisoformat(day))]
        days = DeltaTable(tables / "days").to_pyarrow_table(
            filters=[("query_name", "=", QUERY), ("month", "=", day[:7]), *of_day]
        )
        missing = [f"{each['customer_id']}: {each['reason']}" for each in days.to_pylist() if not each["is_readable"]]
        if missing or not days.num_rows:
            file.unlink(missing_ok=True)
            return dg.MaterializeResult(metadata={"is_complete": False, "missing": missing})
        rows = DeltaTable(tables / QUERY).to_pyarrow_table(filters=of_day)
        file.parent.mkdir(parents=True, exist_ok=True)
        with duckdb.connect() as connection:
            connection.register("days", days)
            connection.register("rows", rows)
            connection.sql(SPEND).write_csv(str(file))
        return dg.MaterializeResult(metadata={"is_complete": True, "accounts": days.num_rows})

    return spend_by_account
