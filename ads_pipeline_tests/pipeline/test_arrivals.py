"""Sealed runs without a verdict, in given partitions and in a range of days."""

from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.registration import SealRegister
from ads_pipeline_tests.pipeline.builders import SOURCE, LocalDeployment, key, seal_run


def test_registered_runs_come_before_new_ones(deployment: LocalDeployment) -> None:
    """Unjudged registered runs come first, whatever their names; judged runs are left out."""
    judged, registered = seal_run(deployment, key(), "m"), seal_run(deployment, key(), "z")
    deployment.pipeline.validation.judge([judged])
    SealRegister(raw=deployment.raw, registrations=deployment.ledger.registrations).get_or_register([registered])
    new = seal_run(deployment, key(), "a")
    sealed = SealedRuns(raw=deployment.raw, runs=deployment.ledger.runs)
    assert [each.run for each in sealed.land([key()]).runs] == [registered, new]
    day = key().logical_date
    assert set(sealed.find_unjudged(source=SOURCE, since=day, until=day).runs) == {registered, new}


def test_misnamed_directory_is_reported(deployment: LocalDeployment) -> None:
    """A misspelt customer directory is reported and not skipped silently."""
    misnamed = deployment.home / "raw" / SOURCE / "customer=12"
    misnamed.mkdir(parents=True)
    day = key().logical_date
    found = SealedRuns(raw=deployment.raw, runs=deployment.ledger.runs).find_unjudged(
        source=SOURCE, since=day, until=day
    )
    assert [damaged.path for damaged in found.misnamed] == [f"{SOURCE}/customer=12"]
