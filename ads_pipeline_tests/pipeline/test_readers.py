"""What readers get: consistent views, a strict variant, nothing beside the warehouse, and the list of gaps."""

from typing import Any

import duckdb
import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline.pipeline.gaps import GapReason
from ads_pipeline_tests.ledger.builders import action_request, rejection
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    LocalDeployment,
    corrupt_payload,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
    visible_runs_in_spark,
)

CURRENT = f"{QUERY}_current"


def test_the_strict_view_shows_current_runs_alone(house: LocalDeployment) -> None:
    """While a newer run is accepted and not loaded its predecessor is visible, and not in the strict view."""
    house.pipeline.judge_and_load([seal_run(house, key(1)), seal_run(house, key(2))])
    house.pipeline.validation.judge([seal_run(house, key(1), "r2")])
    assert visible_runs(house) == visible_runs_in_spark(house) == {key(1): "r1", key(2): "r1"}
    assert visible_runs(house, CURRENT) == {key(2): "r1"}
    house.pipeline.loader.load([key(1)])
    assert visible_runs(house, CURRENT) == visible_runs(house) == {key(1): "r2", key(2): "r1"}


def test_a_load_in_between_makes_no_hole(house: LocalDeployment) -> None:
    """A partition that is loaded after the table was opened and before the ledger is asked shows new rows or old."""
    house.pipeline.judge_and_load([seal_run(house, key())])

    class Overtaken:
        """A ledger that is asked one load too late, once."""

        def __init__(self) -> None:
            self.looks = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(house.ledger, name)

        def showing(self, **asked: Any) -> Any:
            self.looks += 1
            if self.looks == 1:
                house.pipeline.judge_and_load([seal_run(house, key(), "r2")])
            return house.ledger.visible_runs(**asked)

    overtaken: Any = Overtaken()
    readers = type(house.readers)(ledger=overtaken, warehouse_root=house.home / "warehouse", source="google_ads")
    with readers.connect([QUERY]) as connection:
        assert connection.execute(f"SELECT DISTINCT run_id FROM {QUERY}").fetchall() == [("r2",)]
    assert overtaken.looks == 2


@pytest.mark.invariant("W16")
def test_a_session_sees_one_version_whatever_happens_meanwhile(house: LocalDeployment) -> None:
    """Both queries of one DuckDB session, and a frame of Spark's, tell of the same moment."""
    house.pipeline.judge_and_load([seal_run(house, key(1))])
    frame = house.readers.rows(house.spark, QUERY)
    assert frame is not None
    with house.readers.connect([QUERY]) as connection:
        count = f"SELECT count(*) FROM {QUERY}"
        assert connection.execute(count).fetchall() == [(2,)]
        house.pipeline.judge_and_load([seal_run(house, key(1), "r2", count=5), seal_run(house, key(2))])
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
def test_a_readers_session_reaches_nothing_but_the_warehouse(house: LocalDeployment, statement: str) -> None:
    """Files outside it, other databases, extensions and the settings that forbid them are out of reach."""
    house.pipeline.judge_and_load([seal_run(house, key())])
    with house.readers.connect([QUERY]) as connection, pytest.raises(duckdb.Error):
        connection.execute(statement.format(home=house.home)).fetchall()


def test_a_query_without_a_table_has_no_view(house: LocalDeployment) -> None:
    """Nothing was ever loaded: no frame, no view, and a session all the same."""
    assert house.readers.rows(house.spark, QUERY) is None
    with house.readers.connect([QUERY, "ad_group_daily"]) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == []


def test_an_emptied_table_is_read_as_no_rows(house: LocalDeployment) -> None:
    """After the last rows went both ways of reading answer with columns and without rows."""
    run = seal_run(house, key())
    house.pipeline.judge_and_load([run])
    corrupt_payload(house, run)
    house.pipeline.validation.judge([run], validation_id="again")
    frame = house.readers.rows(house.spark, QUERY)
    assert frame is not None
    assert (frame.count(), frame.columns[-1]) == (0, "is_current")
    assert visible_runs(house) == {}


def test_every_missing_day_has_its_reason(house: LocalDeployment) -> None:
    """Each expected partition that readers do not see stands in the list once, with why; visible ones do not."""
    seen = seal_run(house, key(1))
    unloaded, demoting, withdrawn = seal_run(house, key(2)), seal_run(house, key(3)), seal_run(house, key(4))
    unjudged, bad = seal_run(house, key(5)), seal_invalid_run(house, key(6))
    house.pipeline.judge_and_load([seen, demoting, withdrawn, bad])
    house.pipeline.validation.judge([unloaded])
    house.ledger.begin_demotions([rejection(demoting, validation_id="again")])
    house.ledger.execute(Action.WITHDRAW, [withdrawn.key], action_request())
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


def test_an_account_that_drops_out_is_missed(house: LocalDeployment) -> None:
    """Days and customers without a single row are listed: of every customer known, or of those that are named."""
    house.pipeline.judge_and_load(
        [seal_run(house, key(1, 1)), seal_run(house, key(2, 1)), seal_run(house, key(1, 2))]
    )
    window: dict[str, Any] = {"since": key(day=1).logical_date, "until": key(day=3).logical_date}
    missing = [gap.key for gap in house.readers.gaps(QUERY, **window)]
    assert missing == [key(2, 2), key(1, 3), key(2, 3)]
    named = house.readers.gaps(QUERY, customers=["9", "2", "9"], **window)
    assert [gap.key for gap in named] == [key(9, 1), key(2, 2), key(9, 2), key(2, 3), key(9, 3)]
