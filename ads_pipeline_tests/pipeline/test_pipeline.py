"""From raw to readers: good partitions arrive, and bad ones harm nobody but themselves."""

import io
from dataclasses import replace

import pytest

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import ContractMissing, RunNotSealed
from ads_pipeline.progress import progress_on
from ads_pipeline_tests.builders import seal_by_hand
from ads_pipeline_tests.pipeline.builders import (
    FACTS,
    QUERY,
    V2,
    LocalDeployment,
    corrupt_payload,
    error_classes,
    hostile_payloads,
    key,
    rows_for,
    seal_invalid_run,
    seal_run,
    table_version_count,
    visible_runs,
    visible_runs_in_spark,
)
from ads_pipeline_tests.warehouse.builders import read_all_versions, read_with_duckdb


def test_accepted_partitions_are_read_the_same_way_everywhere(each_house: LocalDeployment) -> None:
    """One call judges and loads: DuckDB and Spark show exactly the accepted partitions, by one commit."""
    house = each_house
    good, bad = (
        [seal_run(house, key(customer, day)) for customer in (1, 2) for day in (1, 2)],
        seal_invalid_run(house, key(3)),
    )
    before = table_version_count(house)
    judged, loading = house.pipeline.judge_and_load([*good, bad])
    assert error_classes(judged) == dict.fromkeys(good) | {bad: "contract"}
    assert set(loading.published) == set(good)
    assert table_version_count(house) == before + 2  # the table, and the one load
    assert visible_runs(house) == visible_runs_in_spark(house) == dict.fromkeys((run.key for run in good), "r1")
    assert house.ledger.state(bad.key).status is Status.FAILED
    assert house.differences() == []


@pytest.mark.invariant("W6")
def test_carrying_again_changes_nothing(house: LocalDeployment) -> None:
    """A repeated call records no attempt, makes no commit and leaves pointers and load records to the letter."""
    runs = [seal_run(house, key(customer)) for customer in (1, 2)]
    house.pipeline.judge_and_load(runs)
    keys = [run.key for run in runs]
    before = table_version_count(house), house.ledger.states(keys), house.ledger.pointers(keys)
    judged, loading = house.pipeline.judge_and_load(runs)
    assert all(each.redelivered for each in judged.recorded)
    assert loading.published == tuple(runs)
    assert (table_version_count(house), house.ledger.states(keys), house.ledger.pointers(keys)) == before


def test_a_newer_run_replaces_and_a_rejected_one_leaves_the_good_day(house: LocalDeployment) -> None:
    """A restatement moves readers on; a rerun that fails leaves them where they were, and is counted."""
    house.pipeline.judge_and_load([seal_run(house, key(), "r1")])
    house.pipeline.judge_and_load([seal_run(house, key(), "r2", count=3)])
    house.pipeline.judge_and_load([seal_invalid_run(house, key(), "r3")])
    assert visible_runs(house) == {key(): "r2"}
    state = house.ledger.state(key())
    assert (state.status, state.current_run_id, state.attempt_count) == (Status.SUCCESS, "r2", 3)
    assert read_with_duckdb(house.home / "warehouse") == {key(): ({"r2"}, 3)}


@pytest.mark.invariant("W11")
def test_two_schema_versions_share_a_table_and_a_commit(house: LocalDeployment) -> None:
    """Partitions of both versions arrive by one load; each keeps its own version, and lacks what it never had."""
    old, new = seal_run(house, key(1)), seal_run(house, key(2), **V2)
    judged, loading = house.pipeline.judge_and_load([old, new])
    assert error_classes(judged) == {old: None, new: None}
    assert set(loading.published) == {old, new}
    with house.readers.connect([QUERY]) as connection:
        found = connection.execute(
            f"SELECT customer_id, schema_version, max(all_conversions) FROM {QUERY} GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert found == [("1", "1", None), ("2", "2", 2.0)]
    assert [set(each) for each in read_all_versions(house.home / "warehouse")][-1] == {old.key, new.key}


@pytest.mark.invariant("W15")
def test_a_day_without_rows_is_a_success_that_clears_the_old_rows(house: LocalDeployment) -> None:
    """An empty, sealed run is published: pointer with no rows, nothing to see, no gap."""
    house.pipeline.judge_and_load([seal_run(house, key(), "r1")])
    house.pipeline.judge_and_load([seal_run(house, key(), "r2", count=0)])
    assert visible_runs(house) == {}
    pointer = house.ledger.pointers([key()])[key()]
    assert (pointer.run.run_id, pointer.record_count, pointer.available) == ("r2", 0, True)
    day = key().logical_date
    assert house.readers.gaps(QUERY, since=day, until=day) == []
    assert house.differences() == []


@pytest.mark.invariant("V2")
def test_hostile_partitions_harm_no_neighbour(house: LocalDeployment) -> None:
    """Truncated, lying, enormous, deep and foreign payloads are rejected with a reason; their neighbours arrive."""
    good = [seal_run(house, key(customer)) for customer in (1, 2)]
    hostile = {}
    for customer, (name, payload) in enumerate(hostile_payloads(key(1)).items(), start=10):
        hostile[name] = Run(key=key(customer), run_id=name)
        seal_by_hand(house.home / "raw", hostile[name], payload)
    cut, lying = Run(key=key(20), run_id="cut"), Run(key=key(21), run_id="lying")
    seal_by_hand(house.home / "raw", cut, b'{"campaign_id": 1', payload_bytes=500, record_count=1)
    seal_by_hand(house.home / "raw", lying, b"{}\n", record_count=7)
    judged, loading = house.pipeline.judge_and_load([*good, *hostile.values(), cut, lying])
    assert set(loading.published) == set(good)
    assert visible_runs(house) == dict.fromkeys((run.key for run in good), "r1")
    for run in (*hostile.values(), cut, lying):
        state = house.ledger.state(run.key)
        assert state.status is Status.FAILED
        assert state.error_message is not None
        assert state.error_message.startswith(str(run))
        assert len(state.error_message) <= 2000
    told = {run.run_id: house.ledger.state(run.key).error_message or "" for run in (*hostile.values(), cut, lying)}
    for name, words in {
        "deep": "nest",
        "long_line": "line 1",
        "other_query": "campaign_id",
        "two_objects": "line 1",
        "cut": "500",
        "lying": "7",
    }.items():
        assert words in told[name], told[name]
    assert judged.unjudged == {}


def test_what_cannot_be_judged_is_no_verdict_and_stops_nobody(house: LocalDeployment) -> None:
    """A run that was never sealed and one without a contract are named with the reason; the others are carried."""
    good, unsealed = seal_run(house, key(1)), Run(key=key(2), run_id="r1")
    house.raw.land(Run(key=key(3), run_id="r1"), rows_for(key(3), 1), replace(FACTS, schema_version="99"))
    judged, loading = house.pipeline.judge_and_load([good, unsealed, Run(key=key(3), run_id="r1")])
    assert loading.published == (good,)
    assert {run.key: type(error) for run, error in judged.unjudged.items()} == {
        key(2): RunNotSealed,
        key(3): ContractMissing,
    }
    assert house.ledger.state(key(2)).attempt_count == house.ledger.state(key(3)).attempt_count == 0


@pytest.mark.invariant("W12")
def test_only_successes_are_loaded_whoever_asks(house: LocalDeployment) -> None:
    """Asked to load pending, failed and unknown partitions, the pipeline refuses each by name and loads the rest."""
    good, bad, waiting = seal_run(house, key(1)), seal_invalid_run(house, key(2)), seal_run(house, key(3))
    house.pipeline.validation.judge([good, bad])
    house.ledger.insert_pending([waiting.key])
    loading = house.pipeline.loader.load([good.key, bad.key, waiting.key, key(4)])
    assert loading.published == (good,)
    assert [state.key for state in loading.skipped] == [bad.key, waiting.key, key(4)]
    assert visible_runs(house) == {good.key: "r1"}


def test_a_payload_that_changed_after_its_verdict_is_never_loaded(house: LocalDeployment) -> None:
    """Only that partition stays out, by name; its neighbours in the same load arrive."""
    good, changed, gone = (seal_run(house, key(customer)) for customer in (1, 2, 3))
    house.pipeline.validation.judge([good, changed, gone])
    corrupt_payload(house, changed)
    (house.home / "raw" / gone.path / "metadata.json").unlink()
    loading = house.pipeline.loader.load([good.key, changed.key, gone.key])
    assert loading.published == (good,)
    assert set(loading.unreadable) == {changed, gone}
    assert visible_runs(house) == {good.key: "r1"}


def test_a_run_that_was_sealed_anew_is_rejected(house: LocalDeployment) -> None:
    """A registered run whose seal is exchanged before it is judged is damaged, and its neighbours are not."""
    good, exchanged = seal_run(house, key(1)), Run(key=key(2), run_id="r1")
    directory = seal_by_hand(house.home / "raw", exchanged, b"")
    house.pipeline.validation.judge([exchanged])
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    seal_by_hand(house.home / "raw", exchanged, b"{}\n")
    judged = house.pipeline.validation.judge([good, exchanged], validation_id="again")
    assert error_classes(judged) == {good: None, exchanged: "damaged"}
    assert house.ledger.state(exchanged.key).status is Status.FAILED


def test_a_verdict_against_an_earlier_one_is_refused_alone(house: LocalDeployment) -> None:
    """The same validation cannot come to another answer: that verdict is refused, the others are recorded."""
    good, changed = seal_run(house, key(1)), seal_run(house, key(2))
    house.pipeline.judge_and_load([changed])
    corrupt_payload(house, changed)
    judged, loading = house.pipeline.judge_and_load([good, changed])
    assert [error.run for error in judged.refusals if hasattr(error, "run")] == [str(changed)]
    assert loading.published == (good,)
    assert visible_runs(house) == {good.key: "r1", changed.key: "r1"}


def test_progress_is_told_in_lines_where_there_is_no_terminal(house: LocalDeployment) -> None:
    """Each step says its words, how many partitions it is for, and how many are done."""
    stream = io.StringIO()
    told = replace(house, tell=progress_on(stream))
    told.pipeline.judge_and_load([seal_run(house, key(1)), seal_run(house, key(2))])
    lines = stream.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["judging", "judging", "loading", "loading"]
    assert lines[0] == "judging: 2 partitions"
    assert lines[1].startswith("judging: 2 of 2 partitions, ")


def test_many_partitions_are_carried_in_portions(house: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is more than fits at once is judged and loaded in several goes, none left out."""
    monkeypatch.setattr("ads_pipeline.pipeline.judging.RUNS_PER_BATCH", 2)
    monkeypatch.setattr("ads_pipeline.pipeline.loading.PARTITIONS_PER_COMMIT", 2)
    runs = [seal_run(house, key(customer)) for customer in range(1, 6)]
    _judged, loading = house.pipeline.judge_and_load(runs)
    assert loading.published == tuple(runs)
    assert visible_runs(house) == dict.fromkeys((run.key for run in runs), "r1")


def test_nothing_to_carry_is_no_work(house: LocalDeployment) -> None:
    """An empty call starts nothing and makes no table."""
    judged, loading = house.pipeline.judge_and_load([])
    assert (judged.judgements, loading.published) == ((), ())
    assert not (house.home / "warehouse").exists()
