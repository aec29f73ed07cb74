"""Copying a ledger into an empty database, from SQLite to Postgres and back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.errors import CopyDiffers, LedgerOutdated, LedgerRefused, LedgerUnavailable, TargetNotEmpty
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.quota import Hold, Operation, QuotaLimits
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.ledger.consistency import digest as digest_module
from ads_pipeline.ledger.consistency.copying import TABLES, copy_ledger
from ads_pipeline.ledger.consistency.digest import LedgerDigest, digest_ledger
from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.progress import no_progress
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    accepted_runs,
    action_request,
    keys,
    open_part,
    publish_runs,
    run,
)
from ads_pipeline_tests.ledger.histories import Step, apply_history
from ads_pipeline_tests.ledger.large_ledgers import LedgerShape, fill_ledger
from ads_pipeline_tests.processes import run_script

SHAPE = LedgerShape(queries=2, customers=25, days=40)
ROWS_PER_BATCH = 700  # less than most tables hold
EVENT_TABLES = {"run_head", "run_events", "partition_status"}  # rows hold random ids


@pytest.fixture
def target_url(url: str, request: pytest.FixtureRequest) -> str:
    """An empty ledger in the other kind of database."""
    kind = "postgres" if url.startswith("sqlite") else "sqlite"
    address: str = request.getfixturevalue(f"{kind}_url")
    return address


@pytest.fixture
def source_url(url: str) -> str:
    """A ledger with some thousand partitions and rows in every table."""
    fill_ledger(url, SHAPE)
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, keys(3))
        publish_runs(ledger, *(run(key, "r1") for key in keys(3)))
        ledger.accounts.record("google_ads", [Account(source="google_ads", customer_id="1", status="ENABLED")])
        ledger.quota.reserve(Operation(source="google_ads", since=date(2026, 2, 1)), QuotaLimits())
        ledger.quota.hold(Hold(source="google_ads", until=datetime(2026, 3, 1, tzinfo=UTC), why="busy"))
        released = Parking(source="google_ads", scope="customer", name="1")
        ledger.actions.release(released, action_request("release"))
    with open_part(EventLog, url) as log:
        Follower(log).catch_up()
    with open_part(StatusTable, url) as table:
        table.record_code_versions("google_ads", {"raw/campaign_daily": "7"})
    return url


def execute(url: str, *statements: str) -> None:
    engine = database.open_engine(url)
    with database.open_transaction(engine) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def is_empty(url: str) -> bool:
    return digest_ledger(url).rows == 0


@pytest.mark.invariant("C1")
def test_copy_has_every_row_of_every_table(source_url: str, target_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests are equal, also of events, snapshots, leases and status; no batch exceeds its bound."""
    monkeypatch.setattr(digest_module, "ROWS_PER_BATCH", ROWS_PER_BATCH)
    steps: dict[str, list[int]] = {}

    @contextmanager
    def report(description: str, total: int) -> Iterator[Callable[[int], None]]:
        counts = steps[description] = list[int]()
        yield counts.append
        assert sum(counts) == total, description

    copied = copy_ledger(source_url, target_url, progress=report)
    assert copied == digest_ledger(source_url) == digest_ledger(target_url)
    assert copied.rows > 10_000
    assert {name for name, table in copied.tables.items() if not table.rows} == set()
    assert list(steps) == [*(f"copying {table.name}" for table in TABLES), "comparing digests"]
    assert max(steps["copying runs"]) == ROWS_PER_BATCH


@pytest.mark.invariant("C1")
def test_copy_creates_the_missing_schema(
    sqlite_url: str, unmigrated_postgres_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """A database with nothing in it gets the schema and the rows."""
    for source, target in (
        (sqlite_url, unmigrated_postgres_url),
        (postgres_url, f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"),
    ):
        with Ledger.opened(source) as ledger:
            accepted_runs(ledger, keys(2))
        assert copy_ledger(source, target, progress=no_progress) == digest_ledger(target)


@pytest.mark.invariant("C1")
def test_a_copy_behaves_like_its_source(source_url: str, target_url: str) -> None:
    """Later registrations, verdicts and loads have the same effect in both, and states still match their logs."""
    copy_ledger(source_url, target_url, progress=no_progress)
    later = [
        Step(operation=operation, partition_no=partition_no, run_no=7, clock_change=timedelta(days=100))
        for operation in ("register", "accept", "publish")
        for partition_no in range(2)
    ]
    for address in (source_url, target_url):
        clock = FakeClock()
        with Ledger.opened(address, clock=clock) as ledger:
            apply_history(ledger, clock, later)
    source, target = digest_ledger(source_url), digest_ledger(target_url)
    assert {name for name in source.tables if source.tables[name] != target.tables[name]} <= EVENT_TABLES
    with LedgerInspection.opened(source_url) as before, LedgerInspection.opened(target_url) as after:
        assert list(after.find_contradictions()) == list(before.find_contradictions())


@pytest.mark.invariant("C1", "S6")
def test_triggers_protect_the_copy(source_url: str, target_url: str) -> None:
    """The triggers of append-only tables are active on the target."""
    copy_ledger(source_url, target_url, progress=no_progress)
    for statement in ("DELETE FROM attempts", "UPDATE runs SET ordinal = 9", "DELETE FROM partition_state"):
        with pytest.raises(LedgerRefused):
            execute(target_url, statement)


@pytest.mark.invariant("C2")
def test_copy_needs_an_empty_target(source_url: str, target_url: str) -> None:
    """A target with a row in any table is refused and not changed; so is the source itself."""
    with Ledger.opened(target_url) as ledger:
        ledger.registrations.insert_pending(keys(1))
    before = digest_ledger(target_url)
    with pytest.raises(TargetNotEmpty, match="rows in table partition_state"):
        copy_ledger(source_url, target_url, progress=no_progress)
    assert digest_ledger(target_url) == before
    with pytest.raises(TargetNotEmpty, match="rows in table runs"):
        copy_ledger(source_url, source_url, progress=no_progress)


@pytest.mark.invariant("C2")
def test_copy_needs_equal_revisions(url: str, target_url: str) -> None:
    """A source or target of another release is refused, and nothing is written."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, keys(1))
    for address in (target_url, url):
        execute(address, f"UPDATE {database.REVISION_TABLE} SET version_num = '9999'")
        with pytest.raises(LedgerOutdated, match="9999"):
            copy_ledger(url, target_url, progress=no_progress)
        execute(address, f"UPDATE {database.REVISION_TABLE} SET version_num = '{database.REVISION}'")
    assert is_empty(target_url)


@pytest.mark.invariant("C2")
def test_missing_source_creates_no_target(tmp_path: Path) -> None:
    """The source is opened first."""
    source, target = f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "new" / "ledger.db"
    with pytest.raises(LedgerUnavailable):
        copy_ledger(source, f"sqlite:///{target}", progress=no_progress)
    assert not target.parent.exists()


SQLITE_CORRUPTION = """
CREATE TRIGGER corrupt AFTER INSERT ON warehouse_pointer
BEGIN UPDATE warehouse_pointer SET table_version = table_version + 1 WHERE customer_id = NEW.customer_id; END
"""
POSTGRES_CORRUPTION = """
CREATE FUNCTION corrupt() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN NEW.table_version := NEW.table_version + 1; RETURN NEW; END$$;
CREATE TRIGGER corrupt BEFORE INSERT ON warehouse_pointer FOR EACH ROW EXECUTE FUNCTION corrupt()
"""


@pytest.mark.invariant("C2")
def test_differing_digests_roll_the_copy_back(url: str, target_url: str) -> None:
    """The error names the table whose rows were changed on their way into the target."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, keys(2))
        publish_runs(ledger, *(run(key, "r1") for key in keys(2)))
    execute(target_url, SQLITE_CORRUPTION if target_url.startswith("sqlite") else POSTGRES_CORRUPTION)
    with pytest.raises(CopyDiffers, match="table warehouse_pointer"):
        copy_ledger(url, target_url, progress=no_progress)
    assert is_empty(target_url)


@pytest.mark.invariant("C1")
def test_copy_is_of_one_moment(url: str, target_url: str) -> None:
    """Verdicts recorded while the copy runs are not in it, in no table."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, keys(2))
        before = digest_ledger(url)

        @contextmanager
        def write_meanwhile(description: str, _total: int) -> Iterator[Callable[[int], None]]:
            if description == "copying control_actions":
                accepted_runs(ledger, keys(4), "r2")
            yield lambda _count: None

        assert copy_ledger(url, target_url, progress=write_meanwhile) == before == digest_ledger(target_url)
    assert digest_ledger(url) != before


# Copies the ledger and kills its own process at the n-th statement or commit.
KILLED_COPY = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.consistency.copying import copy_ledger
from ads_pipeline.pipeline.progress import no_progress

remaining = int(sys.argv[3])
def count(*_):
    global remaining
    remaining -= 1
    if remaining == 0:
        os.kill(os.getpid(), signal.SIGKILL)

for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
    sa.event.listen(sa.Engine, name, count)
copy_ledger(sys.argv[1], sys.argv[2], progress=no_progress)
count()
"""


@pytest.mark.invariant("C2")
def test_a_crash_leaves_the_target_empty_or_whole(url: str, target_url: str) -> None:
    """Killed at any statement, the copy leaves no rows; the same command then copies everything."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, keys(2))
        publish_runs(ledger, *(run(key, "r1") for key in keys(2)))
    whole = digest_ledger(url)
    digests = [
        found for moment in (1, 20, 60, 100, 140, 180, 210) for found in _digest_after_kill(url, target_url, moment)
    ]
    assert len(digests) >= 5, "the copy was hardly interrupted"
    assert all(found == whole or not found.rows for found in digests)
    assert not digests[3].rows
    if is_empty(target_url):
        copy_ledger(url, target_url, progress=no_progress)
    assert digest_ledger(target_url) == whole


def _digest_after_kill(url: str, target_url: str, moment: int) -> Iterator[LedgerDigest]:
    """What the target holds after a copy that was killed; nothing when it was not."""
    if not is_empty(target_url):
        return
    child = run_script(KILLED_COPY, url, target_url, str(moment))
    assert child.returncode in (0, -9), child.stderr
    if child.returncode == -9:
        yield digest_ledger(target_url)


def test_a_digest_shows_any_difference(url: str) -> None:
    """One more row changes the digest of its table and of the ledger, and of no other table."""
    before = digest_ledger(url)
    execute(url, "INSERT INTO parkings VALUES ('google_ads', 'query', 'q', 'x', 'y', '2026-03-01T00:00:00.000000Z')")
    after = digest_ledger(url)
    assert after.sha256 != before.sha256
    assert {name for name in after.tables if after.tables[name] != before.tables[name]} == {"parkings"}


@pytest.mark.parametrize(
    ("url_text", "shown"),
    [
        ("postgresql+psycopg2://ada:hunter2@db:5432/ads?sslmode=require&password=hunter2",
         "postgresql+psycopg2://ada@db:5432/ads"),
        ("sqlite:////srv/ledger.db", "sqlite:////srv/ledger.db"),
    ],
)  # fmt: skip
def test_displayed_url_has_no_password(url_text: str, shown: str) -> None:
    """Neither the password nor the options of a URL are shown."""
    assert database.display_url(url_text) == shown
