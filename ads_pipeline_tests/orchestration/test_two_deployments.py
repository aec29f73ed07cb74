"""Two deployments in one code location and one instance of Dagster do not disturb each other."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.transitions import Action
from ads_pipeline.orchestration.catalog import REPORT
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS, define_partitions
from ads_pipeline.orchestration.runs.run_tags import WHY_TAG
from ads_pipeline.orchestration.sensors.earlier_runs import REQUEST_TAG
from ads_pipeline.orchestration.sensors.report_changes import WRITING
from ads_pipeline.orchestration.sensors.run_requests import build_run_requests
from ads_pipeline_tests.ledger.builders import FakeClock, action_request
from ads_pipeline_tests.orchestration.builders import Location, open_instance, open_location, request_partitions
from ads_pipeline_tests.orchestration.sensors.ticks import (
    create_run,
    due_partitions,
    execute_requests,
    requested_ranges,
    tick,
)
from ads_pipeline_tests.pipeline.builders import QUERY, key, seal_run, visible_runs

SENSORS = (
    "raw_arrivals",
    "states_to_load",
    "retries_due",
    "readable_changes",
    "run_completion",
    "notifications",
    "report_changes",
)


@pytest.fixture
def deployments(tmp_path: Path, spark: SparkSession) -> Iterator[tuple[Location, Location]]:
    clock = FakeClock()
    clock.now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    with ExitStack() as stack:
        instance = stack.enter_context(open_instance(tmp_path))
        acme, beta = (
            stack.enter_context(
                open_location(tmp_path / name, spark, clock=clock, names=Names((name,)), instance=instance),
            )
            for name in ("acme", "beta")
        )
        merged = dg.Definitions.merge(acme.defs, beta.defs)
        yield replace(acme, defs=merged), replace(beta, defs=merged)


def run_report(location: Location) -> None:
    (request,) = tick(location, "report_changes").run_requests or ()
    result = location.defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=location.instance, asset_selection=[location.names.key(REPORT)], tags=dict(request.tags)
    )
    assert result.success


def find_foreign(request: dg.RunRequest, names: Names) -> list[str]:
    """What a requested run names below another prefix."""
    assets = [*(request.asset_selection or ()), *(each.asset_key for each in request.asset_check_keys or ())]
    tags = [tag for tag in request.tags if tag.startswith("ads_pipeline/")]
    resources = dict[str, Any](request.run_config or {}).get("resources", {})
    return [
        *(str(asset) for asset in assets if asset.path[0] != names.prefix[0]),
        *(tag for tag in tags if not tag.startswith(f"ads_pipeline/{names.name('')}")),
        *(name for name in resources if not name.startswith(names.name(""))),
    ]


@pytest.mark.invariant("S1")
def test_each_deployment_requests_and_runs_its_own(deployments: tuple[Location, Location]) -> None:
    """The same partition arrives in both. A run of it in one, even an unfinished one, is no run in the other."""
    acme, beta = deployments
    for location in deployments:
        seal_run(location.deployment, key(1))
        tick(location)
        assert location.instance.get_dynamic_partitions(location.names.name(CUSTOMERS)) == ["1"]
    assert acme.instance.get_dynamic_partitions(CUSTOMERS) == []

    unfinished = create_run(acme, key(1))
    assert requested_ranges(tick(acme)) == []
    (request,) = tick(beta).run_requests or ()
    assert due_partitions(request, beta.names) == {key(1)}
    acme.instance.report_run_canceled(unfinished)

    for location in deployments:
        result = tick(location)
        assert [find_foreign(each, location.names) for each in result.run_requests or ()] == [[]]
        execute_requests(location, result)
        assert visible_runs(location.deployment) == {key(1): "r1"}
        assert location.materialized_and_failed(location.names.warehouse(QUERY)) == ({key(1).dagster_key}, set())
    assert [requested_ranges(tick(location)) for location in deployments] == [[], []]


def test_all_sensors_of_both_deployments_name_only_their_own(deployments: tuple[Location, Location]) -> None:
    """Each sensor ticks before and after a run of its deployment. No request names anything of the other one."""
    requested = set[tuple[str, str]]()
    for location in deployments:
        seal_run(location.deployment, key(1))
        for _round in range(3):
            for name in SENSORS:
                result = tick(location, name)
                for request in result.run_requests or ():
                    requested.add((location.names.prefix[0], name))
                    assert find_foreign(request, location.names) == []
                if name == "raw_arrivals":
                    execute_requests(location, result)
    expected = {(prefix, name) for prefix in ("acme", "beta") for name in ("raw_arrivals", "report_changes")}
    assert expected <= requested


def test_failed_request_is_repeated_by_its_own_deployment(deployments: tuple[Location, Location]) -> None:
    """After a delay, with a key that names the failed run. The other deployment has no delay and no such run."""

    def request_again(location: Location, later: timedelta) -> list[dg.RunRequest]:
        partitions = define_partitions(location.names, location.settings.google_apis.start_date)
        due = request_partitions({key(1): "r1"}, names=location.names)
        return build_run_requests(location.instance, partitions, due, now=datetime.now(UTC) + later)

    acme, beta = deployments
    for location in deployments:
        location.add_customers(1)
    (first,), (second,) = (request_again(location, timedelta()) for location in deployments)
    job = acme.defs.resolve_implicit_global_asset_job_def()
    run = acme.instance.create_run_for_job(
        job,
        tags=dict(first.tags),
        run_config=first.run_config,
        asset_selection=frozenset(acme.names.assets([QUERY])),
    )
    acme.instance.report_run_failed(run)
    assert request_again(acme, timedelta()) == []
    assert [each.run_key for each in request_again(beta, timedelta())] == [second.run_key]
    (again,) = request_again(acme, timedelta(minutes=3))
    assert run.run_id in str(again.run_key)
    assert again.tags[acme.names.tag(WHY_TAG)].endswith(f"again after run {run.run_id[:8]}")
    assert again.tags[acme.names.tag(REQUEST_TAG)] == first.tags[acme.names.tag(REQUEST_TAG)]
    assert find_foreign(again, acme.names) == []


def test_operators_action_is_shown_in_its_own_deployment(deployments: tuple[Location, Location]) -> None:
    """A run of the assets needs no further check; a withdrawal does, in its deployment only."""
    cursors = dict[Names, str | None]()
    for location in deployments:
        location.add_customers(1)
        seal_run(location.deployment, key(1))
        assert location.run([key(1)]).success
        cursors[location.names] = tick(location, "readable_changes").cursor
    deployments[0].deployment.ledger.actions.execute(Action.WITHDRAW, [key(1)], action_request())
    own, other = (tick(each, "readable_changes", cursor=cursors[each.names]) for each in deployments)
    withdrawn = f"{key(1).dagster_key}..{key(1).dagster_key}"
    assert withdrawn in requested_ranges(own)
    assert withdrawn not in requested_ranges(other)
    for location, result in zip(deployments, (own, other), strict=True):
        assert not any(find_foreign(each, location.names) for each in result.run_requests or ())


def test_reports_are_renewed_one_by_one(deployments: tuple[Location, Location]) -> None:
    """The report of one deployment does not renew the report of the other."""
    acme, beta = deployments
    run_report(acme)
    assert not tick(acme, "report_changes").run_requests
    run_report(beta)
    assert not tick(beta, "report_changes").run_requests


def test_report_in_progress_is_that_of_its_deployment(deployments: tuple[Location, Location]) -> None:
    """While a run writes the report of one deployment, that of the other one is requested."""
    acme, beta = deployments
    (request,) = tick(acme, "report_changes").run_requests or ()
    job = acme.defs.resolve_implicit_global_asset_job_def()
    acme.instance.create_run_for_job(job, tags=dict(request.tags))
    waiting = tick(acme, "report_changes").skip_reason
    assert waiting is not None
    assert waiting.skip_message == WRITING
    assert tick(beta, "report_changes").run_requests
