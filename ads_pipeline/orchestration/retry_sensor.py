"""Asks Dagster for runs of what failed and is due again, and of what somebody asked for.

The only sensor that changes anything: it holds the desk, at which failed goes back to pending. A verdict it cannot
record.
"""

import uuid
from datetime import datetime
from typing import Final

import dagster as dg

from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.control.retry_queue import OpenRequest
from ads_pipeline.ledger.values import ActionRequest
from ads_pipeline.orchestration.partitions import assets_of, raw_asset, warehouse_asset
from ads_pipeline.orchestration.resources import SensorResources
from ads_pipeline.orchestration.sensor_results import Clock, answer
from ads_pipeline.pipeline.operator_actions import OperatorActions

MOST_AT_WORK: Final = 2_000  # partitions that this sensor has in runs at one time
OPERATOR: Final = "retry policy"
NOT_HERE: Final = (
    "%d failures were planned. Runs come from extractors of others here: ads-pipeline state due tells them what to "
    "seal, ads-pipeline state retry puts a failed partition back to pending"
)


def build_retries(
    partitions: dg.MultiPartitionsDefinition, query_names: list[str], *, now: Clock
) -> dg.SensorDefinition:
    @dg.sensor(
        target=dg.AssetSelection.assets(*assets_of(query_names)),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Plans what becomes of failures, and asks for runs of what is due again or was asked for.",
    )
    def retries_due(
        context: dg.SensorEvaluationContext,
        watch: dg.ResourceParam[SensorResources],
        desk: dg.ResourceParam[ControlActions],
    ) -> dg.SensorResult:
        policy, source, today = watch.settings.retries, watch.source_name, now().date()
        if not watch.source.fetches:
            return dg.SensorResult(skip_reason=NOT_HERE % desk.schedule.plan(policy, today=today))
        control = OperatorActions(ledger=desk, policy=policy, today=today)
        room = MOST_AT_WORK - sum(desk.schedule.at_work(source, today).values())
        acted = control.requeue_due(desk, _order(now()), source=source, room=room)
        if acted.changed:
            context.log.info("%d failed partitions are due again: first %s", len(acted.changed), acted.changed[0].key)
        reasons = {each.key: _reason(each) for each in control.wanted(source=source, room=room)}
        return answer(context, partitions, reasons, query_names, [raw_asset, warehouse_asset], now())

    return retries_due


def _order(now: datetime) -> ActionRequest:
    return ActionRequest(
        act_id=f"retry-{uuid.uuid4()}",
        operator=OPERATOR,
        command="sensor retries_due",
        reason=f"due by {now:%Y-%m-%d %H:%M}Z after the delay that the policy gives",
    )


def _reason(wanted: OpenRequest) -> str:
    return f"{wanted.kind} {wanted.act_id} after attempt {wanted.attempt_no}"
