"""Publishes loaded runs: moves warehouse pointers, and records loads and failed loads."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from ads_pipeline.domain.days.materialization_status import WAREHOUSE, AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.sql.ledger_tables import KEY, load_records, warehouse_pointer
from ads_pipeline.ledger.sql.ledger_values import PublishResult
from ads_pipeline.ledger.sql.row_mapping import decode_key, decode_run, encode_key, encode_load, encode_run
from ads_pipeline.ledger.sql.statements import RUN_COLUMNS, Statement, Values, insert, upsert
from ads_pipeline.ledger.state.pointers import READ_POINTERS
from ads_pipeline.ledger.state.verdicts import READ_OPEN_DEMOTIONS
from ads_pipeline.ledger.state.visibility import IS_PUBLISHABLE
from ads_pipeline.ledger.write_steps.partition_status import AttemptResult
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction, LedgerWriter

_LOAD_EVENT_FIELDS = ("run_id", "schema_version", "record_count", "table_version")


# The given runs that are the current run of a success without an open demotion.
_PUBLISHABLE_RUNS: Final = Statement(
    "publishable_runs",
    {**RUN_COLUMNS, "position": "integer"},
    f"""
    SELECT position FROM given JOIN partition_state USING (source, customer_id, query_name, logical_date)
    WHERE current_run_id = given.run_id AND {IS_PUBLISHABLE}
    """,
)
_UPSERT_POINTERS: Final = upsert(warehouse_pointer)
_INSERT_LOAD_RECORDS: Final = insert(load_records, skip_present=True)


class Loads:
    """Publishes runs that the warehouse holds, and records loads that failed."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def publishable_runs(self, candidates: Iterable[Run]) -> set[Run]:
        """Return the candidates that are the current run of a success without an open demotion.

        Raises LeaseLost like a write, because the caller commits to the warehouse next.
        """
        runs = list(candidates)

        def find(transaction: LedgerTransaction) -> set[Run]:
            transaction.check_lease({run.key for run in runs})
            requested = ((*encode_run(run), position) for position, run in enumerate(runs))
            rows = _PUBLISHABLE_RUNS.execute(transaction.connection, requested)
            return {runs[row.position] for row in rows}

        return self._writer.transact(find)

    def publish(self, runs: Sequence[Run], *, table_version: int) -> PublishResult:
        """Point readers at the runs that still have authority, and record each load. The version added their rows.

        A run without authority, or with an open demotion, is returned as superseded and changes nothing.
        """
        return self._writer.transact(lambda transaction: _publish(transaction, runs, table_version))

    def hide(self, keys: Collection[PartitionKey]) -> None:
        """Hide partitions whose rows the warehouse has lost. `publish` shows them again. No state changes."""

        def work(transaction: LedgerTransaction) -> None:
            transaction.lock_claimed(keys)
            transaction.withdraw_pointers(keys)

        if keys:
            self._writer.transact(work)

    def record_failed(self, errors: Mapping[Run, str]) -> None:
        """Record, for one accepted run per partition, why it could not be loaded. No state changes."""
        self._writer.transact(lambda transaction: _record_failed(transaction, errors))


def _publish(transaction: LedgerTransaction, runs: Sequence[Run], table_version: int) -> PublishResult:
    keys = sorted(dict.fromkeys(run.key for run in runs), key=encode_key)
    states = transaction.lock_claimed_states(keys)
    pointers = {
        decode_key(row): (row.run_id, row.schema_version, row.record_count)
        for row in READ_POINTERS.execute(transaction.connection, map(encode_key, keys))
        if row.availability == "published"
    }
    demoted = set(map(decode_run, READ_OPEN_DEMOTIONS.execute(transaction.connection, map(encode_run, runs))))
    published: list[Run] = []
    superseded: list[Run] = []
    changes: dict[PartitionKey, Values] = {}
    for run in runs:
        state = states.get(run.key)
        has_authority = state and state.status is Status.SUCCESS and state.current_run_id == run.run_id
        if state is None or not has_authority or (demoted and run in demoted):
            superseded.append(run)
            continue
        published.append(run)
        if not pointers or pointers.get(run.key) != (run.run_id, state.schema_version, state.record_count):
            changes[run.key] = encode_load(run, state, table_version)
    _move_pointers(transaction, changes, states)
    moved = (run for run in published if run.key in changes)
    return PublishResult(published=tuple(published), superseded=tuple(superseded), moved=tuple(moved))


def _record_failed(transaction: LedgerTransaction, errors: Mapping[Run, str]) -> None:
    transaction.lock_claimed({run.key for run in errors})
    failed = [
        AttemptResult(key=run.key, attempt_id=run.run_id, outcome=AttemptOutcome.FAILED) for run in sorted(errors)
    ]
    event_data = [{"run_id": run.run_id, "error_message": printable(errors[run])} for run in sorted(errors)]
    _record_loads(transaction, "LoadFailed", failed, event_data)


def _move_pointers(
    transaction: LedgerTransaction,
    changes: Mapping[PartitionKey, Values],
    states: Mapping[PartitionKey, PartitionState],
) -> None:
    connection, at = transaction.connection, transaction.at
    _INSERT_LOAD_RECORDS.write(connection, ((*load, at) for load in changes.values()))
    _UPSERT_POINTERS.write(connection, ((*load, "published", at) for load in changes.values()))
    loads = list[AttemptResult]()
    event_data = [dict(zip(_LOAD_EVENT_FIELDS, load[len(KEY) :], strict=True)) for load in changes.values()]
    for key, data in zip(changes, event_data, strict=True):
        loads.append(
            AttemptResult(
                key=key,
                attempt_id=data["run_id"],
                outcome=AttemptOutcome.SUCCEEDED,
                code_version=data["schema_version"],
                not_before=states[key].updated_at,
            )
        )
    _record_loads(transaction, "PartitionLoaded", loads, event_data)


def _record_loads(
    transaction: LedgerTransaction,
    event_type: str,
    loads: Sequence[AttemptResult],
    event_data: Sequence[Mapping[str, Any]],
) -> None:
    """Record each load as a finished attempt of the warehouse asset, and emit an event with its number."""
    numbers = transaction.record_attempts(WAREHOUSE, loads)
    for load, number, data in zip(loads, numbers, event_data, strict=True):
        transaction.emit(event_type, load.key, number, data)
