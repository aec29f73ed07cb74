"""What was sealed and awaits its verdict, of partitions that are asked for and of a window of days."""

from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.registration import register_runs
from ads_pipeline_tests.pipeline.builders import SOURCE, LocalDeployment, key, seal_run


def test_known_runs_come_first_and_judged_ones_not_at_all(house: LocalDeployment) -> None:
    """A registered run without a verdict is handed out before what the ledger has not heard of, whatever its name."""
    judged, known = seal_run(house, key(), "m"), seal_run(house, key(), "z")
    house.pipeline.validation.judge([judged])
    register_runs([known], raw=house.raw, ledger=house.ledger)
    fresh = seal_run(house, key(), "a")
    sealed = SealedRuns(raw=house.raw, ledger=house.ledger)
    assert sealed.collect([key()]) == [known, fresh]
    day = key().logical_date
    assert set(sealed.find_unjudged(source=SOURCE, since=day, until=day).runs) == {known, fresh}


def test_what_bears_no_runs_name_is_told(house: LocalDeployment) -> None:
    """An account in a misspelt folder does not drop out in silence."""
    odd = house.home / "raw" / SOURCE / "customer=12"
    odd.mkdir(parents=True)
    day = key().logical_date
    found = SealedRuns(raw=house.raw, ledger=house.ledger).find_unjudged(source=SOURCE, since=day, until=day)
    assert [damage.path for damage in found.misnamed] == [f"{SOURCE}/customer=12"]
