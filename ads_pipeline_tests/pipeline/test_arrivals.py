"""Sealed runs without a verdict, in given partitions and in a range of days."""

import os
from collections.abc import Container
from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns, SearchMemory
from ads_pipeline.pipeline.registration import SealRegister
from ads_pipeline.raw.discovery import Found
from ads_pipeline_tests.builders import write_sealed_run
from ads_pipeline_tests.pipeline.builders import SOURCE, LocalDeployment, key, rows_for, seal_run
from ads_pipeline_tests.validator.builders import make_payload


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


def test_later_searches_find_what_is_new(deployment: LocalDeployment) -> None:
    """A search that remembers the one before finds new runs, and those that still wait, and no judged ones."""
    sealed, memory = SealedRuns(raw=deployment.raw, runs=deployment.ledger.runs), SearchMemory()
    day = key().logical_date

    def find() -> set[Run]:
        return set(sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs)

    first = seal_run(deployment, key(1))
    assert find() == find() == {first}
    deployment.pipeline.validation.judge([first])
    assert find() == set()
    second, other = seal_run(deployment, key(1), "r2"), seal_run(deployment, key(2))
    assert find() == find() == {second, other}


def test_unchanged_days_are_not_opened(deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick costs in proportion to what is new. Folders that changed less than two seconds ago are opened again."""
    memory, opened = SearchMemory(), list[PartitionKey]()
    runs = [seal_run(deployment, key(customer)) for customer in range(1, 6)]
    deployment.pipeline.validation.judge(runs)
    age_days(deployment)
    raw = deployment.raw
    list_folders = raw.list_folders

    def record_and_list(key: PartitionKey, known: Container[Run] = frozenset()) -> tuple[Found, ...]:
        opened.append(key)
        return list_folders(key, known)

    monkeypatch.setattr(raw, "list_folders", record_and_list)
    sealed, day = SealedRuns(raw=raw, runs=deployment.ledger.runs), key().logical_date
    for expected in ([run.key for run in runs], []):
        assert sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs == ()
        assert opened == expected
        opened.clear()
    late = seal_run(deployment, key(3), "r2")
    assert sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs == (late,)
    assert opened == [late.key]


def test_run_that_is_sealed_in_place_is_found(deployment: LocalDeployment) -> None:
    """An outside extractor may write a run's folder first, and its seal later, which does not change the day's."""
    run = Run(key=key(), run_id="r1")
    write_sealed_run(deployment.home / "raw", run, make_payload(*rows_for(run.key, 1)))
    seal = deployment.home / "raw" / run.path / "metadata.json"
    waiting = seal.rename(deployment.home / "waiting")
    seal_run(deployment, key(2))
    age_days(deployment)
    sealed, memory, day = (
        SealedRuns(raw=deployment.raw, runs=deployment.ledger.runs),
        SearchMemory(),
        key().logical_date,
    )
    assert run not in sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs
    waiting.rename(seal)
    assert run in sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs


def test_memory_is_emptied_every_half_hour(deployment: LocalDeployment) -> None:
    """A ledger that was restored from a backup may lack verdicts of runs whose folders have not changed."""
    now = [datetime(2026, 2, 4, tzinfo=UTC)]
    memory, day = SearchMemory(clock=lambda: now[0]), key().logical_date
    run = seal_run(deployment, key())
    deployment.pipeline.validation.judge([run])
    age_days(deployment)
    sealed = SealedRuns(raw=deployment.raw, runs=deployment.ledger.runs)
    assert sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs == ()
    with Ledger.opened(f"sqlite:///{deployment.home / 'restored.db'}") as empty:
        restored = SealedRuns(raw=deployment.raw, runs=empty.runs)
        assert restored.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs == ()
        now[0] += timedelta(minutes=30)
        assert restored.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs == (run,)


def age_days(deployment: LocalDeployment) -> None:
    """Move the times of all folders back, as if nothing had changed for an hour."""
    for folder in (deployment.home / "raw").rglob("logical_date=*"):
        os.utime(folder, (folder.stat().st_atime, folder.stat().st_mtime - 3600))
