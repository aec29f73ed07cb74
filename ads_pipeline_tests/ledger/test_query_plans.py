"""Which index answers each question that must stay fast however many partitions there are."""

import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.retry import Lane, RetryPolicy
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control import retry_queue_queries
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline_tests.ledger.large_ledgers import FIRST_DAY, SOURCE, Shape, grow

SHAPE: Final = Shape(queries=4, customers=50, days=100)
DAY: Final = FIRST_DAY + timedelta(days=50)
WEEK: Final = {"since": DAY, "until": DAY + timedelta(days=6)}
MIDDLE: Final = PartitionKey(source=SOURCE, customer_id="1000000175", query_name="campaign_daily", logical_date=DAY)
MOST: Final = 100  # is to this ledger what the command's bound is to one of a million

PRIMARY, BY_DAY = "partition_state_pkey", "partition_state_by_date"
NOT_READY, FAILED = "partition_state_not_success", "partition_state_failed"
POINTERS, STATUSES, FINISHES = "warehouse_pointer_pkey", "partition_status_pkey", "finished_attempts_pkey"
RUNS: Final = {"runs_pkey", "runs_ordinal_unique"}
ATTEMPTS: Final = {"attempts_pkey", "attempts_verdict_unique"}
BIG: Final = {
    *("partition_state", "runs", "attempts", "warehouse_pointer", "load_records", "finished_attempts", "partition_status"),
    "claims",
}

CUSTOMER: Final = frozenset({MIDDLE.customer_id})
QUERY: Final = frozenset({MIDDLE.query_name})
IS_FAILED, IS_PENDING, IS_SUCCESS = (
    frozenset({status}) for status in (Status.FAILED, Status.PENDING, Status.SUCCESS)
)


def listed(**words: Any) -> StateFilter:
    return StateFilter(source=SOURCE, **words)


# filter -> (one of these indexes gives the page, exactly these give the tally)
LISTINGS: Final[Mapping[str, tuple[StateFilter, set[str], set[str]]]] = {
    "all": (listed(), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "customer": (listed(customer_ids=CUSTOMER), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "customers": (listed(customer_ids=CUSTOMER | {"1000000007"}), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "query": (listed(query_names=QUERY), {PRIMARY}, {PRIMARY, NOT_READY, FAILED}),
    "failed": (listed(statuses=IS_FAILED), {FAILED}, {FAILED}),
    "pending": (listed(statuses=IS_PENDING), {NOT_READY}, {NOT_READY}),
    "success": (listed(statuses=IS_SUCCESS), {PRIMARY}, {PRIMARY}),
    "not ready": (listed(statuses=IS_FAILED | IS_PENDING), {NOT_READY}, {NOT_READY, FAILED}),
    "day": (listed(since=DAY, until=DAY), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "since": (listed(since=DAY), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "query and week": (listed(query_names=QUERY, **WEEK), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "query and since": (listed(query_names=QUERY, since=DAY), {PRIMARY, BY_DAY}, {BY_DAY, NOT_READY, FAILED}),
    "failed and query": (listed(query_names=QUERY, statuses=IS_FAILED), {FAILED}, {FAILED}),
    "success and query": (listed(query_names=QUERY, statuses=IS_SUCCESS), {PRIMARY}, {PRIMARY}),
}
KEYS: Final = [each.key for each in Shape(queries=1, customers=100, days=1).partitions()]
RUN_NAMES: Final = [Run(key=key, run_id="r1") for key in KEYS]
Ask = Callable[[LedgerReader], object]
# By which what is due or wanted is seen to be failed still, not marked, not parked, and nobody's.
HELD_BACK: Final = {
    *(PRIMARY, BY_DAY, FAILED, "terminal_marks_pkey", "parkings_pkey"),
    *("claims_pkey", "claims_by_run", "leases_pkey", "leases_open"),  # from the claim, or from the few that live
}
POLICY, LAST_DAY = RetryPolicy(max_age=timedelta(days=9_999)), FIRST_DAY + timedelta(days=SHAPE.days)
# What else is asked of few among very many.
QUESTIONS: Final[Mapping[str, tuple[Ask, set[str]]]] = {
    "states": (lambda ledger: ledger.states(KEYS), {PRIMARY, BY_DAY}),
    "one standing": (
        lambda ledger: ledger.publication_status(MIDDLE),
        {PRIMARY, BY_DAY, POINTERS, *RUNS, *ATTEMPTS, "demotions_pkey"},
    ),
    "standings": (
        lambda ledger: ledger.publication_statuses(KEYS),
        {PRIMARY, BY_DAY, POINTERS, *RUNS, *ATTEMPTS, "demotions_pkey"},
    ),
    "the standings of a day": (
        lambda ledger: ledger.publication_statuses_of_query(source=SOURCE, query_name=MIDDLE.query_name, since=DAY, until=DAY),
        {BY_DAY, POINTERS, *RUNS, *ATTEMPTS, "demotions_pkey"},
    ),
    "what readers see of a day": (
        lambda ledger: ledger.visible_runs(source=SOURCE, query_name=MIDDLE.query_name, since=DAY, until=DAY),
        {BY_DAY, POINTERS, *RUNS, *ATTEMPTS},
    ),
    "readable": (lambda ledger: ledger.readable_runs(RUN_NAMES), {PRIMARY, BY_DAY, *ATTEMPTS, "demotions_pkey"}),
    "statuses": (lambda ledger: ledger.partition_statuses(RAW, KEYS), {STATUSES, FINISHES}),
    "one status": (lambda ledger: ledger.partition_statuses(RAW, KEYS[:1]), {STATUSES, FINISHES}),
    "what is due": (
        lambda ledger: [ledger.retry_queue.find_due(POLICY, lane, source=SOURCE, today=LAST_DAY) for lane in Lane],
        {"retry_schedule_due", *HELD_BACK},
    ),
    "what is wanted": (
        lambda ledger: [ledger.retry_queue.find_due_requests(POLICY, lane, source=SOURCE, today=LAST_DAY) for lane in Lane],
        {"requests_by_time", "requests_pkey", "retry_schedule_pkey", *HELD_BACK},
    ),
    "what was not planned": (
        lambda ledger: database.transact(
            ledger._engine, lambda c: c.execute(retry_queue_queries.select_unscheduled(1_000)).all()
        ),
        {FAILED, "retry_schedule_pkey"},
    ),
    "failures": (lambda ledger: ledger.retry_queue.find_failures(KEYS), {*ATTEMPTS, "failed_fetches_pkey"}),
    "who holds them": (lambda ledger: ledger.lease_holders(KEYS), {"claims_pkey", "leases_pkey"}),
    "runs": (lambda ledger: ledger.runs(MIDDLE), RUNS),
    "attempts": (lambda ledger: ledger.attempts(MIDDLE), ATTEMPTS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """The indexes that answered a question, and the big tables that were read from end to end."""

    indexes: set[str]
    scanned: set[str]


@pytest.fixture(scope="module", params=["sqlite", "sqlite with statistics", "postgres"])
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    """A ledger of some size, with such statistics as each database may have of it."""
    if request.param == "postgres":
        url = _database_of(request.getfixturevalue("postgres_server"))
    else:
        path = tmp_path_factory.mktemp("grown") / "ledger.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        url = f"sqlite:///{path}"
    grow(url, SHAPE)
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
def test_a_page_comes_from_an_index(grown: sa.Engine, name: str, after: PartitionKey | None) -> None:
    """A page of any filter is read from one index, wherever in the list it begins."""
    wanted, allowed, _tally = LISTINGS[name]
    used = _used(grown, lambda ledger: ledger.list_states(wanted, after=after, limit=20))
    assert len(used.indexes) == 1
    assert used.indexes <= allowed
    assert used.scanned == set()


@pytest.mark.parametrize("after", [None, MIDDLE], ids=["first", "middle"])
@pytest.mark.parametrize("name", LISTINGS)
def test_a_tally_comes_from_indexes(grown: sa.Engine, name: str, after: PartitionKey | None) -> None:
    """Each status is counted in an index of its own: failed, not ready, and by key or by day for successes."""
    wanted, _page, expected = LISTINGS[name]
    used = _used(grown, lambda ledger: ledger.count_by_status(wanted, after=after, max_count=MOST))
    assert used == Used(indexes=expected, scanned=set())


@pytest.mark.parametrize("name", QUESTIONS)
def test_few_are_found_among_many(grown: sa.Engine, name: str) -> None:
    """A question about few partitions reads no big table from end to end, and uses these indexes and no other."""
    ask, allowed = QUESTIONS[name]
    used = _used(grown, ask)
    assert used.indexes
    assert used.indexes <= allowed
    assert used.scanned == set()


_INDEX: Final = re.compile(
    r"USING (?:COVERING )?INDEX (\w+)|Index (?:Only )?Scan (?:Backward )?using (\w+)|Bitmap Index Scan on (\w+)"
)
# All that failed is what is asked for where the index of it is read whole.
_SCAN: Final = re.compile(rf"^(?:SCAN|(?:Parallel )?Seq Scan on) (\w+)(?! USING (?:COVERING )?INDEX {FAILED})\b")
# SQLite numbers the indexes of a table's keys.
_KEYS: Final = {
    "sqlite_autoindex_runs_2": "runs_ordinal_unique",
    "sqlite_autoindex_attempts_2": "attempts_verdict_unique",
}


def _used(engine: sa.Engine, ask: Ask) -> Used:
    """What the plans name of all the statements that a question sends."""
    plans: list[str] = []

    def explain(connection: sa.Connection, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        if statement.startswith(("SELECT", "WITH", "EXECUTE")):
            word = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
            explaining = connection.connection.cursor()
            explaining.execute(f"{word} {statement}", parameters)
            plans.extend(str(row[-1]).strip().removeprefix("->").strip() for row in explaining.fetchall())
            explaining.close()

    sa.event.listen(engine, "before_cursor_execute", explain)
    try:
        ask(LedgerReader(engine))
    finally:
        sa.event.remove(engine, "before_cursor_execute", explain)
    indexes = {next(filter(None, found.groups())) for line in plans if (found := _INDEX.search(line))}
    scanned = {found[1] for line in plans if (found := _SCAN.search(line))}
    return Used(indexes={_named(index) for index in indexes}, scanned=scanned & BIG)


def _named(index: str) -> str:
    return _KEYS.get(index) or re.sub(r"^sqlite_autoindex_(\w+)_1$", r"\1_pkey", index)
