"""Publishes loaded runs: moves warehouse pointers, and records loads and failed loads."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.freshness import WAREHOUSE, AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.row_mapping import decode_key, decode_run, encode_key, encode_pointer, encode_run
from ads_pipeline.ledger.state.publications import READ_POINTERS
from ads_pipeline.ledger.state.verdicts import READ_OPEN_DEMOTIONS
from ads_pipeline.ledger.state.visibility import IS_PUBLISHABLE
from ads_pipeline.ledger.statements import RUN_COLUMNS, Statement, insert, upsert
from ads_pipeline.ledger.status.partition_status import AttemptResult
from ads_pipeline.ledger.tables import instant_text, load_records, warehouse_pointer
from ads_pipeline.ledger.values import Publication, PublishResult
from ads_pipeline.ledger.write_context import WriteContext
from ads_pipeline.quoting import printable

_LOAD_EVENT_FIELDS = ("run_id", "schema_version", "record_count", "table_version")


# The given runs that are the current run of a success without an open demotion.
_PUBLISHABLE_RUNS: Final = Statement(
    "publishable_runs",
    RUN_COLUMNS,
    f"""
    SELECT {{given.key}}, given.run_id FROM {{given}} JOIN partition_state USING ({{key}})
    WHERE current_run_id = given.run_id AND {IS_PUBLISHABLE}
    """,
)
_UPSERT_POINTERS: Final = upsert(warehouse_pointer)
_INSERT_LOAD_RECORDS: Final = insert(load_records, skip_present=True)


class Loads:
    """Publishes runs that the warehouse holds, and records loads that failed."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context

    def publishable_runs(self, candidates: Iterable[Run]) -> set[Run]:
        """Return the candidates that are the current run of a success without an open demotion.

        Raises LeaseLost like a write, because the caller commits to the warehouse next.
        """
        runs = list(candidates)
        return self._context.transact(lambda connection: self._find_publishable(connection, runs))

    def publish(self, publications: Sequence[Publication]) -> PublishResult:
        """Point readers at the runs that still have authority, and record each load.

        A run without authority, or with an open demotion, is returned as superseded and changes nothing.
        """
        return self._context.transact(lambda connection: _publish(self._context, connection, publications))

    def record_failed(self, errors: Mapping[Run, str]) -> None:
        """Record, for one accepted run per partition, why it could not be loaded. No state changes."""
        self._context.transact(lambda connection: _record_failed(self._context, connection, errors))

    def _find_publishable(self, connection: sa.Connection, candidates: Sequence[Run]) -> set[Run]:
        self._context.check_lease(connection, {run.key for run in candidates})
        return set(map(decode_run, _PUBLISHABLE_RUNS.execute(connection, map(encode_run, candidates))))


def _publish(context: WriteContext, connection: sa.Connection, publications: Sequence[Publication]) -> PublishResult:
    now = context.read_clock(connection)
    keys = sorted({publication.run.key for publication in publications})
    states = context.lock_states(connection, keys)
    context.check_lease(connection, keys)
    pointers = {
        decode_key(row): (row.run_id, row.schema_version, row.record_count)
        for row in READ_POINTERS.execute(connection, map(encode_key, keys))
        if row.availability == "published"
    }
    runs = [encode_run(publication.run) for publication in publications]
    demoted = set(map(decode_run, READ_OPEN_DEMOTIONS.execute(connection, runs)))
    published: list[Run] = []
    superseded: list[Run] = []
    changes: dict[PartitionKey, dict[str, Any]] = {}
    for publication in publications:
        run, state = publication.run, states.get(publication.run.key)
        if state is None or run in demoted or not _has_authority(run, state):
            superseded.append(run)
            continue
        published.append(run)
        if pointers.get(run.key) != (run.run_id, state.schema_version, state.record_count):
            changes[run.key] = encode_pointer(publication, state)
    _move_pointers(context, connection, changes, states, now)
    return PublishResult(published=tuple(published), superseded=tuple(superseded))


def _record_failed(context: WriteContext, connection: sa.Connection, errors: Mapping[Run, str]) -> None:
    now = context.read_clock(connection)
    keys = {run.key for run in errors}
    context.lock_states(connection, keys)
    context.check_lease(connection, keys)
    failed = [AttemptResult(key=run.key, run_id=run.run_id, outcome=AttemptOutcome.FAILED) for run in sorted(errors)]
    event_data = {run.key: {"run_id": run.run_id, "error_message": printable(errors[run])} for run in errors}
    _record_loads(context, connection, "LoadFailed", failed, event_data, now)


def _move_pointers(
    context: WriteContext,
    connection: sa.Connection,
    changes: Mapping[PartitionKey, dict[str, Any]],
    states: Mapping[PartitionKey, PartitionState],
    now: datetime,
) -> None:
    at = instant_text(now)
    _INSERT_LOAD_RECORDS.execute(connection, (row | {"loaded_at": at} for row in changes.values()))
    _UPSERT_POINTERS.execute(connection, (row | {"changed_at": at} for row in changes.values()))
    loads = [
        AttemptResult(
            key=key,
            run_id=row["run_id"],
            outcome=AttemptOutcome.SUCCEEDED,
            code_version=row["schema_version"],
            not_before=states[key].updated_at,
        )
        for key, row in changes.items()
    ]
    event_data = {key: {name: row[name] for name in _LOAD_EVENT_FIELDS} for key, row in changes.items()}
    _record_loads(context, connection, "PartitionLoaded", loads, event_data, now)


def _record_loads(
    context: WriteContext,
    connection: sa.Connection,
    event_type: str,
    loads: Sequence[AttemptResult],
    event_data: Mapping[PartitionKey, Mapping[str, Any]],
    now: datetime,
) -> None:
    """Record each load as a finished attempt of the warehouse asset, and emit an event with its number."""
    attempt_numbers = context.statuses.record_attempts(connection, WAREHOUSE, loads, now)
    at = instant_text(now)
    events = [
        context.event_encoder.encode(event_type, str(key), number, event_data[key], emitted_at=at)
        for key, number in attempt_numbers.items()
    ]
    context.append_events(connection, events, now)


def _has_authority(run: Run, state: PartitionState) -> bool:
    return state.status is Status.SUCCESS and state.current_run_id == run.run_id
