"""One data file that is missing, cut or unreadable: it costs its partitions only, is named, and is loaded again."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import duckdb
import pytest

from ads_pipeline.domain.days.conditions import Condition, GapReason
from ads_pipeline.domain.errors import WarehouseUnavailable
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.lake.storage.store import Store
from ads_pipeline.lake.warehouse import replacement
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline import loading
from ads_pipeline_tests.lake.warehouse.builders import list_version_files, read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request, rejection
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    LocalDeployment,
    find_gaps,
    key,
    seal_run,
    table_version_count,
    visible_runs,
)
from ads_pipeline_tests.pipeline.test_repeated_reconciliation import Passes, age_changes

Damage = Callable[[Store, str], None]
DAY_1 = key(1).logical_date


def delete(store: Store, name: str) -> None:
    store.delete(name)


def cut(store: Store, name: str) -> None:
    store.replace(name, store.read(name)[:-10])


def overwrite_rows(store: Store, name: str) -> None:
    """Keep the size, the magic bytes and the footer."""
    content = store.read(name)
    store.replace(name, content[:4] + bytes(len(content) // 3) + content[4 + len(content) // 3 :])


def overwrite_footer(store: Store, name: str) -> None:
    content = store.read(name)
    store.replace(name, content[:-40] + bytes(40))


DAMAGES = [
    pytest.param(delete, "is missing", id="missing"),
    pytest.param(cut, "bytes", id="cut"),
    pytest.param(overwrite_rows, "cannot be read", id="rows"),
    pytest.param(overwrite_footer, "cannot be read", id="footer"),
]


def load_days(deployment: LocalDeployment) -> list[Run]:
    """Two days with three customers in one file each."""
    runs = [seal_run(deployment, key(customer, day)) for day in (1, 2) for customer in (1, 2, 3)]
    deployment.pipeline.judge_and_load(runs)
    return runs


def damage_first_day(deployment: LocalDeployment, damage: Damage) -> str:
    """Damage the file of the first day. Gives its path in the table."""
    (path,) = (path for path in list_version_files(deployment.warehouse_location) if "2026-01-01" in path)
    damage(open_store(deployment.warehouse_location), f"{SOURCE}/{QUERY}/{path}")
    return path


def count_rows(deployment: LocalDeployment, condition: str) -> int:
    with deployment.readers.connect([QUERY]) as connection:
        (count,) = connection.execute(f"SELECT count(cost_micros) FROM {QUERY} WHERE {condition}").fetchall()[0]
    return int(count)


def repair(deployment: LocalDeployment) -> Any:
    return deployment.reconciliation.repair(DayWindow(source=SOURCE, query_name=QUERY))


def delete_raw(deployment: LocalDeployment, run: Run) -> None:
    store = open_store(deployment.raw.location)
    for info in list(store.list(run.path)):
        if deployment.lake is None:
            (deployment.home / "raw" / info.name).parent.chmod(0o700)
        store.delete(info.name)


@pytest.mark.invariant("L12", "L4")
@pytest.mark.parametrize(("damage", "problem"), DAMAGES)
def test_damage_is_named_and_repaired_in_one_commit(
    deployment_on_each_store: LocalDeployment, damage: Damage, problem: str
) -> None:
    """Queries of the file name it, its partitions and the command; other days are read. One commit repairs it."""
    deployment = deployment_on_each_store
    runs = load_days(deployment)
    before, versions = visible_runs(deployment), table_version_count(deployment)
    path = damage_first_day(deployment, damage)
    with pytest.raises(duckdb.Error) as caught:
        count_rows(deployment, "logical_date < '2026-01-05'")
    for part in (path, problem, "2026-01-01 of customers 1, 2, 3", f"ads-pipeline reconcile --query {QUERY}"):
        assert part in str(caught.value)
    assert count_rows(deployment, "logical_date > '2026-01-01'") == 6
    sums = deployment.readers.sum_per_partition(QUERY, "cost_micros", since=DAY_1, until=DAY_1 + timedelta(days=9))
    assert {each.logical_date for each in sums} == {DAY_1 + timedelta(days=1)}
    planned = [str(each) for each in deployment.differences()]
    assert [text.partition(":")[0] for text in planned] == [f"reload {run.key}" for run in runs[:3]]
    assert all(path in text for text in planned)
    assert table_version_count(deployment) == versions
    result = repair(deployment)
    assert [(each.kind.name, each.key) for each in result.repairs] == [("RELOAD", key(each)) for each in (1, 2, 3)]
    assert [each.file.path for each in result.damaged] == [path]
    assert table_version_count(deployment) == versions + 1
    assert visible_runs(deployment) == before
    assert read_with_duckdb(deployment.warehouse_location) == {run.key: ({"r1"}, 2) for run in runs}
    assert deployment.differences() == []
    assert repair(deployment).repairs == ()


@pytest.mark.invariant("L12")
def test_partition_without_raw_needs_a_person(deployment_on_each_store: LocalDeployment) -> None:
    """A partition whose raw run is gone too stays hidden and is reported; the others of its file are repaired."""
    deployment = deployment_on_each_store
    runs = load_days(deployment)
    damage_first_day(deployment, delete)
    delete_raw(deployment, runs[1])
    result = repair(deployment)
    assert set(result.loading.unreadable) == {runs[1]}
    assert visible_runs(deployment) == {run.key: "r1" for run in runs if run != runs[1]}
    assert [(each.kind.name, each.key) for each in deployment.differences()] == [("LOAD", runs[1].key)]
    day = find_gaps(deployment, QUERY, since=DAY_1, until=DAY_1)[runs[1].key]
    assert (day.condition, day.gap) == (Condition.BLOCKED, GapReason.UNLOADABLE)
    again = seal_run(deployment, runs[1].key, "r2")
    deployment.pipeline.judge_and_load([again])
    assert visible_runs(deployment) == {run.key: "r1" for run in runs} | {again.key: "r2"}
    assert deployment.differences() == []


@pytest.mark.invariant("L12")
def test_file_without_readable_partitions_is_dropped(deployment: LocalDeployment) -> None:
    """A file that held only withdrawn and demoted rows leaves the table, and the demotion is finished."""
    runs = load_days(deployment)
    damage_first_day(deployment, cut)
    deployment.ledger.actions.execute(Action.WITHDRAW, [key(1), key(2)], action_request())
    deployment.ledger.verdicts.begin_demotions([rejection(runs[2], validation_id="v2")])
    repair(deployment)
    assert deployment.ledger.states.get(key(3)).status is Status.FAILED
    assert set(visible_runs(deployment)) == {key(each, 2) for each in (1, 2, 3)}
    assert set(read_with_duckdb(deployment.warehouse_location)) == {key(each, 2) for each in (1, 2, 3)}
    assert deployment.differences() == []


@pytest.mark.invariant("L4")
def test_load_of_others_goes_on(deployment: LocalDeployment) -> None:
    """A load that needs the damaged file is set aside and says why. The others of the same call are loaded."""
    load_days(deployment)
    path = damage_first_day(deployment, delete)
    runs = [seal_run(deployment, key(2, day), "r2") for day in (1, 2, 3)]
    _judged, loaded = deployment.pipeline.judge_and_load(runs)
    assert set(loaded.published) == set(runs[1:])
    assert set(loaded.not_loaded) == {runs[0]}
    assert path in str(loaded.not_loaded[runs[0]])
    assert f"ads-pipeline reconcile --query {QUERY}" in str(loaded.not_loaded[runs[0]])
    repair(deployment)
    assert visible_runs(deployment)[key(2)] == "r2"
    assert deployment.differences() == []


@pytest.mark.invariant("L4", "W3")
def test_demotion_waits_for_the_repair_and_stops_no_other_verdict(deployment: LocalDeployment) -> None:
    """The rows of a demoted run are hidden at once. Its verdict waits until they are removed; others are recorded."""
    runs = load_days(deployment)
    damage_first_day(deployment, delete)
    verdicts = [rejection(run, validation_id="v2") for run in (runs[0], runs[3])]
    recorded, refusals = deployment.pipeline.validation.record(verdicts)
    assert [each.verdict.run for each in recorded] == [runs[3]]
    assert set(refusals) == {runs[0]}
    assert f"ads-pipeline reconcile --query {QUERY}" in str(refusals[runs[0]])
    repair(deployment)
    assert deployment.ledger.states.get(runs[0].key).status is Status.FAILED
    assert set(visible_runs(deployment)) == {run.key for run in runs} - {runs[0].key, runs[3].key}
    assert deployment.differences() == []


@pytest.mark.invariant("L12")
def test_compaction_leaves_damaged_files_out(deployment: LocalDeployment) -> None:
    """Other days are compacted. The damaged file waits for its repair."""
    for customer in (1, 2):
        deployment.pipeline.judge_and_load([seal_run(deployment, key(customer, day)) for day in (1, 2)])
    (path, _other) = sorted(p for p in list_version_files(deployment.warehouse_location) if "2026-01-01" in p)
    delete(open_store(deployment.warehouse_location), f"{SOURCE}/{QUERY}/{path}")
    version = deployment.warehouse.optimize(lambda: deployment.spark, source=SOURCE, query_name=QUERY)
    assert version is not None
    assert len(list_version_files(deployment.warehouse_location)) == 3
    repair(deployment)
    assert read_with_duckdb(deployment.warehouse_location) == {
        key(customer, day): ({"r1"}, 2) for customer in (1, 2) for day in (1, 2)
    }


@pytest.mark.invariant("L12", "L6")
@pytest.mark.parametrize("moment", ["_commit_batch", "commit_files", "publish"])
def test_interrupted_repair_is_finished_by_the_next_one(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A repair that stops after hiding the partitions, before its commit or before the pointers is repeated."""
    runs = load_days(deployment)
    damage_first_day(deployment, delete)

    def stop(*_args: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    owner: Any = {
        "_commit_batch": loading.Loader,
        "commit_files": replacement,
        "publish": type(deployment.ledger.loads),
    }[moment]
    monkeypatch.setattr(owner, moment, stop)
    with pytest.raises(KeyboardInterrupt):
        repair(deployment)
    monkeypatch.undo()
    assert set(visible_runs_of_second_day(deployment)) == {run.key for run in runs[3:]}
    repair(deployment)
    assert visible_runs(deployment) == {run.key: "r1" for run in runs}
    assert deployment.differences() == []
    assert all(len(held) == 1 for held, _rows in read_with_duckdb(deployment.warehouse_location).values())


def visible_runs_of_second_day(deployment: LocalDeployment) -> dict[PartitionKey, str]:
    with deployment.readers.connect([QUERY]) as connection:
        rows = connection.execute(
            f"SELECT DISTINCT customer_id, run_id FROM {QUERY} WHERE logical_date = '2026-01-02'"
        ).fetchall()
    return {key(int(customer), 2): run_id for customer, run_id in rows}


@pytest.mark.invariant("L12", "O4")
def test_file_waits_for_partitions_that_another_run_holds(deployment: LocalDeployment) -> None:
    """While another run holds one partition of the file, nothing of it is repaired, and other days are."""
    load_days(deployment)
    damage_first_day(deployment, delete)
    deployment.pipeline.validation.judge([seal_run(deployment, key(5, 3))])
    held, versions = {key(2)}, table_version_count(deployment)
    reconciliation = deployment.reconciliation
    reconciliation._claim = lambda keys: set(keys) - held
    window = DayWindow(source=SOURCE, query_name=QUERY)
    assert [each.key for each in reconciliation.repair(window).repairs] == [key(5, 3)]
    assert table_version_count(deployment) == versions + 1
    held.clear()
    assert [each.key for each in reconciliation.repair(window).repairs] == [key(each) for each in (1, 2, 3)]
    assert deployment.differences() == []


@pytest.mark.invariant("L12", "L1")
@pytest.mark.parametrize("damage", [delete, cut])
def test_hourly_pass_finds_damage_on_a_day_that_nobody_changed(deployment: LocalDeployment, damage: Damage) -> None:
    """A missing or cut file is found within an hour, by a listing, though no other day is read."""
    load_days(deployment)
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1, 31))])
    age_changes(deployment)
    passes = Passes(deployment)
    assert passes.repair() == []
    damage_first_day(deployment, damage)
    assert passes.repair() == ["RELOAD 1", "RELOAD 1", "RELOAD 1"]
    assert passes.read == [(day, day) for day in (DAY_1, DAY_1 + timedelta(days=30))]  # the newest is always read
    assert deployment.differences() == []


@pytest.mark.invariant("L12")
def test_store_that_does_not_answer_is_no_damage(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store refuses to list or to read, nothing counts as damaged, and nothing is dropped."""
    load_days(deployment)
    versions = table_version_count(deployment)
    path = damage_first_day(deployment, delete)
    store = open_store(deployment.warehouse_location)

    def refuse(*_args: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(store), "head", refuse)
    with pytest.raises(WarehouseUnavailable, match="Permission denied"):
        repair(deployment)
    monkeypatch.undo()
    assert table_version_count(deployment) == versions
    assert path in list_version_files(deployment.warehouse_location)
