"""The path from sealed runs to visible rows: valid partitions are loaded, and each invalid one fails alone."""

import io
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import ContractMissing, RunNotSealed
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.lake.raw.seal import PAYLOAD
from ads_pipeline.ledger.sql import database
from ads_pipeline.pipeline.progress import progress_on
from ads_pipeline_tests.builders import write_sealed_run
from ads_pipeline_tests.lake.warehouse.builders import read_all_versions, read_with_duckdb
from ads_pipeline_tests.pipeline.builders import (
    FACTS,
    QUERY,
    V2,
    LocalDeployment,
    corrupt_payload,
    error_classes,
    find_gaps,
    hostile_payloads,
    key,
    rows_for,
    seal_invalid_run,
    seal_run,
    table_version_count,
    visible_runs,
    visible_runs_in_spark,
)
from ads_pipeline_tests.validation.builders import make_payload


def test_accepted_partitions_are_visible_in_duckdb_and_spark(deployment_on_each_database: LocalDeployment) -> None:
    """One call judges and loads; both readers show exactly the accepted partitions of one commit."""
    deployment = deployment_on_each_database
    valid, invalid = (
        [seal_run(deployment, key(customer, day)) for customer in (1, 2) for day in (1, 2)],
        seal_invalid_run(deployment, key(3)),
    )
    before = table_version_count(deployment)
    judged, loading = deployment.pipeline.judge_and_load([*valid, invalid])
    assert error_classes(judged) == dict.fromkeys(valid) | {invalid: "contract"}
    assert set(loading.published) == set(valid)
    assert table_version_count(deployment) == before + 2  # the table, and the one load
    assert (
        visible_runs(deployment)
        == visible_runs_in_spark(deployment)
        == dict.fromkeys((run.key for run in valid), "r1")
    )
    assert deployment.ledger.states.get(invalid.key).status is Status.FAILED
    assert deployment.differences() == []


@pytest.mark.invariant("W6")
def test_repeated_call_changes_nothing(deployment: LocalDeployment) -> None:
    """It records no attempt, makes no commit and leaves pointers and load records unchanged."""
    runs = [seal_run(deployment, key(customer)) for customer in (1, 2)]
    deployment.pipeline.judge_and_load(runs)
    keys = [run.key for run in runs]
    before = (
        table_version_count(deployment),
        deployment.ledger.states.get_many(keys),
        deployment.ledger.publications.pointers(keys),
    )
    judged, loading = deployment.pipeline.judge_and_load(runs)
    assert all(each.redelivered for each in judged.recorded)
    assert loading.published == tuple(runs)
    assert (
        table_version_count(deployment),
        deployment.ledger.states.get_many(keys),
        deployment.ledger.publications.pointers(keys),
    ) == before


def test_rejected_rerun_keeps_previous_data(deployment: LocalDeployment) -> None:
    """A newer accepted run replaces the rows; a rejected one keeps them and counts as an attempt."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r1")])
    deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r2", count=3)])
    deployment.pipeline.judge_and_load([seal_invalid_run(deployment, key(), "r3")])
    assert visible_runs(deployment) == {key(): "r2"}
    state = deployment.ledger.states.get(key())
    assert (state.status, state.current_run_id, state.attempt_count) == (Status.SUCCESS, "r2", 3)
    assert read_with_duckdb(deployment.warehouse_location) == {key(): ({"r2"}, 3)}


@pytest.mark.invariant("W11")
def test_two_schema_versions_share_a_table_and_a_commit(deployment: LocalDeployment) -> None:
    """Each partition keeps its schema version; columns it lacks are NULL."""
    old, new = seal_run(deployment, key(1)), seal_run(deployment, key(2), **V2)
    judged, loading = deployment.pipeline.judge_and_load([old, new])
    assert error_classes(judged) == {old: None, new: None}
    assert set(loading.published) == {old, new}
    with deployment.readers.connect([QUERY]) as connection:
        found = connection.execute(
            f"SELECT customer_id, schema_version, max(all_conversions) FROM {QUERY} GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert found == [("1", "1", None), ("2", "2", 2.0)]
    assert [set(each) for each in read_all_versions(deployment.warehouse_location)][-1] == {old.key, new.key}


@pytest.mark.invariant("W15")
def test_empty_run_replaces_previous_rows(deployment: LocalDeployment) -> None:
    """A run without rows is published: it has a pointer, no rows and no gap."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r1")])
    deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r2", count=0)])
    assert visible_runs(deployment) == {}
    pointer = deployment.ledger.publications.pointers([key()])[key()]
    assert (pointer.run.run_id, pointer.record_count, pointer.is_published) == ("r2", 0, True)
    day = key().logical_date
    assert find_gaps(deployment, QUERY, since=day, until=day) == {}
    assert deployment.differences() == []


@pytest.mark.invariant("V2")
def test_hostile_payloads_do_not_affect_other_partitions(deployment: LocalDeployment) -> None:
    """Truncated, miscounted, huge, deeply nested and foreign payloads are rejected with a reason."""
    valid = [seal_run(deployment, key(customer)) for customer in (1, 2)]
    hostile = {}
    for customer, (name, payload) in enumerate(hostile_payloads(key(1)).items(), start=10):
        hostile[name] = Run(key=key(customer), run_id=name)
        write_sealed_run(deployment.home / "raw", hostile[name], payload)
    truncated, miscounted = Run(key=key(20), run_id="truncated"), Run(key=key(21), run_id="miscounted")
    write_sealed_run(deployment.home / "raw", truncated, b'{"campaign_id": 1', payload_bytes=500, record_count=1)
    write_sealed_run(deployment.home / "raw", miscounted, b"{}\n", record_count=7)
    judged, loading = deployment.pipeline.judge_and_load([*valid, *hostile.values(), truncated, miscounted])
    assert set(loading.published) == set(valid)
    assert visible_runs(deployment) == dict.fromkeys((run.key for run in valid), "r1")
    for run in (*hostile.values(), truncated, miscounted):
        state = deployment.ledger.states.get(run.key)
        assert state.status is Status.FAILED
        assert state.error_message is not None
        assert state.error_message.startswith(f"{run.run_id}: ")
        assert len(state.error_message) <= 2000
    messages = {
        run.run_id: deployment.ledger.states.get(run.key).error_message or ""
        for run in (*hostile.values(), truncated, miscounted)
    }
    for name, text in {
        "deep": "nest",
        "long_line": "line 1",
        "other_query": "campaign_id",
        "two_objects": "line 1",
        "truncated": "500",
        "miscounted": "7",
    }.items():
        assert text in messages[name], messages[name]
    assert judged.unjudged == {}


def test_runs_that_cannot_be_judged_get_no_verdict(deployment: LocalDeployment) -> None:
    """Unsealed runs and runs without a contract are reported; the others are loaded."""
    valid, unsealed = seal_run(deployment, key(1)), Run(key=key(2), run_id="r1")
    deployment.raw.land(Run(key=key(3), run_id="r1"), rows_for(key(3), 1), replace(FACTS, schema_version="99"))
    judged, loading = deployment.pipeline.judge_and_load([valid, unsealed, Run(key=key(3), run_id="r1")])
    assert loading.published == (valid,)
    assert {run.key: type(error) for run, error in judged.unjudged.items()} == {
        key(2): RunNotSealed,
        key(3): ContractMissing,
    }
    assert (
        deployment.ledger.states.get(key(2)).attempt_count == deployment.ledger.states.get(key(3)).attempt_count == 0
    )


@pytest.mark.invariant("W12")
def test_only_successful_partitions_are_loaded(deployment: LocalDeployment) -> None:
    """Pending, failed and unknown partitions are skipped and reported."""
    valid, invalid, pending = (
        seal_run(deployment, key(1)),
        seal_invalid_run(deployment, key(2)),
        seal_run(deployment, key(3)),
    )
    deployment.pipeline.validation.judge([valid, invalid])
    deployment.ledger.registrations.insert_pending([pending.key])
    loading = deployment.pipeline.loader.load([valid.key, invalid.key, pending.key, key(4)])
    assert loading.published == (valid,)
    assert [state.key for state in loading.skipped] == [invalid.key, pending.key, key(4)]
    assert visible_runs(deployment) == {valid.key: "r1"}


def test_payload_changed_after_its_verdict_is_not_loaded(deployment: LocalDeployment) -> None:
    """The partition is reported as unreadable; the others of the same load are loaded."""
    valid, corrupted, unsealed = (seal_run(deployment, key(customer)) for customer in (1, 2, 3))
    deployment.pipeline.validation.judge([valid, corrupted, unsealed])
    corrupt_payload(deployment, corrupted)
    (deployment.home / "raw" / unsealed.path / "metadata.json").unlink()
    loading = deployment.pipeline.loader.load([valid.key, corrupted.key, unsealed.key])
    assert loading.published == (valid,)
    assert set(loading.unreadable) == {corrupted, unsealed}
    assert visible_runs(deployment) == {valid.key: "r1"}


def test_run_with_replaced_seal_is_rejected(deployment: LocalDeployment) -> None:
    """A registered run whose seal was replaced is damaged."""
    valid, replaced = seal_run(deployment, key(1)), Run(key=key(2), run_id="r1")
    directory = write_sealed_run(deployment.home / "raw", replaced, b"")
    deployment.pipeline.validation.judge([replaced])
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    write_sealed_run(deployment.home / "raw", replaced, b"{}\n")
    judged = deployment.pipeline.validation.judge([valid, replaced], validation_id="again")
    assert error_classes(judged) == {valid: None, replaced: "damaged"}
    assert deployment.ledger.states.get(replaced.key).status is Status.FAILED


def test_conflicting_verdict_is_refused(deployment: LocalDeployment) -> None:
    """The same validation cannot change its verdict; the other verdicts are recorded."""
    valid, corrupted = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.judge_and_load([corrupted])
    corrupt_payload(deployment, corrupted)
    judged, loading = deployment.pipeline.judge_and_load([valid, corrupted])
    assert list(judged.refusals) == [corrupted]
    assert loading.published == (valid,)
    assert visible_runs(deployment) == {valid.key: "r1", corrupted.key: "r1"}


def test_progress_is_printed_as_lines_without_a_terminal(deployment: LocalDeployment) -> None:
    """Each step prints its name, the number of partitions and how many are done."""
    stream = io.StringIO()
    reporting = replace(deployment, report_progress=progress_on(stream))
    reporting.pipeline.judge_and_load([seal_run(deployment, key(1)), seal_run(deployment, key(2))])
    lines = stream.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["judging", "judging", "loading", "loading"]
    assert lines[0] == "judging: 2 partitions"
    assert lines[1].startswith("judging: 2 of 2 partitions, ")


def test_many_partitions_are_processed_in_batches(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches are judged and loaded."""
    monkeypatch.setattr("ads_pipeline.pipeline.validation.RUNS_PER_BATCH", 2)
    monkeypatch.setattr("ads_pipeline.pipeline.loading.PARTITIONS_PER_COMMIT", 2)
    runs = [seal_run(deployment, key(customer)) for customer in range(1, 6)]
    _judged, loading = deployment.pipeline.judge_and_load(runs)
    assert loading.published == tuple(runs)
    assert visible_runs(deployment) == dict.fromkeys((run.key for run in runs), "r1")


def test_empty_call_does_nothing(deployment: LocalDeployment) -> None:
    """Without runs there is no judgement, no load and no table."""
    judged, loading = deployment.pipeline.judge_and_load([])
    assert (judged.judgements, loading.published) == ((), ())
    assert not (deployment.home / "warehouse").exists()


@pytest.mark.invariant("X1")
def test_texts_of_payloads_stay_out_of_ledger_and_logs(
    deployment_on_each_database: LocalDeployment, caplog: pytest.LogCaptureFixture
) -> None:
    """Search terms and names are personal data. A rejection keeps their length and no part of them."""
    deployment, name = deployment_on_each_database, "ida johnson of 12 myrtle avenue"
    bad = [
        seal_run(deployment, key(1), campaign_status=name),
        seal_run(deployment, key(2), customer_id=name),
        seal_run(deployment, key(3), clicks=name),
        seal_run(deployment, key(4), cost_micros=-1, campaign_name=name),
        seal_run(deployment, key(5), date=name),
    ]
    with caplog.at_level("DEBUG"):
        judged, _loaded = deployment.pipeline.judge_and_load(bad)
    assert set(error_classes(judged).values()) == {"contract", "wrong_type"}
    assert f"text of {len(name)} characters" in str(deployment.ledger.states.get(key(1)).error_message)
    with deployment.ledger.engine.connect() as connection:
        stored = [
            str(each) for table in database.METADATA.sorted_tables for each in connection.execute(sa.select(table))
        ]
    assert len(stored) > len(bad)
    for part in ("ida ", "john", "myrt", "aven"):
        assert [each for each in (*stored, caplog.text) if part in each] == []


def _outside_run(deployment: LocalDeployment, customer: int) -> Run:
    """Seal a run of two rows as an outside extractor does that writes no digest."""
    run = Run(key=key(customer), run_id="r1")
    payload = make_payload(*rows_for(run.key, 2))
    write_sealed_run(deployment.home / "raw", run, payload, payload_bytes=None, payload_sha256=None)
    return run


@pytest.mark.invariant("R1", "W3")
def test_only_judged_bytes_are_loaded(deployment_on_each_database: LocalDeployment) -> None:
    """A payload without a digest in its seal may change after its verdict. Then its run is named and not loaded."""
    deployment = deployment_on_each_database
    changes: list[dict[str, Any]] = [{"clicks": 8}, {"clicks": -1}, {"campaign_name": "Longer"}]
    sound, *changed = (_outside_run(deployment, customer) for customer in range(len(changes) + 1))
    deployment.pipeline.validation.judge([sound, *changed])
    for run, change in zip(changed, changes, strict=True):
        _write_payload(deployment, run, **change)
    loading = deployment.pipeline.loader.load(run.key for run in (sound, *changed))
    assert loading.published == (sound,)
    assert {run: str(error) for run, error in loading.unreadable.items()} == {
        run: f"{run.path}: the payload is not the one that the validator read" for run in changed
    }
    assert visible_runs(deployment) == {sound.key: "r1"}
    _write_payload(deployment, changed[0])
    assert deployment.pipeline.loader.load([changed[0].key]).published == (changed[0],)


def _write_payload(deployment: LocalDeployment, run: Run, **changes: Any) -> None:
    (deployment.raw.root / run.path / PAYLOAD).write_bytes(make_payload(*rows_for(run.key, 2, **changes)))
