"""The access of a run to the ledger: one part of it writes, and few transactions."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerRefused
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.control.failed_fetches import FailedFetches
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.state.load_recorder import Loads
from ads_pipeline.ledger.state.run_registration import Registrations
from ads_pipeline.ledger.state.verdicts import Verdicts
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.ledger.write_steps.transactions import LedgerWriter
from ads_pipeline.orchestration.io_manager import PartitionStateIOManager
from ads_pipeline.orchestration.resources import RunResources
from ads_pipeline.orchestration.runs.ended_runs import build_event_origin
from ads_pipeline.pipeline.loading import Loader, LoadResult
from ads_pipeline.pipeline.reconciliation import RepairKind
from ads_pipeline_tests.ledger.transactions import counted_transactions
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, open_resources
from ads_pipeline_tests.orchestration.sensors.ticks import create_run
from ads_pipeline_tests.pipeline.builders import QUERY, SOURCE, key, seal_run, table_version_count, visible_runs

MAX_TRANSACTIONS = 26  # one of them reads what the completeness tables need
WRITERS = (
    ControlActions,
    EventLog,
    FailedFetches,
    Lease,
    Ledger,
    LedgerWriter,
    Loads,
    PartitionStateIOManager,
    Registrations,
    RunResources,
    Verdicts,
)


def test_run_of_one_partition_opens_few_transactions(location: Location) -> None:
    """Each step reads its facts at once. Writes check again what they depend on, under their locks."""
    location.add_customers(1, 2)
    seal_run(location.deployment, key(1)), seal_run(location.deployment, key(2))
    assert location.run([key(1)]).success, "the first run of a deployment records the code versions"
    with counted_transactions() as callers:
        assert location.run([key(2)]).success
    assert visible_runs(location.deployment) == {key(1): "r1", key(2): "r1"}
    assert len(callers) <= MAX_TRANSACTIONS, "\n".join(callers)


@pytest.mark.invariant("W7", "W8")
def test_crash_between_commit_and_pointer_is_repaired(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the new rows, and readers get either run. `reconcile` moves the pointer without a commit."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    seal_run(location.deployment, key(1), "r2")

    def crash(_loader: Loader, _committed: LoadResult) -> LoadResult:
        raise SystemExit("planned")

    with monkeypatch.context() as patch:
        patch.setattr(Loader, "publish", crash)
        assert not location.run([key(1)]).success
    publications = location.deployment.ledger.publications
    assert publications.pointers([key(1)])[key(1)].run.run_id == "r1"
    assert visible_runs(location.deployment) == {key(1): "r2"}
    versions = table_version_count(location.deployment)
    window = DayWindow(source=SOURCE, query_name=QUERY)
    (repair,) = location.deployment.reconciliation.repair(window).repairs
    assert (repair.kind, repair.key) == (RepairKind.POINT, key(1))
    assert publications.pointers([key(1)])[key(1)].run.run_id == "r2"
    assert table_version_count(location.deployment) == versions


@pytest.mark.invariant("S12")
def test_assets_and_checks_hold_no_object_that_writes(location: Location) -> None:
    """They get functions of the IO manager instead. Their ledger refuses writes in the database."""
    location.add_customers(1)
    with open_resources(location, build_event_origin(create_run(location, key(1)))) as opened:
        resources = PartitionStateIOManager(opened).step_resources
        assert {type(each) for each in _reachable(resources)}.isdisjoint(WRITERS)
        delete = sa.text("DELETE FROM partition_state")
        with pytest.raises(LedgerRefused):
            database.transact(resources.ledger.engine, lambda connection: connection.execute(delete))


@pytest.mark.parametrize("asset", [RAW, WAREHOUSE])
def test_steps_are_given_only_the_narrow_resources(location: Location, asset: dg.AssetKey) -> None:
    """Neither an asset nor one of its checks requires the resources that write."""
    graph = location.defs.resolve_asset_graph()
    checks = location.defs.get_repository_def().asset_checks_defs_by_key
    nodes = [graph.get(asset).assets_def, *(checks[each] for each in graph.get_check_keys_for_assets({asset}))]
    for node in nodes:
        assert "run_resources" not in node.op.required_resource_keys
        assert "step_resources" in node.op.required_resource_keys


def _reachable(root: object) -> Iterator[object]:
    """The objects that are reachable through attributes and containers, but not through functions."""
    seen, waiting = set[int](), [root]
    while waiting:
        found: Any = waiting.pop()
        if id(found) in seen or isinstance(found, type) or callable(found):
            continue
        seen.add(id(found))
        yield found
        names = [*getattr(found, "__dict__", ())]
        names += [name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())]
        is_ours = type(found).__module__.startswith("ads_pipeline")
        waiting += [getattr(found, name) for name in names if is_ours and hasattr(found, name)]
        waiting += found.values() if isinstance(found, dict) else ()
        waiting += found if isinstance(found, (list, tuple, set, frozenset)) else ()
