"""Reads the registered runs of partitions and the verdicts on them."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Effect, Outcome, RegisteredRun, Verdict
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Day, attempts, partition_state, runs
from ads_pipeline.ledger.sql.ledger_values import Attempt, JudgedRun, StateFilter
from ads_pipeline.ledger.sql.row_mapping import (
    decode_key,
    decode_registered_run,
    decode_run,
    decode_verdict,
    encode_key,
    encode_run,
    has_key,
    key_literals,
    key_of_table,
    same_key,
)
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, RUN_COLUMNS, Statement, query
from ads_pipeline.ledger.state.states import conditions
from ads_pipeline.ledger.state.visibility import is_current, is_judged, last_outcome

_JUDGED_FLAG: Final = f"""
    SELECT runs.source, runs.customer_id, runs.query_name, runs.logical_date, run_id, {is_judged("runs")} AS is_judged
    """
# The registered runs of the given partitions, oldest first in each, and whether each has a verdict.
JUDGED_FLAGS: Final = Statement(
    "judged_flags",
    KEY_COLUMNS,
    f"""
    {_JUDGED_FLAG}
    FROM given
    JOIN runs USING (source, customer_id, query_name, logical_date)
    ORDER BY runs.source, runs.customer_id, runs.query_name, runs.logical_date, ordinal
    """,
    flags=("is_judged",),
)
_JUDGED_FLAGS_BETWEEN: Final = query(
    f"{_JUDGED_FLAG} FROM runs WHERE source = :source AND logical_date BETWEEN :since AND :until",
    flags=("is_judged",),
    since=Day(),
    until=Day(),
)
# The newest registered run of each given partition, with its last outcome.
_NEWEST_RUNS: Final = Statement(
    "newest_runs",
    KEY_COLUMNS,
    f"""
    SELECT runs.*, {last_outcome("runs")} AS outcome
    FROM given
    JOIN runs USING (source, customer_id, query_name, logical_date)
    WHERE ordinal = (SELECT max(ordinal) FROM runs AS others
        WHERE (others.source, others.customer_id, others.query_name, others.logical_date) =
            (runs.source, runs.customer_id, runs.query_name, runs.logical_date))
    """,
)
# The last verdict on the newest judged run of each given partition.
_NEWEST_VERDICTS: Final = Statement(
    "newest_verdicts",
    KEY_COLUMNS,
    """
    SELECT attempts.* FROM given JOIN attempts USING (source, customer_id, query_name, logical_date)
    WHERE attempt_no = (
        SELECT attempt_no
        FROM attempts AS others
        WHERE (others.source, others.customer_id, others.query_name, others.logical_date) =
            (attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date)
        ORDER BY ordinal DESC, attempt_no DESC LIMIT 1
    )
    """,
)
# The last verdict on each run of the given partitions that was ever accepted, oldest run first in each.
_VERDICTS_ON_ACCEPTED: Final = Statement(
    "verdicts_on_accepted",
    KEY_COLUMNS,
    """
    SELECT attempts.* FROM given JOIN attempts USING (source, customer_id, query_name, logical_date)
    WHERE attempt_no = (
        SELECT max(attempt_no) FROM attempts AS others
        WHERE (others.source, others.customer_id, others.query_name, others.logical_date, others.run_id) =
            (attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date, attempts.run_id)
    ) AND EXISTS (
        SELECT 1 FROM attempts AS others
        WHERE (others.source, others.customer_id, others.query_name, others.logical_date, others.run_id) =
            (attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date, attempts.run_id)
            AND others.outcome = 'accepted'
    )
    ORDER BY attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date, attempts.ordinal
    """,
)
# The registration of each given run, and the digest of the payload that its last verdict is about.
_JUDGED_RUNS: Final = Statement(
    "judged_runs",
    RUN_COLUMNS,
    """
    SELECT runs.*, (
        SELECT payload_sha256
        FROM attempts
        WHERE (attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date, attempts.run_id) =
            (given.source, given.customer_id, given.query_name, given.logical_date, given.run_id)
        ORDER BY attempt_no DESC LIMIT 1
    ) AS judged_sha256
    FROM given
    JOIN runs
        ON (runs.source, runs.customer_id, runs.query_name, runs.logical_date, runs.run_id) =
            (given.source, given.customer_id, given.query_name, given.logical_date, given.run_id)
    """,
)


class RunHistory:
    """The registered runs of all partitions, and the verdicts on them."""

    def __init__(self, engine: database.Reading) -> None:
        self._engine = engine

    def exist(self) -> bool:
        """Return true when any run was ever registered."""
        return bool(database.fetch(self._engine, sa.select(sa.exists(sa.select(runs.c.run_id))))[0][0])

    def registered(self, key: PartitionKey) -> list[RegisteredRun]:
        """Return the registered runs of a partition, oldest first."""
        return [registered for registered, _at in self.registrations(key)]

    def registrations(self, key: PartitionKey) -> list[tuple[RegisteredRun, datetime]]:
        """Return the registered runs of a partition with their registration times, oldest first."""
        rows = database.fetch(self._engine, sa.select(runs).where(*has_key(runs, key)).order_by(runs.c.ordinal))
        return [(decode_registered_run(row), row.registered_at) for row in rows]

    def newest(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, tuple[RegisteredRun, Outcome | None]]:
        """Return the newest run and its last outcome, for each partition that has a run."""
        rows = _NEWEST_RUNS.fetch(self._engine, map(encode_key, dict.fromkeys(keys)))
        return {decode_key(row): (decode_registered_run(row), row.outcome and Outcome(row.outcome)) for row in rows}

    def newest_verdicts(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Verdict]:
        """Return the last verdict on the newest judged run, for each partition that has one."""
        rows = _NEWEST_VERDICTS.fetch(self._engine, map(encode_key, dict.fromkeys(keys)))
        return {decode_key(row): decode_verdict(row, Outcome(row.outcome)) for row in rows}

    def verdicts_on_accepted(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, list[Attempt]]:
        """Return the last verdict on each run that was ever accepted, oldest run first in each partition."""
        found = defaultdict[PartitionKey, list[Attempt]](list)
        for row in _VERDICTS_ON_ACCEPTED.fetch(self._engine, map(encode_key, dict.fromkeys(keys))):
            found[decode_key(row)].append(_decode_attempt(row))
        return found

    def judged_runs(self, candidates: Iterable[Run]) -> dict[Run, JudgedRun]:
        """Return the registered ones of these runs, each with the digest of the payload that was judged last."""
        rows = _JUDGED_RUNS.fetch(self._engine, map(encode_run, dict.fromkeys(candidates)))
        judged = (JudgedRun(registered=decode_registered_run(row), payload_sha256=row.judged_sha256) for row in rows)
        return {each.registered.run: each for each in judged}

    def judged_by_run(self, keys: Iterable[PartitionKey]) -> dict[Run, bool]:
        """Return the registered runs of these partitions, oldest first in each, and whether each has a verdict."""
        rows = JUDGED_FLAGS.fetch(self._engine, map(encode_key, dict.fromkeys(keys)))
        return {decode_run(row): row.is_judged for row in rows}

    def judged_by_run_between(self, *, source: str, since: date, until: date) -> dict[Run, bool]:
        """Return the registered runs of a source in a window of days, and whether each has a verdict."""
        window = {"source": source, "since": since, "until": until}
        rows = database.fetch(self._engine, _JUDGED_FLAGS_BETWEEN.bindparams(**window))
        return {decode_run(row): row.is_judged for row in rows}

    def unjudged(self, keys: Iterable[PartitionKey]) -> list[Run]:
        """Return the registered runs of these partitions that have no verdict, oldest first in each."""
        return [run for run, is_judged in self.judged_by_run(keys).items() if not is_judged]

    def last_verdicts(self, state_filter: StateFilter) -> dict[Run, tuple[Outcome | None, bool]]:
        """Return the last outcome of each registered run, and whether the run is the current run of a success."""
        outcome = sa.literal_column(last_outcome("runs"), sa.Text()).label("outcome")
        current = sa.literal_column(is_current("runs"), sa.Boolean()).label("is_current")
        statement = (
            sa.select(*key_of_table(runs), runs.c.run_id, outcome, current)
            .join_from(runs, partition_state, same_key(runs, partition_state))
            .where(*conditions(state_filter))
        )
        rows = database.fetch(self._engine, statement)
        return {decode_run(row): (row.outcome and Outcome(row.outcome), row.is_current) for row in rows}

    def attempts(self, key: PartitionKey) -> list[Attempt]:
        """Return all verdicts on a partition, in the order in which they were recorded."""
        statement = sa.select(attempts).where(*has_key(attempts, key)).order_by(attempts.c.attempt_no)
        return list(map(_decode_attempt, database.fetch(self._engine, statement)))

    def page_of_attempts(
        self, state_filter: StateFilter, *, after: tuple[PartitionKey, int] | None = None, limit: int = 1000
    ) -> list[Attempt]:
        """Return one page of the verdicts on all matching partitions, by key and attempt number."""
        position = *key_of_table(attempts), attempts.c.attempt_no
        statement = sa.select(attempts).join_from(attempts, partition_state, same_key(attempts, partition_state))
        if after is not None:
            key, number = after
            statement = statement.where(sa.tuple_(*position) > sa.tuple_(*key_literals(key), sa.literal(number)))
        statement = statement.where(*conditions(state_filter)).order_by(*position).limit(limit)
        return list(map(_decode_attempt, database.fetch(self._engine, statement)))


def _decode_attempt(row: sa.Row[Any]) -> Attempt:
    return Attempt(
        verdict=decode_verdict(row, Outcome(row.outcome)),
        attempt_no=row.attempt_no,
        ordinal=row.ordinal,
        effect=Effect(row.effect),
        judged_at=row.judged_at,
    )
