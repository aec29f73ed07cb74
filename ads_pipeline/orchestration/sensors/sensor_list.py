"""Lists all sensors of the code location."""

from datetime import timedelta

import dagster as dg

from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.sensors.days_due import build_due_sensor
from ads_pipeline.orchestration.sensors.notifications import build_notification_sensor
from ads_pipeline.orchestration.sensors.raw_arrivals import build_arrival_sensor
from ads_pipeline.orchestration.sensors.readable_changes import build_readable_sensor
from ads_pipeline.orchestration.sensors.report_changes import build_report_sensor
from ads_pipeline.orchestration.sensors.retries_due import build_retry_sensor
from ads_pipeline.orchestration.sensors.run_completion import build_run_completion_sensor
from ads_pipeline.orchestration.sensors.states_to_load import build_load_sensor


def build_sensors(
    names: Names,
    partitions: dg.MultiPartitionsDefinition,
    query_names: list[str],
    *,
    arrival_interval: timedelta,
    fetches: bool,
    has_webhook: bool,
    now: Clock,
) -> list[dg.SensorDefinition]:
    """Build the sensors. Each of them covers all queries; `days_due` exists where the product fetches."""
    return [
        build_arrival_sensor(names, partitions, query_names, interval=arrival_interval, now=now),
        build_load_sensor(names, partitions, query_names, now=now),
        build_retry_sensor(names, partitions, query_names, now=now),
        build_readable_sensor(names, partitions, query_names, now=now),
        build_run_completion_sensor(names, query_names, now=now),
        build_notification_sensor(names, has_webhook=has_webhook, now=now),
        build_report_sensor(names, now=now),
        *([build_due_sensor(names, partitions, query_names, now=now)] if fetches else []),
    ]
