"""Write access to the ledger: registers runs, records verdicts, demotes and publishes.

Each method runs one transaction over any number of partitions, with the same number of statements. It locks the state
rows in key order and decides by `domain.transitions`. Repeating a call with the same arguments changes nothing.
The steps are in `state.registration`, `state.verdict_recorder`, `state.demotions` and `state.pointers`.
"""

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import RegisteredRun, Verdict
from ads_pipeline.errors import LedgerError, VerdictsRefused
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.state.demotions import begin_demotions, finish_demotions
from ads_pipeline.ledger.state.pointers import publish_runs, record_failed_loads
from ads_pipeline.ledger.state.registration import register_runs
from ads_pipeline.ledger.state.verdict_recorder import VerdictRecorder
from ads_pipeline.ledger.values import Publication, PublishResult, RunRegistration, VerdictCause, VerdictResult


class Ledger(ControlActions):
    """Read and write access to one ledger.

    With a lease, a method raises LeaseLost unless this run has claimed all partitions that it writes.
    """

    def register(self, registrations: Sequence[RunRegistration]) -> list[RegisteredRun]:
        """Register sealed runs. Each new run gets the next ordinal of its partition.

        A partition without a row gets a pending one. Raises RunChanged, and registers nothing, when a run is already
        registered with another seal.
        """
        return self._transact(lambda connection: register_runs(self._context, connection, registrations))

    def insert_pending(self, keys: Iterable[PartitionKey]) -> int:
        """Insert a pending row for each partition that has no row. Return the number of inserted rows."""
        requested = sorted(set(keys))
        return self._transact(
            lambda connection: self._context.insert_pending(
                connection, requested, self._context.read_clock(connection)
            )
        )

    def record_verdicts(
        self, verdicts: Sequence[Verdict], *, cause: VerdictCause | None = None
    ) -> list[VerdictResult]:
        """Record verdicts in the given order, in one transaction, and log the operator's action that caused them.

        Raises VerdictsRefused when some are refused. The others are recorded nevertheless.
        """

        def record(connection: sa.Connection) -> tuple[list[VerdictResult], list[LedgerError]]:
            results = VerdictRecorder(self._context, connection).record(verdicts, cause)
            recorded = [result for result in results if isinstance(result, VerdictResult)]
            finish_demotions(self._context, connection, recorded)
            return recorded, [result for result in results if isinstance(result, LedgerError)]

        recorded, refusals = self._transact(record)
        if refusals:
            raise VerdictsRefused(tuple(recorded), tuple(refusals))
        return recorded

    def begin_demotions(self, verdicts: Sequence[Verdict], *, cause: VerdictCause | None = None) -> list[Verdict]:
        """Hide the current runs that these verdicts reject, and return the verdicts that do so.

        The caller then removes these runs from the warehouse, and records the returned verdicts.
        """
        return self._transact(lambda connection: begin_demotions(self._context, connection, verdicts, cause))

    def publish(self, publications: Sequence[Publication]) -> PublishResult:
        """Point readers at runs that the warehouse holds, and add their load records.

        Runs that lost their authority are skipped and returned as superseded.
        """
        return self._transact(lambda connection: publish_runs(self._context, connection, publications))

    def publishable_runs(self, candidates: Iterable[Run]) -> set[Run]:
        """Return the candidates that the warehouse may publish now.

        Raises LeaseLost like a write, because the caller commits to the warehouse next.
        """
        runs = list(candidates)
        if self._context.lease is not None:
            self._transact(lambda connection: self._context.check_lease(connection, {run.key for run in runs}))
        return super().publishable_runs(runs)

    def record_failed_loads(self, errors: Mapping[Run, str]) -> None:
        """Record, for one accepted run per partition, why it could not be loaded. No state changes."""
        self._transact(lambda connection: record_failed_loads(self._context, connection, errors))
