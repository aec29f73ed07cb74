"""Builds the sensor `report_changes`: it requests a run that writes the report when something in it has changed."""

from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.errors import ReportNotWritten
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.operations.report.basis import find_basis
from ads_pipeline.orchestration.catalog import BASIS_TAG, REPORT
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import SENSOR_RESOURCES
from ads_pipeline.orchestration.runs.run_tags import WHY_TAG
from ads_pipeline.orchestration.sensors.earlier_runs import REQUEST_TAG, was_never_queued

INTERVAL_SECONDS: Final = 30
RETRY_AFTER: Final = timedelta(minutes=5)
PAUSE: Final = 9  # times as long as the last run took, so that reports need a tenth of the time while much changes
REQUEST: Final = "report"
CHANGED: Final = "something that the report shows has changed"
UNCHANGED: Final = "nothing that the report shows has changed since it was written"
WRITING: Final = "a run writes the report"


def build_report_sensor(names: Names, *, now: Clock) -> dg.SensorDefinition:
    @dg.sensor(
        name=names.name("report_changes"),
        required_resource_keys=names.require(SENSOR_RESOURCES),
        target=dg.AssetSelection.assets(names.key(REPORT)),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run that writes the report when something in it has changed: a day has begun, a "
        "deadline has passed, or the ledger or the query file has changed. Its tick fails while the last run failed.",
    )
    def report_changes(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)
        at, instance = now(), context.instance
        last = next(
            iter(instance.get_run_records(dg.RunsFilter(tags={names.tag(REQUEST_TAG): REQUEST}), limit=1)), None
        )
        if last is not None and not last.dagster_run.is_finished and not was_never_queued(last, at):
            return dg.SensorResult(skip_reason=WRITING)
        basis = find_basis(sensor_resources.ledger, sensor_resources.settings, now=at)
        if basis == _find_written(names, instance):
            return dg.SensorResult(skip_reason=UNCHANGED)
        if last is not None and (wait := _find_wait(instance, last, at)):
            return dg.SensorResult(skip_reason=wait)
        request = dg.RunRequest(
            run_key=f"{basis}, after run {last.dagster_run.run_id if last else 0}",
            tags={names.tag(REQUEST_TAG): REQUEST, names.tag(WHY_TAG): CHANGED},
        )
        return dg.SensorResult(run_requests=[request])

    return report_changes


def _find_written(names: Names, instance: dg.DagsterInstance) -> str | None:
    """The basis of the last written report, whoever started its run."""
    event = instance.get_latest_materialization_event(names.key(REPORT))
    materialization = event.asset_materialization if event else None
    return (materialization.tags or {}).get(names.tag(BASIS_TAG)) if materialization else None


def _find_wait(instance: dg.DagsterInstance, last: dg.RunRecord, now: datetime) -> str | None:
    """Why the next run has to wait; None when it may start. Raises ReportNotWritten after a failed run."""
    run = last.dagster_run
    started, ended = (datetime.fromtimestamp(each or 0.0, UTC) for each in (last.start_time, last.end_time))
    if run.status is dg.DagsterRunStatus.FAILURE:
        if now < ended + RETRY_AFTER:
            raise ReportNotWritten(run.run_id, _find_error(instance, run.run_id), ended + RETRY_AFTER)
        return None
    pause = PAUSE * (ended - started) if last.start_time else timedelta(0)
    return f"the next run may start at {ended + pause:%H:%M:%S} UTC" if now < ended + pause else None


def _find_error(instance: dg.DagsterInstance, run_id: str) -> str:
    """The message of the step that failed, on one line; empty when the run failed outside a step."""
    for record in instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records:
        event = record.event_log_entry.dagster_event
        error = event.step_failure_data.error if event else None
        while error is not None and error.cause is not None:
            error = error.cause
        if error is not None:
            return " ".join(error.message.split())
    return ""
