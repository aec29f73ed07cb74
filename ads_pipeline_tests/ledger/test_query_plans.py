"""The indexes of the queries that must stay fast in ledgers of any size."""

import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.days.conditions import BLOCKED_CONDITIONS, CONDITIONS
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.days.materialization_status import RAW
from ads_pipeline.domain.fetching.retry_policy import Lane, RetryPolicy
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.control import retry_queue_queries
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_values import DayWindow, StateFilter
from ads_pipeline_tests.ledger.large_ledgers import FIRST_DAY, SOURCE, LedgerShape, fill_ledger

SHAPE: Final = LedgerShape(queries=4, customers=50, days=100)
DAY: Final = FIRST_DAY + timedelta(days=50)
WEEK: Final = {"since": DAY, "until": DAY + timedelta(days=6)}
MIDDLE: Final = PartitionKey(source=SOURCE, customer_id="1000000175", query_name="campaign_daily", logical_date=DAY)
COUNT_LIMIT: Final = 100  # the bound of the command, scaled down to this ledger

PRIMARY, BY_DAY = "partition_state_pkey", "partition_state_by_date"
NOT_READY, FAILED = "partition_state_not_success", "partition_state_failed"
POINTERS, STATUSES, FINISHED_ATTEMPTS = "warehouse_pointer_pkey", "partition_status_pkey", "finished_attempts_pkey"
FAILED_FETCHES: Final = "finished_attempts_failed_fetches"
RUNS: Final = {"runs_pkey", "runs_ordinal_unique"}
ATTEMPTS: Final = {"attempts_pkey", "attempts_verdict_unique"}
LARGE_TABLES: Final = {
    *(
        "partition_state",
        "runs",
        "attempts",
        "warehouse_pointer",
        "load_records",
        "finished_attempts",
        "partition_status",
    ),
    "claims",
}

CUSTOMER: Final = frozenset({MIDDLE.customer_id})
QUERY: Final = frozenset({MIDDLE.query_name})
IS_FAILED, IS_PENDING, IS_SUCCESS = (
    frozenset({status}) for status in (Status.FAILED, Status.PENDING, Status.SUCCESS)
)


def state_filter(**filters: Any) -> StateFilter:
    return StateFilter(source=SOURCE, **filters)


# filter -> (one of these indexes gives the page, exactly these give the tally)
LISTINGS: Final[Mapping[str, tuple[StateFilter, set[str], set[str]]]] = {
    "all": (state_filter(), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "customer": (state_filter(customer_ids=CUSTOMER), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "customers": (state_filter(customer_ids=CUSTOMER | {"1000000007"}), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "query": (state_filter(query_names=QUERY), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "failed": (state_filter(statuses=IS_FAILED), {FAILED}, {FAILED}),
    "pending": (state_filter(statuses=IS_PENDING), {NOT_READY}, {NOT_READY}),
    "success": (state_filter(statuses=IS_SUCCESS), {PRIMARY}, {PRIMARY}),
    "not ready": (state_filter(statuses=IS_FAILED | IS_PENDING), {NOT_READY}, {NOT_READY, FAILED}),
    "day": (state_filter(since=DAY, until=DAY), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "since": (state_filter(since=DAY), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "query and week": (state_filter(query_names=QUERY, **WEEK), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "query and since": (state_filter(query_names=QUERY, since=DAY), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "failed and query": (state_filter(query_names=QUERY, statuses=IS_FAILED), {FAILED}, {FAILED}),
    "success and query": (state_filter(query_names=QUERY, statuses=IS_SUCCESS), {PRIMARY}, {PRIMARY}),
}
KEYS: Final = [each.key for each in LedgerShape(queries=1, customers=100, days=1).partitions()]
RUN_NAMES: Final = [Run(key=key, run_id="r1") for key in KEYS]
Query = Callable[[LedgerReader], object]
# These check that a retry or request is still failed, not terminal, not parked and not claimed.
ELIGIBILITY: Final = {
    *(PRIMARY, BY_DAY, FAILED, "parkings_pkey", "control_action_partitions_by_key", "control_actions_pkey"),
    *("claims_pkey", "claims_by_run", "leases_pkey", "leases_open"),  # from the claim, or from the few open leases
}
WINDOW: Final = DayWindow(
    source=SOURCE, query_name=MIDDLE.query_name, since=FIRST_DAY, until=FIRST_DAY + timedelta(days=SHAPE.days - 1)
)
# Whether a run waits is not in the state of its partition, so that the blocked ones are searched among all.
FOUND_BY_STATE: Final = [
    condition for condition, text in CONDITIONS.items() if text.needs_operator and condition not in BLOCKED_CONDITIONS
]
POLICY, LAST_DAY = RetryPolicy(max_age=timedelta(days=9_999)), FIRST_DAY + timedelta(days=SHAPE.days)
# Queries for few partitions among very many, with the indexes that they may use.
QUERIES: Final[Mapping[str, tuple[Query, set[str]]]] = {
    "states": (lambda ledger: ledger.states.get_many(KEYS), {PRIMARY, BY_DAY}),
    "publication status of one partition": (
        lambda ledger: ledger.publications.get(MIDDLE),
        {PRIMARY, BY_DAY, POINTERS, *RUNS, *ATTEMPTS, "demotions_pkey"},
    ),
    "publication statuses": (
        lambda ledger: ledger.publications.get_many(KEYS),
        {PRIMARY, BY_DAY, POINTERS, *RUNS, *ATTEMPTS, "demotions_pkey"},
    ),
    "publication statuses of a day": (
        lambda ledger: ledger.publications.in_window(
            DayWindow(source=SOURCE, query_name=MIDDLE.query_name, since=DAY, until=DAY)
        ),
        {BY_DAY, POINTERS, *RUNS, *ATTEMPTS, "demotions_pkey"},
    ),
    "visible runs of a day": (
        lambda ledger: ledger.publications.visible_runs(
            DayWindow(source=SOURCE, query_name=MIDDLE.query_name, since=DAY, until=DAY)
        ),
        {"demotions_pkey", BY_DAY, POINTERS, *RUNS, *ATTEMPTS},
    ),
    "readable runs": (
        lambda ledger: ledger.publications.readable_runs(RUN_NAMES),
        {PRIMARY, BY_DAY, *ATTEMPTS, "demotions_pkey"},
    ),
    "statuses": (lambda ledger: ledger.statuses.get_many(RAW, KEYS), {STATUSES, FINISHED_ATTEMPTS}),
    "status of one partition": (
        lambda ledger: ledger.statuses.get_many(RAW, KEYS[:1]),
        {STATUSES, FINISHED_ATTEMPTS},
    ),
    "due retries": (
        lambda ledger: [ledger.retry_queue.find_due(POLICY, lane, source=SOURCE, today=LAST_DAY) for lane in Lane],
        # Pending days whose fetch failed are due too, although nobody requested them.
        {
            *("retry_queue_due", "retry_queue_pkey", FAILED_FETCHES),
            *(NOT_READY, *ATTEMPTS, *ELIGIBILITY),
        },
    ),
    "requests": (
        lambda ledger: [
            ledger.retry_queue.find_due_requests(POLICY, lane, source=SOURCE, today=LAST_DAY) for lane in Lane
        ],
        {"retry_queue_requested", "retry_queue_pkey", *ELIGIBILITY},
    ),
    "unplanned failures": (
        lambda ledger: database.transact(
            ledger.engine, lambda c: c.execute(retry_queue_queries.SELECT_UNSCHEDULED, {"limit": 1_000}).all()
        ),
        {FAILED, "retry_queue_pkey"},
    ),
    "failures": (lambda ledger: ledger.retry_queue.find_failures(KEYS), {*ATTEMPTS, FAILED_FETCHES}),
    "lease holders": (lambda ledger: ledger.leases.holders(KEYS), {"claims_pkey", "leases_pkey"}),
    "days that need an operator": (
        lambda ledger: list(ledger.days.facts(WINDOW, FOUND_BY_STATE)),
        {
            *(NOT_READY, "attempts_rejected", "demotions_pkey", PRIMARY, BY_DAY, POINTERS, *RUNS, *ATTEMPTS),
            *("control_action_partitions_by_key", "control_action_partitions_pkey"),
            *("control_actions_pkey", "control_actions_by_time"),
            *(FINISHED_ATTEMPTS, FAILED_FETCHES),
        },
    ),
    "acknowledged days": (
        lambda ledger: ledger.days.acknowledged(WINDOW),
        {
            *("control_actions_acknowledging", "control_actions_pkey", "control_action_partitions_pkey"),
            *("control_actions_by_time", "control_action_partitions_by_key", "demotions_pkey", FAILED_FETCHES),
            *(POINTERS, *RUNS, *ATTEMPTS),
        },
    ),
    "absent days": (
        lambda ledger: list(ledger.days.absent(WINDOW, {MIDDLE.customer_id: ExpectedDays(first=DAY)})),
        {BY_DAY, PRIMARY},
    ),
    "runs": (lambda ledger: ledger.runs.registered(MIDDLE), RUNS),
    "attempts": (lambda ledger: ledger.runs.attempts(MIDDLE), ATTEMPTS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The indexes that a query used, and the large tables that it scanned."""

    indexes: set[str]
    scanned: set[str]


@pytest.fixture(scope="module", params=["sqlite", "sqlite with statistics", "postgres"])
def large_ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    """A generated ledger, with and without statistics on SQLite, and on Postgres."""
    if request.param == "postgres":
        url = _database_of(request.getfixturevalue("postgres_server"))
    else:
        path = tmp_path_factory.mktemp("large") / "ledger.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        url = f"sqlite:///{path}"
    fill_ledger(url, SHAPE)
    if request.param == "sqlite with statistics":
        writer = database.open_engine(url)
        database.transact(writer, lambda connection: connection.exec_driver_sql("ANALYZE"))
        writer.dispose()
    engine = database.open_engine(url, read_only=True)
    yield engine
    engine.dispose()


def _database_of(server: str) -> str:
    name = f"large_{uuid.uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE ledger_template")
    engine.dispose()
    return sa.make_url(server).set(database=name).render_as_string(hide_password=False)


@pytest.mark.parametrize("after", [None, MIDDLE], ids=["first", "middle"])
@pytest.mark.parametrize("name", LISTINGS)
def test_page_uses_one_index(large_ledger: sa.Engine, name: str, after: PartitionKey | None) -> None:
    """A page of any filter, at any position of the list, is read from one index."""
    state_filter, allowed, _tally = LISTINGS[name]
    summary = _summarize_plans(large_ledger, lambda ledger: ledger.states.page(state_filter, after=after, limit=20))
    assert len(summary.indexes) == 1
    assert summary.indexes <= allowed
    assert summary.scanned == set()


@pytest.mark.parametrize("after", [None, MIDDLE], ids=["first", "middle"])
@pytest.mark.parametrize("name", LISTINGS)
def test_counts_use_only_indexes(large_ledger: sa.Engine, name: str, after: PartitionKey | None) -> None:
    """Each status is counted in one index: failed and not-success in partial ones, successes by key or by date."""
    state_filter, _page, expected = LISTINGS[name]
    summary = _summarize_plans(
        large_ledger, lambda ledger: ledger.states.count_by_status(state_filter, after=after, max_count=COUNT_LIMIT)
    )
    assert summary == PlanSummary(indexes=expected, scanned=set())


@pytest.mark.parametrize("name", QUERIES)
def test_query_of_few_partitions_scans_no_large_table(large_ledger: sa.Engine, name: str) -> None:
    """Such a query uses only the listed indexes."""
    query, allowed = QUERIES[name]
    summary = _summarize_plans(large_ledger, query)
    assert summary.indexes
    assert summary.indexes <= allowed
    assert summary.scanned == set()


def test_facts_of_few_partitions_are_read_for_blocked_days(large_ledger: sa.Engine) -> None:
    """Which runs wait is found by one comparison of keys. The facts are read only of those partitions."""
    days = LedgerReader(large_ledger).days
    blocked = {(each.customer_id, each.logical_date) for each in days.facts(WINDOW, BLOCKED_CONDITIONS)}
    waiting = {
        (each.customer_id, each.logical_date)
        for each in days.facts(WINDOW)
        if each.has_unjudged_run or each.demotion or (each.status is Status.SUCCESS and not each.is_loaded)
    }
    assert waiting <= blocked
    assert len(blocked) < SHAPE.customers * SHAPE.days / 5


_INDEX: Final = re.compile(
    r"USING (?:COVERING )?INDEX (\w+)|Index (?:Only )?Scan (?:Backward )?using (\w+)|Bitmap Index Scan on (\w+)"
)
# A full scan of the index of failures is fine: these queries ask for all failures.
_SCAN: Final = re.compile(rf"^(?:SCAN|(?:Parallel )?Seq Scan on) (\w+)(?! USING (?:COVERING )?INDEX {FAILED})\b")
# SQLite numbers the indexes of unique constraints.
_KEYS: Final = {
    "sqlite_autoindex_runs_2": "runs_ordinal_unique",
    "sqlite_autoindex_attempts_2": "attempts_verdict_unique",
}


def _summarize_plans(engine: sa.Engine, query: Query) -> PlanSummary:
    """The plans of all statements that a query sends."""
    plans: list[str] = []

    def explain(connection: sa.Connection, _original: Any, statement: str, parameters: Any, *_more: Any) -> None:
        if statement.startswith(("SELECT", "WITH", "EXECUTE")):
            prefix = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
            cursor = connection.connection.cursor()
            cursor.execute(f"{prefix} {statement}", parameters)
            plans.extend(str(row[-1]).strip().removeprefix("->").strip() for row in cursor.fetchall())
            cursor.close()

    sa.event.listen(engine, "before_cursor_execute", explain)
    try:
        query(LedgerReader(engine))
    finally:
        sa.event.remove(engine, "before_cursor_execute", explain)
    indexes = {next(filter(None, found.groups())) for line in plans if (found := _INDEX.search(line))}
    scanned = {found[1] for line in plans if (found := _SCAN.search(line))}
    return PlanSummary(indexes={_index_name(index) for index in indexes}, scanned=scanned & LARGE_TABLES)


def _index_name(index: str) -> str:
    return _KEYS.get(index) or re.sub(r"^sqlite_autoindex_(\w+)_1$", r"\1_pkey", index)
