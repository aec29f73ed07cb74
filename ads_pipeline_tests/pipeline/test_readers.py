"""Consistent views of the warehouse, isolation of the session, and the list of gaps."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from ads_pipeline.domain.days.conditions import GapReason
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.sql.ledger_values import DayWindow, VisibleRuns
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.lake.warehouse.builders import read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request, rejection
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    LocalDeployment,
    corrupt_payload,
    find_gaps,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
    visible_runs_in_spark,
)

CURRENT = f"{QUERY}_current"
# The tables about days name every customer; no row of a withdrawn day stands in them. No day of an unknown account is
# settled.
EXPECTED_CUSTOMERS = {
    "days": [("1",), ("2",)],
    "accounts": [("1",), ("2",)],
    "loads": [("1",), ("2",)],
    "restatements": [],
    f"{QUERY}_settled": [],
}


def test_current_view_shows_only_current_runs(deployment_on_each_store: LocalDeployment) -> None:
    """Until a newer accepted run is loaded, its predecessor is visible but not in the `_current` view."""
    deployment = deployment_on_each_store
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1)), seal_run(deployment, key(2))])
    deployment.pipeline.validation.judge([seal_run(deployment, key(1), "r2")])
    assert visible_runs(deployment) == visible_runs_in_spark(deployment) == {key(1): "r1", key(2): "r1"}
    assert visible_runs(deployment, CURRENT) == {key(2): "r1"}
    deployment.pipeline.loader.load([key(1)])
    assert visible_runs(deployment, CURRENT) == visible_runs(deployment) == {key(1): "r2", key(2): "r1"}


def test_settled_view_shows_only_final_figures(deployment: LocalDeployment) -> None:
    """Days of a known account whose report was extracted after the source had stopped changing them."""
    account = Account(source=SOURCE, customer_id="1", status="ENABLED", time_zone="Europe/Berlin")
    deployment.ledger.accounts.record(SOURCE, [account])
    runs = [seal_run(deployment, each) for each in (key(1, day=1), key(1, day=31), key(2, day=1))]
    deployment.pipeline.judge_and_load(runs)
    assert visible_runs(deployment, f"{QUERY}_settled") == {key(1, day=1): "r1"}


def test_load_between_two_reads_hides_no_partition(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load between opening the table and reading the ledger shows the new rows."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key())])

    read, reads = deployment.ledger.publications.visible_runs, count(1)

    def load_before_first_read(window: DayWindow) -> VisibleRuns:
        if next(reads) == 1:
            deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r2")])
        return read(window)

    monkeypatch.setattr(deployment.ledger.publications, "visible_runs", load_before_first_read)
    with deployment.readers.connect([QUERY]) as connection:
        assert connection.execute(f"SELECT DISTINCT run_id FROM {QUERY}").fetchall() == [("r2",)]
    assert next(reads) == 3


@pytest.mark.invariant("W16")
def test_session_reads_one_version(deployment_on_each_store: LocalDeployment) -> None:
    """All queries of a DuckDB session, and a Spark frame, read the version at their start."""
    deployment = deployment_on_each_store
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1))])
    frame = deployment.readers.read_rows(deployment.spark, QUERY)
    assert frame is not None
    with deployment.readers.connect([QUERY]) as connection:
        query = f"SELECT count(*) FROM {QUERY}"
        assert connection.execute(query).fetchall() == [(2,)]
        deployment.pipeline.judge_and_load(
            [seal_run(deployment, key(1), "r2", count=5), seal_run(deployment, key(2))]
        )
        assert connection.execute(query).fetchall() == [(2,)]
    assert frame.count() == 2


FILE_STATEMENTS = (
    "FROM '{table}/*/*.parquet'",
    "FROM '{file}'",
    "FROM read_parquet('{file}')",
    "FROM parquet_metadata('{file}')",
    "FROM delta_scan('{table}')",
    "FROM delta_campaign_daily",
    "FROM delta_campaign_daily.default.campaign_daily",
    "FROM delta_campaign_daily_visible_runs",
    "FROM read_csv('{home}/ledger.db')",
    "FROM read_text('{table}/_delta_log/*.json')",
    "FROM read_blob('{home}/ledger.db')",
    "FROM glob('{home}/*')",
    "FROM sniff_csv('{home}/ledger.db')",
    "FROM query('FROM read_parquet(''{file}'')')",
    "FROM query_table('{file}')",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM read_parquet(''{file}'')'))",
    "CREATE VIEW hidden AS FROM read_parquet('{file}')",
    "COPY (SELECT 1) TO '{file}' (FORMAT parquet)",
    "COPY (SELECT 1) TO '{home}/output.csv'",
    "CREATE TABLE copied (line VARCHAR); COPY copied FROM '{table}/_delta_log/00000000000000000000.json'",
    "EXPORT DATABASE '{home}/output'",
    "ATTACH '{home}/other.db' AS other",
    "ATTACH '{table}' AS other (TYPE delta)",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD delta",
    "FROM read_csv('http://127.0.0.1:1/rows.csv')",
    "CREATE PERSISTENT SECRET hidden (TYPE http, BEARER_TOKEN 'x')",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET allowed_paths = ['{file}']",
    "SET allowed_directories = ['{home}']",
    "SET lock_configuration = false",
    "SET python_enable_replacements = true",
    "PRAGMA profiling_output = '{home}/profile.json'",
    "SELECT getenv('HOME')",
    "FROM hidden_rows",
    "FROM arrow_scan(1, 2, 3)",
)


def test_session_has_no_access_to_files(deployment: LocalDeployment) -> None:
    """A session reaches no file, extension, setting or Python variable; also not the files of its own tables."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key())])
    hidden_rows = pa.table({"hidden": [1]})
    table = deployment.home / "warehouse" / "google_ads" / QUERY
    (file,) = table.glob("*/*.parquet")
    content, executed = file.read_bytes(), []
    for statement in FILE_STATEMENTS:
        with deployment.readers.connect([QUERY]) as connection, suppress(duckdb.Error):
            connection.execute(statement.format(home=deployment.home, table=table, file=file)).fetchall()
            executed.append(statement)
    assert executed == []
    assert file.read_bytes() == content
    assert not list(deployment.home.glob("o*"))  # no output of COPY, EXPORT or ATTACH
    assert hidden_rows.num_rows == 1


@pytest.mark.invariant("W3")
def test_every_relation_of_a_session_has_only_visible_rows(deployment_on_each_store: LocalDeployment) -> None:
    """Hidden and visible rows stand in one file; no table or view that a session lists has the hidden ones."""
    deployment = deployment_on_each_store
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1)), seal_run(deployment, key(2))])
    deployment.ledger.actions.execute(Action.WITHDRAW, [key(2)], action_request())
    assert set(read_with_duckdb(deployment.warehouse_location)) == {key(1), key(2)}
    with deployment.readers.connect([QUERY]) as connection:
        relations = connection.execute(
            "SELECT database_name, schema_name, table_name FROM duckdb_tables() UNION ALL "
            "SELECT database_name, schema_name, view_name FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
        for relation in relations:
            name = ".".join(f'"{part}"' for part in relation)
            shown = connection.execute(f"SELECT DISTINCT customer_id FROM {name} ORDER BY ALL").fetchall()
            assert shown == EXPECTED_CUSTOMERS.get(relation[-1], [("1",)])
        names = {relation[-1] for relation in relations}
        assert names == {QUERY, f"{QUERY}_current", *EXPECTED_CUSTOMERS}
        catalogues = connection.execute("SELECT database_name FROM duckdb_databases() WHERE NOT internal").fetchall()
        assert catalogues == [("memory",)]


def test_filters_and_columns_select_the_same_rows_as_a_full_read(deployment_on_each_store: LocalDeployment) -> None:
    """A session reads only the files and columns that a statement needs, and the result does not change."""
    deployment = deployment_on_each_store
    deployment.pipeline.judge_and_load(
        [seal_run(deployment, key(1, 1)), seal_run(deployment, key(2, 1)), seal_run(deployment, key(1, 2), count=3)]
    )
    deployment.pipeline.validation.judge([seal_run(deployment, key(2, 1), "r2")])
    deployment.pipeline.loader.load([key(1, 1)])
    deployment.pipeline.judge_and_load([seal_run(deployment, key(3, 2), all_conversions=2.0)])
    counts = {
        "": 9,
        "WHERE customer_id = '1'": 5,
        "WHERE logical_date = '2026-01-02'": 5,
        "WHERE logical_date = '2026-01-02' AND customer_id IN ('1', '2')": 3,
        "WHERE NOT is_current": 2,
        "WHERE is_current AND customer_id = '2'": 0,
        "WHERE all_conversions IS NULL": 7,
        "WHERE all_conversions = 2.0": 2,
        "WHERE run_id = 'r9'": 0,
        "WHERE logical_date IN (SELECT max(logical_date) FROM {query})": 5,
    }
    with deployment.readers.connect([QUERY]) as connection:
        for condition, count in counts.items():
            statement = f"SELECT count(*), count(campaign_id) FROM {QUERY} {condition}".format(query=QUERY)
            assert connection.execute(statement).fetchall() == [(count, count)], condition
        joined = f"SELECT count(*) FROM {QUERY} JOIN {QUERY}_current USING (customer_id, logical_date, campaign_id)"
        assert connection.execute(joined).fetchall() == [(7,)]


def test_query_without_a_table_has_no_view(deployment_on_each_store: LocalDeployment) -> None:
    """Before the first load there is no frame and no view, but a session."""
    deployment = deployment_on_each_store
    assert deployment.readers.read_rows(deployment.spark, QUERY) is None
    with deployment.readers.connect([QUERY, "ad_group_daily"]) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == []


def test_emptied_table_has_columns_and_no_rows(deployment: LocalDeployment) -> None:
    """After the last row is removed, both readers still return the columns."""
    run = seal_run(deployment, key())
    deployment.pipeline.judge_and_load([run])
    corrupt_payload(deployment, run)
    deployment.pipeline.validation.judge([run], validation_id="again")
    frame = deployment.readers.read_rows(deployment.spark, QUERY)
    assert frame is not None
    assert (frame.count(), frame.columns[-1]) == (0, "is_current")
    assert visible_runs(deployment) == {}


def test_each_gap_has_a_reason(deployment: LocalDeployment) -> None:
    """Every expected partition that is not visible is listed once with its reason."""
    visible = seal_run(deployment, key(1))
    unloaded, demoting, withdrawn = (
        seal_run(deployment, key(2)),
        seal_run(deployment, key(3)),
        seal_run(deployment, key(4)),
    )
    unjudged, invalid = seal_run(deployment, key(5)), seal_invalid_run(deployment, key(6))
    deployment.pipeline.judge_and_load([visible, demoting, withdrawn, invalid])
    deployment.pipeline.validation.judge([unloaded])
    deployment.ledger.verdicts.begin_demotions([rejection(demoting, validation_id="again")])
    deployment.ledger.actions.execute(Action.WITHDRAW, [withdrawn.key], action_request())
    deployment.ledger.registrations.insert_pending([key(7)])
    deployment.ledger.registrations.register([sealed_run(unjudged, 2)])
    day = key().logical_date
    gaps = find_gaps(deployment, QUERY, since=day, until=day)
    assert {partition: found.gap for partition, found in gaps.items()} == {
        unloaded.key: GapReason.UNLOADED,
        demoting.key: GapReason.DEMOTING,
        withdrawn.key: GapReason.WITHDRAWN,
        unjudged.key: GapReason.UNJUDGED,
        invalid.key: GapReason.REJECTED,
    }
    assert "cost_micros" in gaps[invalid.key].explanation
    assert gaps[withdrawn.key].reason == "withdrawn by ada: on request"
    named = find_gaps(deployment, QUERY, since=day, until=day, customers=["2", "7"])
    assert [(partition, found.gap) for partition, found in named.items()] == [(unloaded.key, GapReason.UNLOADED)]


def test_failed_fetch_is_a_gap_with_its_error(deployment_on_each_database: LocalDeployment) -> None:
    """A customer is expected from its first failed fetch on, although no run of it was ever sealed. The newest error
    counts, until a run arrives."""
    deployment, reread = deployment_on_each_database, timedelta(hours=1)
    started = datetime(2026, 2, 10, tzinfo=UTC)
    for number, text in enumerate(["no answer", "no quota"]):
        fetch = FailedFetch(
            key=key(1, 1), error_class="transient", error_message=text, failed_at=started + number * reread
        )
        deployment.ledger.failed_fetches.record([fetch], RetryPolicy())
    window: dict[str, Any] = {"since": key(day=1).logical_date, "until": key(day=2).logical_date}
    gaps = find_gaps(deployment, QUERY, **window)
    assert {partition: found.reason for partition, found in gaps.items()} == {
        key(1, 1): "its last fetch failed: no quota",
        key(1, 2): "no run arrived",
    }
    assert gaps[key(1, 1)].since == started + reread
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1, 1))])
    assert list(find_gaps(deployment, QUERY, **window)) == [key(1, 2)]


def test_missing_customers_and_days_are_gaps(deployment: LocalDeployment) -> None:
    """Gaps cover all known customers, or those of them that are given."""
    deployment.pipeline.judge_and_load(
        [seal_run(deployment, key(1, 1)), seal_run(deployment, key(2, 1)), seal_run(deployment, key(1, 2))]
    )
    window: dict[str, Any] = {"since": key(day=1).logical_date, "until": key(day=3).logical_date}
    assert list(find_gaps(deployment, QUERY, **window)) == [key(2, 2), key(1, 3), key(2, 3)]
    named = find_gaps(deployment, QUERY, customers=["9", "2", "9"], **window)
    assert list(named) == [key(2, 2), key(2, 3)]


def test_query_is_expected_from_its_own_first_day(deployment_on_each_database: LocalDeployment) -> None:
    """A query that no run was sealed of is not expected, unless discovery found the account: it has every query."""
    deployment, other = deployment_on_each_database, "ad_group_daily"
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1, 1)), seal_run(deployment, key(2, 1))])
    window: dict[str, Any] = {"since": key(day=1).logical_date, "until": key(day=2).logical_date}
    assert list(find_gaps(deployment, other, **window)) == []
    account = Account(source=key().source, customer_id="2", status="ENABLED")
    deployment.ledger.accounts.record(account.source, [account])
    assert list(find_gaps(deployment, other, **window)) == [key(2, 1, other), key(2, 2, other)]
