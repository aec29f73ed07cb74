"""The checks of Dagster's daemon: sensors and schedules whose ticks fail, and daemons that hang or are two."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from ads_pipeline.operations.doctor import dagster_records
from ads_pipeline.operations.doctor.dagster_records import Heartbeat, WaitingRuns
from ads_pipeline.operations.doctor.examination import (
    Deployment,
    Finding,
    format_time,
    make_error,
    make_note,
    make_warning,
)

MAX_SILENCE: Final = timedelta(minutes=5)  # a heartbeat comes every 30 s, and later while a tick requests many runs
RECENT: Final = timedelta(seconds=60)  # two daemons both send within this time
FAILURES_THAT_LAST: Final = 3  # an outage of a moment fails one or two ticks
QUEUE: Final = "QUEUED_RUN_COORDINATOR"  # the part that starts the runs of the queue
PARTS: Final = frozenset({QUEUE, "SENSOR", "SCHEDULER"})  # every deployment has them; settings switch others off
DAEMON: Final = "Dagster's daemon"
_RESTART: Final = "restart the daemon: ads-pipeline dev, or dagster-daemon run in production"


def check_sensors(deployment: Deployment) -> Iterator[Finding]:
    """Check that the newest tick of every sensor and schedule did not fail."""
    settings = deployment.settings
    for ticks in dagster_records.read_failing_ticks(settings.home, settings.postgres_url):
        times = "its last tick" if ticks.failures == 1 else f"its last {ticks.failures:,} ticks"
        problem = f"{times} failed, since {format_time(ticks.since)}. The last error: {ticks.error}"
        step = "remove the cause. The next tick tries again; the log of the tick in Dagster has the stack"
        make_finding = make_error if ticks.failures >= FAILURES_THAT_LAST else make_warning
        yield make_finding(f"{ticks.kind} {ticks.name}", problem, step)


def check_daemon(deployment: Deployment) -> Iterator[Finding]:
    """Check that one daemon runs, that all its parts work, and that it starts the runs of the queue."""
    settings = deployment.settings
    heartbeats = dagster_records.read_heartbeats(settings.home, settings.postgres_url)
    waiting = dagster_records.read_waiting_runs(settings.home, settings.postgres_url)
    yield from _find_other_daemons(heartbeats, deployment.now)
    yield from _find_silence(heartbeats, waiting, deployment.now)
    for heartbeat in heartbeats:
        if heartbeat.errors and _is_alive(heartbeat, deployment.now):
            problem = f"its part {heartbeat.part} reports an error: {heartbeat.errors[0]}"
            yield make_warning(DAEMON, problem, "remove the cause; the daemon tries again")


def _find_other_daemons(heartbeats: Sequence[Heartbeat], now: datetime) -> Iterator[Finding]:
    newest = {each.daemon_id: each for each in reversed(heartbeats) if now - each.at <= RECENT}
    if len(newest) > 1:
        shown = ", ".join(
            f"{each.daemon_id} ({each.part} at {format_time(each.at)})" for _id, each in sorted(newest.items())
        )
        problem = f"{len(newest)} daemons work on one database, and each starts runs of the other: {shown}"
        step = "stop all but one: each ads-pipeline dev and each dagster-daemon is one, also on other machines"
        yield make_error(DAEMON, problem, step)


def _find_silence(heartbeats: Sequence[Heartbeat], waiting: WaitingRuns | None, now: datetime) -> Iterator[Finding]:
    silent = [each for each in heartbeats if not _is_alive(each, now)]
    queue = next((each for each in heartbeats if each.part == QUEUE), None)
    waits = waiting is not None and now - waiting.oldest_at > MAX_SILENCE
    if waiting is not None and waits and (queue is None or queue in silent):
        since = f"no heartbeat since {format_time(queue.at)}" if queue else "never a heartbeat"
        runs = "1 run waits" if waiting.count == 1 else f"{waiting.count:,} runs wait"
        problem = f"{QUEUE} sent {since}, and {runs} in the queue, since {format_time(waiting.oldest_at)}"
        yield make_error(DAEMON, problem, _RESTART)
    elif len(silent) == len(heartbeats) and heartbeats:
        problem = f"it sent no heartbeat since {format_time(heartbeats[0].at)}: no sensor and no schedule works"
        yield make_note(DAEMON, problem, "start it when the deployment should work: ads-pipeline dev")
    if len(silent) < len(heartbeats):
        for each in silent:
            if each.part in PARTS and (each is not queue or not waits):
                problem = f"its part {each.part} sent no heartbeat since {format_time(each.at)}; other parts did"
                yield make_error(DAEMON, problem, _RESTART)


def _is_alive(heartbeat: Heartbeat, now: datetime) -> bool:
    return now - heartbeat.at <= MAX_SILENCE
