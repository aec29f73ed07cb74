"""The tables of accounts and API operations. No partition's state depends on them."""

from ads_pipeline.ledger.sql.state_tables import define_table

# Every account that discovery has found. Those that left stay, with the time since when they are gone.
accounts = define_table(
    "accounts",
    "source text key, customer_id text key, status text, level integer, name text, is_manager integer, "
    "manager_id text, login_customer_id text, time_zone text, currency_code text, is_test integer, "
    "is_hidden integer, seen_at instant, gone_at instant, lookback_days integer, lookback_read_at instant",
)

# A row before each call, and a second one with its outcome. `others_no` counts the operations up to this one that
# fetch no fresh day: of backfills and about accounts. Differences of numbers count the operations of a window.
api_operations = define_table(
    "api_operations",
    "source text key, operation_no bigint key, entry text key, at instant, engine_run_id text, kind text, lane text, "
    "others_no bigint, customer_id text, query_name text, since day, until day, outcome text, error_message text, "
    "request_id text, rows_received bigint, milliseconds bigint, consumption bigint",
)
