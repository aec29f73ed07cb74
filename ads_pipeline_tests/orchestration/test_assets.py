"""Runs of the assets: the result for each partition, and what Dagster shows."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from ads_pipeline.domain.days.conditions import NEEDS_OPERATOR
from ads_pipeline.domain.days.day_ranges import expand
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.lake.raw import discovery, disk_runs
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.ledger.state.run_registration import Registrations
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.operations.cli.state.attention import find_listed_ranges
from ads_pipeline.orchestration.complete_check import COMPLETE, evaluate_complete
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.runs.run_tags import range_tags
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, dagster_keys
from ads_pipeline_tests.pipeline.builders import FACTS, QUERY, key, rows_for, seal_invalid_run, seal_run, visible_runs


def test_invalid_partition_fails_alone(location: Location) -> None:
    """Other partitions of the run are judged and loaded. The run succeeds; the checks show the rejected partition."""
    location.add_customers(1, 2, 3)
    valid, invalid, other = key(1), key(2), key(3)
    (
        seal_run(location.deployment, valid),
        seal_invalid_run(location.deployment, invalid),
        seal_run(location.deployment, other),
    )
    assert location.run([valid, other]).success
    assert location.materialized_and_failed(RAW) == (dagster_keys(valid, invalid, other), set())
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(valid, other), set())
    assert location.check_results() == {valid.dagster_key: True, invalid.dagster_key: False, other.dagster_key: True}
    assert visible_runs(location.deployment) == {valid: "r1", other: "r1"}


def test_corrected_run_turns_the_partition_green(location: Location) -> None:
    """A new valid run is accepted and loaded; other partitions are not touched."""
    location.add_customers(1, 2)
    seal_run(location.deployment, key(1)), seal_invalid_run(location.deployment, key(2))
    location.run([key(1), key(2)])
    seal_run(location.deployment, key(2), "r2")
    assert location.run([key(2)]).success
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(1), key(2)), set())
    assert location.check_results() == {key(1).dagster_key: True, key(2).dagster_key: True}
    assert visible_runs(location.deployment) == {key(1): "r1", key(2): "r2"}


def test_unsealed_partition_is_not_materialized(location: Location, capfd: pytest.CaptureFixture[str]) -> None:
    """It is not judged either. The run succeeds and logs the reason, and the others are loaded."""
    location.add_customers(1, 2, 3)
    seal_run(location.deployment, key(1)), seal_run(location.deployment, key(3))
    assert location.run([key(1), key(3)]).success
    assert location.materialized_and_failed(RAW) == (dagster_keys(key(1), key(3)), set())
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(1), key(3)), set())
    assert set(location.check_results()) == dagster_keys(key(1), key(3))
    assert visible_runs(location.deployment) == {key(1): "r1", key(3): "r1"}
    logged = capfd.readouterr().err
    assert f"1 of 3 partitions have no sealed run. First: {key(2)}, " in logged
    assert f"1 of 3 partitions were not loaded. First: {key(2)}, " in logged


@pytest.mark.invariant("W12")
def test_warehouse_asset_alone_loads_only_successes(location: Location, capfd: pytest.CaptureFixture[str]) -> None:
    """Failed, pending and unknown partitions are not loaded."""
    location.add_customers(1, 2, 3, 4)
    invalid, valid = seal_invalid_run(location.deployment, key(1)), seal_run(location.deployment, key(2))
    location.deployment.pipeline.validation.judge([invalid, valid])
    location.deployment.ledger.registrations.insert_pending([key(3)])
    assert location.run([key(1), key(4)], [WAREHOUSE]).success
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(2)), set())
    assert visible_runs(location.deployment) == {key(2): "r1"}
    assert f"3 of 4 partitions were not loaded. First: {key(1)}, rejected: " in capfd.readouterr().err


def test_repeated_run_changes_nothing(location: Location) -> None:
    """A run over loaded partitions succeeds without an attempt or a commit."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    ledger = location.deployment.ledger
    before = ledger.states.get(key(1)), ledger.publications.pointers([key(1)])
    assert location.run([key(1)]).success
    assert (
        location.deployment.ledger.states.get(key(1)),
        location.deployment.ledger.publications.pointers([key(1)]),
    ) == before
    assert location.check_results() == {key(1).dagster_key: True}


@pytest.mark.invariant("O1")
def test_every_sealed_run_gets_one_verdict(location: Location) -> None:
    """All sealed runs are judged once, and the newest accepted one is visible."""
    location.add_customers(1)
    for run_id in ("r1", "r2"):
        seal_run(location.deployment, key(1), run_id)
    seal_invalid_run(location.deployment, key(1), "r3")
    location.run([key(1)])
    attempts = location.deployment.ledger.runs.attempts(key(1))
    assert sorted(attempt.verdict.run.run_id for attempt in attempts) == ["r1", "r2", "r3"]
    assert visible_runs(location.deployment) == {key(1): "r2"}
    assert location.check_results() == {key(1).dagster_key: False}


@pytest.mark.parametrize("run_ids", [("r1",), ("r1", "r2")])
def test_run_reads_registers_and_claims_once(
    location: Location, monkeypatch: pytest.MonkeyPatch, run_ids: tuple[str, ...]
) -> None:
    """Later steps take the seals and the claims of the first one: one read per seal, one registration, one claim."""
    location.add_customers(1)
    for run_id in run_ids:
        seal_run(location.deployment, key(1), run_id)
    calls = Counter[str]()
    for owner, name in (
        (discovery, "read_seal"),
        (disk_runs, "read_seal"),
        (Registrations, "register"),
        (Lease, "claim"),
    ):
        count_calls(monkeypatch, owner, name, calls)
    assert location.run([key(1)]).success
    assert calls == {"read_seal": len(run_ids), "register": 1, "claim": 1}


def test_run_lists_no_partitions_outside_its_range(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing all partitions of a thousand customers takes 7 s of CPU."""

    def list_all(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("the run lists all partitions")

    location.add_customers(1)
    seal_run(location.deployment, key(1, 1))
    monkeypatch.setattr(dg.MultiPartitionsDefinition, "get_partition_keys", list_all)
    assert location.run([key(1, 1)]).success
    assert visible_runs(location.deployment) == {key(1, 1): "r1"}


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: Counter[str]) -> None:
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)


def test_check_alone_judges_registered_runs(location: Location) -> None:
    """It claims the partition and reads the seals itself."""
    location.add_customers(1)
    run = seal_run(location.deployment, key(1))
    location.deployment.pipeline.validation.seals.get_or_register([run])
    (check,) = location.defs.resolve_asset_graph().get_check_keys_for_assets({RAW})
    job = location.defs.resolve_implicit_global_asset_job_def()
    tags = range_tags(Names(), [QUERY], key(1).dagster_key, key(1).dagster_key, why="test")
    subset = job.get_subset(asset_selection=set(), asset_check_selection={check})
    assert subset.execute_in_process(instance=location.instance, tags=tags).success
    state = location.deployment.ledger.states.get(key(1))
    assert (state.status, state.current_run_id) == (Status.SUCCESS, "r1")


def test_metadata_shows_what_changed(location: Location) -> None:
    """A restatement shows both runs and the change in rows and cost; a rejection shows its violations."""
    location.add_customers(1)
    seal_run(location.deployment, key(1), "r1", count=2)
    location.run([key(1)])
    seal_run(location.deployment, key(1), "r2", count=5, cost_micros=2_000_000)
    location.run([key(1)])
    metadata: Any = newest_metadata(location, WAREHOUSE)
    assert (metadata["run_id"], metadata["previous_run_id"], metadata["rows"], metadata["change_in_rows"]) == (
        "r2",
        "r1",
        "5",
        "+3",
    )
    assert (metadata["cost"], metadata["change_in_cost"]) == ("10.00", "-14.00")
    assert (metadata["conversions"], metadata["change_in_conversions"]) == ("7.50", "+4.50")
    assert metadata["raw_run"] == "/assets/raw/campaign_daily?view=partitions&partition=1%7C2026-01-01"
    assert "currency" not in metadata, "the seal names none"
    seal_invalid_run(location.deployment, key(1), "r3")
    result = location.run([key(1)], [RAW])
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.metadata["run_id"].value == "r3"
    violations: Any = evaluation.metadata["violations"]
    (violation,) = violations.records
    assert "cost_micros" in str(violation.data["check"])
    assert result.success, "a rejected run alone is shown by its check"


def test_rejected_rerun_is_no_new_materialization(location: Location) -> None:
    """Nothing was loaded, so the warehouse reports none: assets downstream would run for nothing."""
    location.add_customers(1)
    seal_run(location.deployment, key(1), "r1")
    location.run([key(1)])
    seal_invalid_run(location.deployment, key(1), "r2")
    result = location.run([key(1)])
    assert [event.asset_key for event in result.get_asset_materialization_events()] == [RAW]
    again = location.run([key(1)], [WAREHOUSE])
    assert again.get_asset_materialization_events() == []


@pytest.mark.invariant("L8")
def test_one_check_shows_all_days_of_a_table(location: Location) -> None:
    """`complete` fails while a day of any partition needs somebody, whatever the last run was about."""
    location.add_customers(1, 2)
    seal_run(location.deployment, key(1))
    seal_invalid_run(location.deployment, key(2))
    location.run([key(2)])
    evaluation = complete_of(location.run([key(1)]))
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    assert "expected days need you: " in str(evaluation.description)
    assert "1 rejected" in str(evaluation.description)
    assert evaluation.metadata["next_command"].value == f"ads-pipeline state inspect --query {QUERY}"
    evaluations = location.instance.event_log_storage.get_asset_check_execution_history(
        evaluation.asset_check_key, 10
    )
    assert len(evaluations) == 2
    acknowledge_all(location)
    now = datetime.now(UTC)
    rules = DayRules.read(location.deployment.ledger, location.settings, now=now)
    known = evaluate_complete(Names(), location.deployment.ledger, location.settings, QUERY, rules=rules)
    assert (known.passed, known.severity) == (False, dg.AssetCheckSeverity.WARN), "readers still lack the days"
    assert "need you" not in str(known.description)
    assert " acknowledged. First: " in str(known.description)


def acknowledge_all(location: Location) -> None:
    ledger, settings = location.deployment.ledger, location.settings
    days = dict(expand(find_listed_ranges(settings, ledger, StateFilter(), NEEDS_OPERATOR)))
    ledger.actions.execute(Action.ACKNOWLEDGE, days, action_request("known"))


def complete_of(result: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
    (found,) = (each for each in result.get_asset_check_evaluations() if each.check_name == COMPLETE)
    return found


def test_materializations_are_in_sync_with_their_inputs(location: Location) -> None:
    """Dagster shows neither partition as unsynced, and the code version is that of the run."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    location.run([key(1)])
    for asset in (RAW, WAREHOUSE):
        record = location.instance.get_latest_materialization_event(asset)
        assert record is not None
        assert record.asset_materialization is not None
        tags = record.asset_materialization.tags or {}
        assert tags["dagster/code_version"] == FACTS.schema_version
        assert any(name.startswith("dagster/input_data_version/") for name in tags)
        assert any(name.startswith("dagster/input_event_pointer/") for name in tags)


def test_metadata_has_the_currency_of_the_account(location: Location) -> None:
    """The seal states it beside the cost."""
    location.add_customers(1)
    facts = replace(FACTS, currency_code="EUR")
    location.deployment.raw.land(Run(key=key(1), run_id="r1"), rows_for(key(1), 2), facts)
    location.run([key(1)])
    metadata: Any = newest_metadata(location, WAREHOUSE)
    assert metadata["cost"] == "24.00 EUR"


def test_run_without_contract_gets_no_verdict(location: Location) -> None:
    """The check fails with the reason, no attempt counts, and the partition is not loaded."""
    location.add_customers(1)
    run = Run(key=key(1), run_id="r1")
    location.deployment.raw.land(run, rows_for(key(1), 1), replace(FACTS, schema_version="99"))
    result = location.run([key(1)])
    evaluation = next(each for each in result.get_asset_check_evaluations() if each.check_name == "valid")
    assert not evaluation.passed
    assert "declared are" in str(evaluation.metadata["reason"].value)
    assert location.deployment.ledger.states.get(key(1)).attempt_count == 0


def newest_metadata(location: Location, asset: dg.AssetKey) -> dict[str, Any]:
    event = location.instance.get_latest_materialization_event(asset)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def failure_message(result: dg.ExecuteInProcessResult) -> str:
    """Return the message of the failed step."""
    (failure,) = (event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE)
    error: Any = failure.step_failure_data.error
    while error is not None and error.cause is not None:
        error = error.cause
    failure_data = failure.step_failure_data.user_failure_data
    return f"{error.message if error else ''} {failure_data.description if failure_data else ''}"
