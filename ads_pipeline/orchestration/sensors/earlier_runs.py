"""Finds what unfinished and failed runs mean for the next requests of a sensor."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey, parse_dagster_key
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.runs.due_partitions import read_run_config
from ads_pipeline.orchestration.runs.run_tags import partition_names

REQUEST_TAG: Final = "ads_pipeline/request"
SENSOR_TAG: Final = "ads_pipeline/requested_by"
MAX_DELAY: Final = timedelta(hours=1)
MAX_DOUBLINGS: Final = 5  # of the delay, which starts at one minute
FAILED: Final = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
# Dagster queues a run within seconds of its creation. A run that still waits then failed to launch.
MAX_TIME_TO_QUEUE: Final = timedelta(minutes=15)
_FINISHED: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRequest:
    """The runs of one request. Dagster ignores a repeated run key for ever, so the next key names the last run."""

    name: str
    last: dg.RunRecord | None
    runs: int

    @property
    def run_key(self) -> str:
        return f"{self.name}, after run {self.last.dagster_run.run_id if self.last else 0}"

    def may_follow(self, now: datetime) -> bool:
        """Return whether the delay after the last run is over: 2 minutes after the first, later up to an hour."""
        if self.last is None or was_never_queued(self.last, now):
            return True
        delay = MAX_DELAY if self.runs > MAX_DOUBLINGS else timedelta(minutes=2**self.runs)
        ended = datetime.fromtimestamp(self.last.end_time or 0.0, UTC)
        return self.last.dagster_run.is_finished and now >= ended + delay


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A request whose last run failed or was cancelled, with the digests of the reasons of its due partitions."""

    earlier: EarlierRequest
    run: dg.DagsterRun
    due: Mapping[PartitionKey, str]
    shows_failed: bool  # whether Dagster shows partitions as failed for which the run was not


def was_never_queued(record: dg.RunRecord, now: datetime) -> bool:
    """Return whether Dagster created the run 15 minutes ago and never queued it. `run_completion` fails such runs."""
    created_at = record.create_timestamp.astimezone(UTC)
    return record.dagster_run.status is dg.DagsterRunStatus.NOT_STARTED and now - created_at > MAX_TIME_TO_QUEUE


@contextmanager
def leaving_out(run: dg.DagsterRun, log: logging.Logger) -> Iterator[None]:
    """Log a warning instead of an error when the tags or the configuration of a run cannot be read.

    An operator can start a run with any tags. It fails when it starts, and must not stop a sensor before that.
    """
    try:
        yield
    except BadName as error:
        log.warning("run %s was left out, because its partitions cannot be read. %s", run.run_id, error)


def find_earlier_request(names: Names, instance: dg.DagsterInstance, name: str) -> EarlierRequest:
    runs = dg.RunsFilter(tags={names.tag(REQUEST_TAG): name})
    last = next(iter(instance.get_run_records(filters=runs, limit=1)), None)
    return EarlierRequest(name=name, last=last, runs=instance.get_runs_count(runs) if last else 0)


def find_failed_requests(
    names: Names,
    instance: dg.DagsterInstance,
    partitions: dg.MultiPartitionsDefinition,
    *,
    sensor: str,
    source: str,
    assets: Iterable[dg.AssetKey],
    now: datetime,
    log: logging.Logger,
) -> Iterator[FailedRequest]:
    """Yield the requests of the sensor for some of these assets whose last run failed, if that is not long ago.

    Older ones are past every delay. Their partitions are requested like new ones.
    """
    known = frozenset(assets)
    recent = dg.RunsFilter(
        tags={names.tag(SENSOR_TAG): sensor}, statuses=list(FAILED), updated_after=now.astimezone(UTC) - 2 * MAX_DELAY
    )
    tag = names.tag(REQUEST_TAG)
    for name in sorted({run.tags[tag] for run in instance.get_runs(filters=recent) if tag in run.tags}):
        earlier = find_earlier_request(names, instance, name)
        run = earlier.last.dagster_run if earlier.last else None
        if run is None or run.status not in FAILED or not known.issuperset(run.asset_selection or ()):
            continue
        with leaving_out(run, log):
            due = read_run_config(names, run.run_config, source)
            covered = len(partition_names(run.tags, partitions)) * len(
                {key.path[-1] for key in run.asset_selection or ()}
            )
            if due is not None and covered:
                shows_failed = run.status is dg.DagsterRunStatus.FAILURE and covered > len(due)
                yield FailedRequest(earlier=earlier, run=run, due=due, shows_failed=shows_failed)


def find_in_progress(
    names: Names,
    instance: dg.DagsterInstance,
    partitions: dg.MultiPartitionsDefinition,
    *,
    source: str,
    assets: Iterable[dg.AssetKey],
    now: datetime,
    log: logging.Logger,
) -> set[PartitionKey]:
    """Find the partitions that unfinished runs of these assets are for, including runs started by operators."""
    unfinished = [status for status in dg.DagsterRunStatus if status.value not in _FINISHED]
    found = set[PartitionKey]()
    for record in instance.get_run_records(filters=dg.RunsFilter(statuses=unfinished)):
        run = record.dagster_run
        queries = _find_queries(run, frozenset(assets))
        if queries and not was_never_queued(record, now):
            with leaving_out(run, log):
                due = read_run_config(names, run.run_config, source)
                found.update(_parse_range(run, partitions, source, queries) if due is None else due)
    return found


def _find_queries(run: dg.DagsterRun, assets: frozenset[dg.AssetKey]) -> set[str]:
    """The queries of which the run may run an asset. Without a selection these are all, but for a run of checks."""
    if not run.asset_selection:
        return set() if run.asset_check_selection else {asset.path[-1] for asset in assets}
    return {asset.path[-1] for asset in assets & run.asset_selection}


def _parse_range(
    run: dg.DagsterRun, partitions: dg.MultiPartitionsDefinition, source: str, queries: Iterable[str]
) -> Iterator[PartitionKey]:
    names = partition_names(run.tags, partitions)
    for query in queries:
        yield from parse_names(names, source=source, query_name=query)


def parse_names(names: Iterable[str], *, source: str, query_name: str) -> Iterator[PartitionKey]:
    """Parse the names of a query's partitions. An invalid customer has no partition in the ledger."""
    for name in names:
        try:
            yield parse_dagster_key(name, source=source, query_name=query_name)
        except BadName:
            continue
