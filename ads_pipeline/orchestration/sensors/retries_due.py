"""Builds the sensor `retries_due`: it schedules retries, requeues due partitions and requests their runs.

It may requeue a failed partition and cannot record a verdict.
"""

import uuid
from datetime import datetime
from typing import Final

import dagster as dg

from ads_pipeline.domain.fetching.retry_policy import RETRY_POLICY
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.sql.ledger_values import ActionRequest
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import CONTROL_ACTIONS, SENSOR_RESOURCES
from ads_pipeline.orchestration.sensors.run_requests import RequestedPartitions, build_sensor_result
from ads_pipeline.pipeline.extraction.held_requests import describe_holds, limit_to_holds
from ads_pipeline.pipeline.retry_scheduling import RetryScheduler

MAX_PARTITIONS_IN_PROGRESS: Final = 2_000  # partitions that this sensor has in unfinished runs
EXTERNAL_SOURCE: Final = "New failures with a scheduled retry: %d. Your own extractors fetch; to list what is due: %s"


def build_retry_sensor(
    names: Names, partitions: dg.MultiPartitionsDefinition, query_names: list[str], *, now: Clock
) -> dg.SensorDefinition:
    sensor = names.name("retries_due")

    @dg.sensor(
        name=sensor,
        required_resource_keys=names.require(SENSOR_RESOURCES, CONTROL_ACTIONS),
        target=dg.AssetSelection.assets(*names.assets(query_names)),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Schedules retries of failed partitions. Requests runs of those due and of operators' requests.",
    )
    def retries_due(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)
        control_actions = names.find(context, CONTROL_ACTIONS)
        policy, source, today = sensor_resources.settings.retry_policy, sensor_resources.source_name, now().date()
        if not sensor_resources.source.fetches:
            due = sensor_resources.settings.command("ads-pipeline state due")
            return dg.SensorResult(
                skip_reason=EXTERNAL_SOURCE % (control_actions.schedule_failures(policy, today=today), due)
            )
        scheduler = RetryScheduler(ledger=sensor_resources.ledger, policy=policy, source=source, today=today)
        claimed = sensor_resources.ledger.retry_queue.count_claimed(source, today)
        slots = MAX_PARTITIONS_IN_PROGRESS - sum(claimed.values())
        requeued = scheduler.requeue_due(control_actions, _build_request(sensor, now()), slots=slots)
        if requeued.changed:
            context.log.info(
                "requeued %s. First: %s",
                count_of(len(requeued.changed), "failed partition"),
                requeued.changed[0].key,
            )
        holds = sensor_resources.ledger.quota.list_holds(source)
        if holds:
            context.log.warning("%s", describe_holds(holds))
        requested = RequestedPartitions(
            sensor=sensor,
            names=names,
            source=source,
            query_names=query_names,
            asset_keys=(names.raw, names.warehouse),
            reasons=limit_to_holds(scheduler.next_runs(slots=slots), holds, now()),
            why="due retries or requests of operators",
            by_customer=True,
        )
        return build_sensor_result(context, partitions, requested, now())

    return retries_due


def _build_request(sensor: str, now: datetime) -> ActionRequest:
    return ActionRequest(
        action_id=f"retry-{uuid.uuid4()}",
        operator=RETRY_POLICY,
        command=f"sensor {sensor}",
        reason=f"the delay of the retry policy ended before {now:%Y-%m-%d %H:%M}Z",
    )
