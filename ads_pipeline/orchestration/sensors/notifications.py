"""Builds the sensor `notifications`: it sends what an operator must know to a webhook.

Each tick sends the stored message, if there is one. Only when the server has taken it does a later tick store the
next one, so nothing is lost while the server is down.
"""

import logging
from dataclasses import replace
from typing import Final

import dagster as dg

from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.operations.notifications.finding import FactFinder
from ads_pipeline.operations.notifications.outbox import Outbox
from ads_pipeline.operations.notifications.webhook import CALL_SECONDS, Webhook
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import SENSOR_RESOURCES
from ads_pipeline.pipeline.days.day_conditions import DayRules

_LOG: Final = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 30
NO_WEBHOOK: Final = "ADS_PIPELINE_WEBHOOK is not set, so there is nobody to notify"
LAST_FAILED: Final = "did not take the last message"
FROM_NOW_ON: Final = "{}"  # a cursor with which a later webhook gets nothing of the time before it was set


def build_notification_sensor(names: Names, *, has_webhook: bool, now: Clock) -> dg.SensorDefinition:
    """Build the sensor. It runs by default only where a webhook is configured."""

    @dg.sensor(
        name=names.name("notifications"),
        required_resource_keys=names.require(SENSOR_RESOURCES),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING if has_webhook else dg.DefaultSensorStatus.STOPPED,
        description="Sends to the webhook of ADS_PIPELINE_WEBHOOK what an operator must know: rejected, overdue, "
        "blocked, parked, withdrawn and demoted days, and dead runs.",
    )
    def notifications(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)
        settings, at = sensor_resources.settings, now()
        if settings.webhook is None:
            return dg.SensorResult(skip_reason=NO_WEBHOOK, cursor=FROM_NOW_ON)
        apis = settings.google_apis
        finder = FactFinder(
            ledger=sensor_resources.ledger,
            source=apis.source,
            policy=settings.retry_policy,
            invocation=settings.invocation,
            read_rules=lambda now: DayRules.read(sensor_resources.ledger, settings, now=now),
        )
        outbox = Outbox.parse(context.cursor) or Outbox.opened(finder, at)
        if (pending := outbox.pending) is not None:
            if not pending.is_due(at):
                wait = f"the webhook {LAST_FAILED}; next try at {pending.not_before:%H:%M:%S} UTC"
                return dg.SensorResult(skip_reason=wait, cursor=outbox.cursor)
            problem = Webhook(url=settings.webhook, seconds=CALL_SECONDS).send(pending.body)
            if problem:
                context.log.warning("the webhook %s; the message stays and is sent again", problem)
                postponed = pending.postpone(at)
                log_event(_LOG, LogEvent.NOTIFICATION_FAILED, problem=problem, failures=postponed.failures)
                cursor = replace(outbox, pending=postponed).cursor
                return dg.SensorResult(skip_reason=f"the webhook {problem}", cursor=cursor)
            log_event(_LOG, LogEvent.NOTIFICATION_DELIVERED, failures=pending.failures)
        outbox, notices = outbox.compose(finder, workspace=settings.tenancy.workspace_id or apis.source, now=at)
        found = f"the next tick sends {notices} notices" if notices else "nothing new"
        return dg.SensorResult(skip_reason=found, cursor=outbox.cursor)

    return notifications
