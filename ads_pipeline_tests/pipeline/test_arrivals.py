"""Sealed runs without a verdict, in given partitions and in a range of days."""

import os
import uuid
from collections.abc import Container, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.raw import bucket_runs
from ads_pipeline.lake.raw.discovery import ChangedDay, Found
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import METADATA
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline import arrivals
from ads_pipeline.pipeline.arrivals import SealedRuns, SearchMemory
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline_tests.builders import acceptance, write_sealed_run
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.pipeline.builders import FACTS, SOURCE, LocalDeployment, key, rows_for, seal_run
from ads_pipeline_tests.validation.builders import make_payload

FIRST_DAY, LAST_DAY = date(2026, 1, 1), date(2026, 1, 31)


@pytest.fixture
def small_ledger(sqlite_url: str) -> Iterator[Ledger]:
    """A ledger on SQLite alone: the searches do not depend on the database."""
    with Ledger.opened(sqlite_url) as opened:
        yield opened


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


def find_all(raw: RawRuns, ledger: Ledger, memory: SearchMemory | None) -> tuple[Run, ...]:
    found = SealedRuns(raw=raw, runs=ledger.runs).find_unjudged(
        source=SOURCE, since=FIRST_DAY, until=LAST_DAY, memory=memory
    )
    return found.runs


def find_in_round(raw: RawRuns, ledger: Ledger, memory: SearchMemory) -> set[Run]:
    """What is found until every run was looked at once."""
    found = set(find_all(raw, ledger, memory))
    while memory.position is not None:
        found |= set(find_all(raw, ledger, memory))
    return found


def land(raw: RawRuns, partition: PartitionKey, run_id: str = "r1") -> Run:
    return raw.land(Run(key=partition, run_id=run_id), rows_for(partition, 1), FACTS).run


def judge(raw: RawRuns, ledger: Ledger, runs: Iterable[Run]) -> None:
    seals = [raw.read_seal(run) for run in runs]
    SealRegister(raw=raw, registrations=ledger.registrations).register(seals)
    ledger.verdicts.record([acceptance(seal.run, 1) for seal in seals])


@pytest.mark.invariant("O1")
def test_later_searches_find_what_is_new(store_location: str, small_ledger: Ledger) -> None:
    """A search that remembers the one before finds new runs, and those that still wait, and no judged ones."""
    raw, memory = RawRuns(store_location), SearchMemory()
    first = land(raw, key(1))
    assert find_all(raw, small_ledger, memory) == find_all(raw, small_ledger, memory) == (first,)
    judge(raw, small_ledger, [first])
    assert find_all(raw, small_ledger, memory) == ()
    second, other = land(raw, key(1), "r2"), land(raw, key(2))
    for _ in range(2):
        assert set(find_all(raw, small_ledger, memory)) == {second, other}


def test_days_of_judged_runs_are_not_read_again(
    store_location: str, small_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick reads what is new. On a disk, folders that changed less than two seconds ago are read again."""
    raw, memory, opened = RawRuns(store_location), SearchMemory(), list[str]()
    runs = [land(raw, key(customer)) for customer in range(1, 6)]
    judge(raw, small_ledger, runs)
    age_days(raw)
    read_days = raw.read_days

    def record_and_read(days: Iterable[ChangedDay], known: Container[Run]) -> Iterator[Found]:
        opened.extend(day.path for day in days)
        return read_days(days, known)

    monkeypatch.setattr(raw, "read_days", record_and_read)
    for expected in ([run.key.path for run in runs], []):
        assert find_all(raw, small_ledger, memory) == ()
        assert sorted(opened) == expected
        opened.clear()
    late = land(raw, key(3), "r2")
    assert find_all(raw, small_ledger, memory) == (late,)
    assert opened == [late.key.path]


@pytest.mark.invariant("O1", "O2")
@settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    limit=st.integers(1, 9),
    sealed_at=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3), st.integers(1, 3)), max_size=10, unique=True),
)
def test_every_seal_of_a_bucket_is_found_within_a_round(
    data: st.DataObject,
    limit: int,
    sealed_at: list[tuple[int, int, int]],
    s3_location: str,
    tmp_path: Path,
) -> None:
    """A search lists a part of the bucket. Whenever a run is sealed, the next round finds it."""
    number = uuid.uuid4().hex
    raw, memory = RawRuns(f"{s3_location}/{number}", is_in_use=lambda: False), SearchMemory()
    with (
        pytest.MonkeyPatch.context() as patch,
        Ledger.opened(f"sqlite:///{tmp_path / number}.db") as ledger,
    ):
        patch.setattr(bucket_runs, "OBJECTS_PER_SEARCH", limit)
        waiting = set[Run]()
        for step in range(7):
            waiting |= {
                land(raw, key(customer, day), f"r{9 - step}") for at, customer, day in sealed_at if at == step
            }
            found = set(find_all(raw, ledger, memory))
            assert found <= waiting
            if data.draw(st.booleans()):
                judge(raw, ledger, sorted(found))
                waiting -= found
        while memory.position is not None:  # the rest of the round that has begun
            find_all(raw, ledger, memory)
        assert find_in_round(raw, ledger, memory) == waiting
        assert set(find_all(raw, ledger, None)) == waiting


def test_run_that_is_sealed_in_place_is_found(deployment: LocalDeployment) -> None:
    """An outside extractor may write a run's folder first, and its seal later, which does not change the day's."""
    run = Run(key=key(), run_id="r1")
    write_sealed_run(deployment.home / "raw", run, make_payload(*rows_for(run.key, 1)))
    seal = deployment.home / "raw" / run.path / "metadata.json"
    waiting = seal.rename(deployment.home / "waiting")
    seal_run(deployment, key(2))
    age_days(deployment.raw)
    sealed, memory, day = (
        SealedRuns(raw=deployment.raw, runs=deployment.ledger.runs),
        SearchMemory(),
        key().logical_date,
    )
    assert run not in sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs
    waiting.rename(seal)
    assert run in sealed.find_unjudged(source=SOURCE, since=day, until=day, memory=memory).runs


def test_run_that_is_sealed_in_a_listed_folder_is_found(s3_location: str, small_ledger: Ledger) -> None:
    """In a bucket the payload is put first. The day's other runs are judged and remembered before the seal comes."""
    raw, memory, store = RawRuns(s3_location), SearchMemory(), open_store(s3_location)
    judge(raw, small_ledger, [land(raw, key(), "r1")])
    late = land(raw, key(), "r0")
    name = f"{late.path}/{METADATA}"
    seal = store.read(name)
    store.delete(name)
    for _ in range(2):
        assert find_all(raw, small_ledger, memory) == ()
    assert store.create(name, seal)
    assert find_all(raw, small_ledger, memory) == (late,)


def test_fingerprints_are_forgotten_every_half_hour(
    store_location: str, tmp_path: Path, small_ledger: Ledger
) -> None:
    """A ledger that was restored from a backup may lack verdicts of runs whose folders have not changed."""
    now = [datetime(2026, 2, 4, tzinfo=UTC)]
    raw, memory = RawRuns(store_location), SearchMemory(clock=lambda: now[0])
    run = land(raw, key())
    judge(raw, small_ledger, [run])
    age_days(raw)
    assert find_all(raw, small_ledger, memory) == ()
    with Ledger.opened(f"sqlite:///{tmp_path / 'restored.db'}") as restored:
        assert find_all(raw, restored, memory) == ()
        now[0] += timedelta(minutes=30)
        assert find_all(raw, restored, memory) == (run,)


def test_invalid_folder_is_reported_once(
    store_location: str, small_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when so many days have changed that the search walks over all folders again."""
    monkeypatch.setattr(arrivals, "DAYS_READ_ONE_BY_ONE", 0)
    raw, memory = RawRuns(store_location), SearchMemory()
    run = land(raw, key())
    open_store(store_location).create(f"{SOURCE}/customer=12/x", b"x")
    found = SealedRuns(raw=raw, runs=small_ledger.runs).find_unjudged(
        source=SOURCE, since=FIRST_DAY, until=LAST_DAY, memory=memory
    )
    assert found.runs == (run,)
    assert [each.path for each in found.misnamed] == [f"{SOURCE}/customer=12"]


def test_runs_of_many_partitions_are_landed_in_order(store_location: str, small_ledger: Ledger) -> None:
    """Partitions are listed at the same time in a bucket; the order is that of registration, then of extraction."""
    raw = RawRuns(store_location)
    runs = [land(raw, key(customer, day), run_id) for customer in (1, 2) for day in (1, 2) for run_id in ("b", "a")]
    registered = SealRegister(raw=raw, registrations=small_ledger.registrations)
    registered.get_or_register(runs[:1])
    partitions = sorted({run.key for run in runs})
    landed = SealedRuns(raw=raw, runs=small_ledger.runs).land([*partitions, key(3)])
    assert [each.run for each in landed.runs] == [runs[0], *sorted(set(runs) - {runs[0]}, key=str)]


def age_days(raw: RawRuns) -> None:
    """Move the times of all folders of a disk back, as if nothing had changed for an hour."""
    for folder in raw.root.rglob("logical_date=*"):
        os.utime(folder, (folder.stat().st_atime, folder.stat().st_mtime - 3600))
