"""A ledger of the release before is brought to this one's schema: nothing is lost, and every status is there."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW, WAREHOUSE, AttemptOutcome, PartitionStatus, Tenancy
from ads_pipeline.errors import LedgerOutdated
from ads_pipeline.ledger import database
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.tables import metadata
from ads_pipeline.ledger.upgrading import upgrade
from ads_pipeline_tests.ledger.builders import accept, accepted, key, landed, load, run
from ads_pipeline_tests.ledger.old import AT, OLD_TABLES, make_old
from ads_pipeline_tests.ledger.status.finishes import listed, made, status, tried

SUCCEEDED, FAILED, _ = AttemptOutcome


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger that the release before wrote, once on each database."""
    url = f"sqlite:///{tmp_path / 'old.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("unmigrated_postgres_url")
    make_old(url)
    return url


def contents(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the tables that the release before knew, without the columns that came later."""
    engine = database.open_engine(url)

    def read(connection: sa.Connection) -> dict[str, list[tuple[Any, ...]]]:
        columns = {name: [column.name for column in metadata.tables[name].c] for name in OLD_TABLES}
        columns["acted_partitions"].remove("attempt_no")
        texts = {name: f"SELECT {', '.join(columns[name])} FROM {name} ORDER BY 1, 2, 3, 4, 5" for name in OLD_TABLES}
        return {name: [tuple(row) for row in connection.exec_driver_sql(text)] for name, text in texts.items()}

    try:
        return database.transact(engine, read)
    finally:
        engine.dispose()


@pytest.mark.invariant("X5")
def test_every_old_row_is_kept(old_url: str) -> None:
    """What the release before wrote stands in its tables afterwards as it stood."""
    before = contents(old_url)
    assert all(before.values()), "a table of the release before is empty"
    assert upgrade(old_url).before == "0002"
    assert contents(old_url) == before


@pytest.mark.invariant("X5", "P10")
def test_statuses_are_those_of_what_happened_before(old_url: str) -> None:
    """Verdicts and publications of the release before give the rows they would have given as they happened."""
    assert upgrade(old_url).statuses == 6
    with LedgerReader.opened(old_url) as ledger:
        raw = {day: status(ledger, key(day=day)) for day in (1, 2, 3)}
        assert {day: (made(row), tried(row)) for day, row in raw.items()} == {
            1: (("r2", "2"), ("r2", SUCCEEDED)),
            2: (("r1", "1"), ("r2", FAILED)),
            3: ((None, None), ("r1", FAILED)),
        }
        assert (raw[2].last_materialization_at, raw[2].last_attempt_at) == (AT[1], AT[2])
        loaded = {day: status(ledger, key(day=day), WAREHOUSE) for day in (1, 2, 5)}
        assert {day: (made(row), tried(row)) for day, row in loaded.items()} == {
            1: (("r1", "1"), ("r1", SUCCEEDED)),
            2: (("r1", "1"), ("r1", SUCCEEDED)),
            5: (("r2", "2"), ("r2", SUCCEEDED)),  # two runs loaded at one instant: the newer one stands
        }
        assert loaded[1].last_materialization_at == AT[3]
        assert ledger.statuses(RAW, [key(day=4)]) == {key(day=4): None}
        assert raw[1].partition_values == {"customer": "1234567890", "date": date(2026, 2, 1).isoformat()}


@pytest.mark.invariant("X5", "P10")
def test_an_upgraded_ledger_goes_on(old_url: str) -> None:
    """Verdicts and loads after the upgrade are folded into the rows that it made."""
    upgrade(old_url)
    with Ledger.opened(old_url) as ledger:
        load(ledger, run(key(day=1), "r2"))
        assert made(status(ledger, key(day=1), WAREHOUSE)) == ("r2", "2")
        (r3,) = landed(ledger, key(day=2), "r3")
        ledger.record_verdict(accept(r3))
        row: PartitionStatus = status(ledger, key(day=2))
        assert (made(row), tried(row)) == (("r3", "1"), ("r3", SUCCEEDED))
        live = listed(StatusTable(ledger._engine))
    assert upgrade(old_url).before == "0005"
    with StatusTable.opened(old_url) as book:
        assert listed(book) == live


@pytest.mark.invariant("X5")
def test_an_upgrade_that_died_between_its_steps_is_made_good(old_url: str) -> None:
    """A ledger that was migrated and has no rows yet gets them when the upgrade is run again."""
    engine = database.open_engine(old_url)
    database.migrate(engine)
    engine.dispose()
    with StatusTable.opened(old_url) as book:
        assert listed(book) == {}
    assert upgrade(old_url).statuses == 6


@pytest.mark.invariant("X5")
def test_an_empty_database_becomes_a_ledger(tmp_path: Path) -> None:
    """Where there is no ledger, the upgrade makes one, in the space it is told."""
    url = f"sqlite:///{tmp_path / 'home' / 'ledger.db'}"
    done = upgrade(url, space=Tenancy(tenant_id="acme"))
    assert (done.before, done.after, done.statuses) == (None, "0005", 0)
    with Ledger.opened(url) as ledger:
        accepted(ledger, [key()])
    assert upgrade(url, space=Tenancy(tenant_id="acme")).statuses == 1
    with StatusTable.opened(url) as book:
        assert [place.tenant_id for place in listed(book)] == ["acme"]


def test_a_newer_ledger_is_left_alone(url: str, backdoor: sa.Engine) -> None:
    """There is no way back from a revision that this release does not know, and nothing is changed."""
    newer = f"UPDATE {database.REVISION_TABLE} SET version_num = '9999'"
    database.transact(backdoor, lambda connection: connection.exec_driver_sql(newer))
    with pytest.raises(LedgerOutdated, match="revision 9999, this release needs 0005"):
        upgrade(url)
    assert database.revisions(backdoor) == ("9999", "0005")
