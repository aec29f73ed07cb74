# %% [markdown]
# Spend of each client, from the days that are safe to read, with polars and with DuckDB.
#
# VS Code, PyCharm and JupyterLab (with jupytext) open this file as a notebook. As a program it needs the packages of
# examples/requirements.lock and the variable ADS_PIPELINE_HOME:  python examples/notebook/spend.py

# %% polars
import os

import polars as pl

tables = os.environ["ADS_PIPELINE_HOME"] + "/warehouse/google_ads"
days = pl.scan_delta(f"{tables}/days").filter(pl.col("query_name") == "campaign_daily")
missing = days.filter(~pl.col("is_readable")).select("customer_name", "logical_date", "condition", "reason")
print(missing.sort("logical_date").collect())

rows = pl.scan_delta(f"{tables}/campaign_daily").join(days, on=["customer_id", "logical_date", "run_id"])
spend = rows.group_by("customer_name", "currency_code").agg(pl.col("cost_micros").sum() / 1e6)
print(spend.sort("customer_name").collect())

# %% DuckDB
import duckdb

connection = duckdb.connect()
connection.load_extension(os.environ.get("DELTA_EXTENSION", "delta"))  # installed once by: INSTALL delta
for table in ("days", "campaign_daily"):
    connection.execute(f"CREATE VIEW {table} AS FROM delta_scan('{tables}/{table}')")
connection.sql("""
    SELECT customer_name, days.currency_code, sum(spent.cost_micros) / 1e6 AS spend
    FROM campaign_daily AS spent JOIN days USING (customer_id, logical_date, run_id)
    WHERE days.query_name = 'campaign_daily' GROUP BY ALL ORDER BY customer_name
""").show()
