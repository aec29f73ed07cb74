"""What was sealed and awaits its verdict, of partitions that are asked for and of a window of days."""

from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.registration import register
from ads_pipeline_tests.pipeline.builders import SOURCE, House, key, land


def test_known_runs_come_first_and_judged_ones_not_at_all(house: House) -> None:
    """A registered run without a verdict is handed out before what the ledger has not heard of, whatever its name."""
    judged, known = land(house, key(), "m"), land(house, key(), "z")
    house.pipeline.judge([judged])
    register([known], raw=house.raw, ledger=house.ledger)
    fresh = land(house, key(), "a")
    sealed = SealedRuns(raw=house.raw, ledger=house.ledger)
    assert sealed.land([key()]) == [known, fresh]
    day = key().logical_date
    assert set(sealed.arrived(source=SOURCE, since=day, until=day).runs) == {known, fresh}


def test_what_bears_no_runs_name_is_told(house: House) -> None:
    """An account in a misspelt folder does not drop out in silence."""
    odd = house.home / "raw" / SOURCE / "customer=12"
    odd.mkdir(parents=True)
    day = key().logical_date
    found = SealedRuns(raw=house.raw, ledger=house.ledger).arrived(source=SOURCE, since=day, until=day)
    assert [damage.path for damage in found.nameless] == [f"{SOURCE}/customer=12"]
