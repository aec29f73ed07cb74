"""What readers get: consistent views, a strict variant, nothing beside the warehouse, and the list of gaps."""

from typing import Any

import duckdb
import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline.pipeline.gaps import GapReason
from ads_pipeline_tests.ledger.builders import order, reject
from ads_pipeline_tests.pipeline.builders import QUERY, House, key, land, land_bad, tamper, visible, visible_in_spark

CURRENT = f"{QUERY}_current"


def test_the_strict_view_shows_current_runs_alone(house: House) -> None:
    """While a newer run is accepted and not loaded its predecessor is visible, and not in the strict view."""
    house.pipeline.carry([land(house, key(1)), land(house, key(2))])
    house.pipeline.judge([land(house, key(1), "r2")])
    assert visible(house) == visible_in_spark(house) == {key(1): "r1", key(2): "r1"}
    assert visible(house, CURRENT) == {key(2): "r1"}
    house.pipeline.load([key(1)])
    assert visible(house, CURRENT) == visible(house) == {key(1): "r2", key(2): "r1"}


def test_a_load_in_between_makes_no_hole(house: House) -> None:
    """A partition that is loaded after the table was opened and before the ledger is asked shows new rows or old."""
    house.pipeline.carry([land(house, key())])

    class Overtaken:
        """A ledger that is asked one load too late, once."""

        def __init__(self) -> None:
            self.looks = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(house.ledger, name)

        def showing(self, **asked: Any) -> Any:
            self.looks += 1
            if self.looks == 1:
                house.pipeline.carry([land(house, key(), "r2")])
            return house.ledger.showing(**asked)

    overtaken: Any = Overtaken()
    readers = type(house.readers)(ledger=overtaken, warehouse_root=house.home / "warehouse", source="google_ads")
    with readers.connect([QUERY]) as connection:
        assert connection.execute(f"SELECT DISTINCT run_id FROM {QUERY}").fetchall() == [("r2",)]
    assert overtaken.looks == 2


@pytest.mark.invariant("W16")
def test_a_session_sees_one_version_whatever_happens_meanwhile(house: House) -> None:
    """Both queries of one DuckDB session, and a frame of Spark's, tell of the same moment."""
    house.pipeline.carry([land(house, key(1))])
    frame = house.readers.rows(house.spark, QUERY)
    assert frame is not None
    with house.readers.connect([QUERY]) as connection:
        count = f"SELECT count(*) FROM {QUERY}"
        assert connection.execute(count).fetchall() == [(2,)]
        house.pipeline.carry([land(house, key(1), "r2", count=5), land(house, key(2))])
        assert connection.execute(count).fetchall() == [(2,)]
    assert frame.count() == 2


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_blob('{home}/ledger.db')",
        "COPY (SELECT 1) TO '{home}/out.csv'",
        "ATTACH '{home}/other.db' AS other",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ],
)
def test_a_readers_session_reaches_nothing_but_the_warehouse(house: House, statement: str) -> None:
    """Files outside it, other databases, extensions and the settings that forbid them are out of reach."""
    house.pipeline.carry([land(house, key())])
    with house.readers.connect([QUERY]) as connection, pytest.raises(duckdb.Error):
        connection.execute(statement.format(home=house.home)).fetchall()


def test_a_query_without_a_table_has_no_view(house: House) -> None:
    """Nothing was ever loaded: no frame, no view, and a session all the same."""
    assert house.readers.rows(house.spark, QUERY) is None
    with house.readers.connect([QUERY, "ad_group_daily"]) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == []


def test_an_emptied_table_is_read_as_no_rows(house: House) -> None:
    """After the last rows went both ways of reading answer with columns and without rows."""
    run = land(house, key())
    house.pipeline.carry([run])
    tamper(house, run)
    house.pipeline.judge([run], validation_id="again")
    frame = house.readers.rows(house.spark, QUERY)
    assert frame is not None
    assert (frame.count(), frame.columns[-1]) == (0, "is_current")
    assert visible(house) == {}


def test_every_missing_day_has_its_reason(house: House) -> None:
    """Each expected partition that readers do not see stands in the list once, with why; visible ones do not."""
    seen = land(house, key(1))
    unloaded, demoting, withdrawn = land(house, key(2)), land(house, key(3)), land(house, key(4))
    unjudged, bad = land(house, key(5)), land_bad(house, key(6))
    house.pipeline.carry([seen, demoting, withdrawn, bad])
    house.pipeline.judge([unloaded])
    house.ledger.begin_demotions([reject(demoting, validation_id="again")])
    house.ledger.carry_out(Action.WITHDRAW, [withdrawn.key], order())
    house.ledger.insert_pending([key(7)])
    house.ledger.register([RunRegistration(run=unjudged, schema_version="1", record_count=2)])
    day = key().logical_date
    gaps = house.readers.gaps(QUERY, since=day, until=day)
    assert {gap.key: gap.reason for gap in gaps} == {
        unloaded.key: GapReason.UNLOADED,
        demoting.key: GapReason.DEMOTING,
        withdrawn.key: GapReason.WAITING,
        unjudged.key: GapReason.UNJUDGED,
        bad.key: GapReason.REJECTED,
        key(7): GapReason.NOTHING_SEALED,
    }
    (rejected,) = (gap for gap in gaps if gap.reason is GapReason.REJECTED)
    assert "cost_micros" in str(rejected)


def test_an_account_that_drops_out_is_missed(house: House) -> None:
    """Days and customers without a single row are listed: of every customer known, or of those that are named."""
    house.pipeline.carry([land(house, key(1, 1)), land(house, key(2, 1)), land(house, key(1, 2))])
    window: dict[str, Any] = {"since": key(day=1).logical_date, "until": key(day=3).logical_date}
    missing = [gap.key for gap in house.readers.gaps(QUERY, **window)]
    assert missing == [key(2, 2), key(1, 3), key(2, 3)]
    named = house.readers.gaps(QUERY, customers=["9", "2", "9"], **window)
    assert [gap.key for gap in named] == [key(9, 1), key(2, 2), key(9, 2), key(2, 3), key(9, 3)]
