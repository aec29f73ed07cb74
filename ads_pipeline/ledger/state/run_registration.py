"""Registers sealed runs and gives each one the next ordinal of its partition."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import RunChanged
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.ledger.sql.ledger_tables import runs
from ads_pipeline.ledger.sql.row_mapping import decode_registered_run, encode_key, encode_registration, encode_run
from ads_pipeline.ledger.sql.statements import RUN_COLUMNS, Statement, insert
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction, LedgerWriter

# One row per requested run: its registration, or nulls, and the newest ordinal of its partition.
_READ_REGISTERED: Final = Statement(
    "read_registered_runs",
    {**RUN_COLUMNS, "position": "integer"},
    """
    SELECT runs.*, (SELECT max(ordinal) FROM runs AS others
        WHERE (others.source, others.customer_id, others.query_name, others.logical_date) =
            (given.source, given.customer_id, given.query_name, given.logical_date)) AS newest_ordinal
    FROM given
    LEFT JOIN runs
        ON (runs.source, runs.customer_id, runs.query_name, runs.logical_date, runs.run_id) =
            (given.source, given.customer_id, given.query_name, given.logical_date, given.run_id)
    ORDER BY given.position
    """,
)
_INSERT_RUNS: Final = insert(runs)
_NOT_ASSIGNED: Final = 0


class Registrations:
    """Registers runs, and inserts pending rows."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def register(self, found: Sequence[SealedRun | Run]) -> list[RegisteredRun]:
        """Register sealed runs in the given order. Each new run gets the next ordinal of its partition.

        A `Run` alone is one whose seal is damaged: it is registered without the facts of a seal.

        A partition without a row gets a pending one. A run that is already registered keeps its ordinal. Raises
        RunChanged when one was registered with another seal; then nothing is registered.
        """
        return self._writer.transact(lambda transaction: _register(transaction, found))

    def insert_pending(self, keys: Iterable[PartitionKey]) -> int:
        """Insert a pending row for each partition that has no row. Return the number of inserted rows."""
        requested = sorted(set(keys))
        return self._writer.transact(lambda transaction: transaction.insert_pending(requested))


def _register(transaction: LedgerTransaction, found: Sequence[SealedRun | Run]) -> list[RegisteredRun]:
    registrations = list(map(_describe, found))
    keys = sorted(dict.fromkeys(registration.run.key for registration in registrations), key=encode_key)
    transaction.insert_pending(keys)
    transaction.lock_claimed(keys)
    requested = [(*encode_run(registration.run), position) for position, registration in enumerate(registrations)]
    rows = _READ_REGISTERED.execute(transaction.connection, requested).all()
    registered, new = _assign_ordinals(registrations, rows)
    _INSERT_RUNS.write(transaction.connection, (encode_registration(run, transaction.at) for run in new))
    for run in new:
        data = {"run_id": run.run.run_id, "schema_version": run.schema_version, "record_count": run.record_count}
        transaction.emit("RawSealed", run.run.key, run.ordinal, data)
    return registered


def _assign_ordinals(
    registrations: Sequence[RegisteredRun], rows: Sequence[sa.Row[Any]]
) -> tuple[list[RegisteredRun], list[RegisteredRun]]:
    """Return each run with its ordinal, and those that are new."""
    registered: list[RegisteredRun] = []
    newest_ordinals: dict[PartitionKey, int] = {}
    new: dict[Run, RegisteredRun] = {}
    changed: dict[str, None] = {}
    for registration, row in zip(registrations, rows, strict=True):
        run = registration.run
        known = new.get(run) if row.run_id is None else decode_registered_run(row, run)
        if known is None:
            ordinal = newest_ordinals[run.key] = newest_ordinals.get(run.key, row.newest_ordinal or 0) + 1
            known = new[run] = replace(registration, ordinal=ordinal)
        elif known != replace(registration, ordinal=known.ordinal):
            changed[str(run)] = None
        registered.append(known)
    if changed:
        raise RunChanged(tuple(changed))
    return registered, list(new.values())


def _describe(found: SealedRun | Run) -> RegisteredRun:
    """The run before it has an ordinal."""
    if isinstance(found, Run):
        return RegisteredRun(run=found, ordinal=_NOT_ASSIGNED, schema_version=None, record_count=None)
    return RegisteredRun(
        run=found.run,
        ordinal=_NOT_ASSIGNED,
        schema_version=found.facts.schema_version,
        record_count=found.record_count,
        payload_sha256=found.payload_sha256,
        extracted_at=found.facts.extracted_at,
    )
