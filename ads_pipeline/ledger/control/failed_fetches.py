"""Records fetches that produced no run, also those of extractors outside Dagster.

A failed fetch is an attempt in the sense of ADR-026 and counts for the retry policy. It is no attempt at a verdict:
states and attempt counts do not change, because the validator had nothing to judge.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from ads_pipeline.domain.days.materialization_status import RAW, AttemptOutcome
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_forecast import Parking, ScheduledRetry, names_by_scope
from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES, PARKING_SCOPES, ErrorPolicy, RetryPolicy
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import printable
from ads_pipeline.ledger.control.control_actions import INSERT_PARKINGS
from ads_pipeline.ledger.control.retry_queue import READ_FAILED_FETCHES, RetryQueue
from ads_pipeline.ledger.sql.ledger_tables import instant_text
from ads_pipeline.ledger.sql.row_mapping import decode_key, encode_key
from ads_pipeline.ledger.write_steps.partition_status import AttemptResult, FetchError
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction, LedgerWriter

_LOG: Final = logging.getLogger(__name__)


class FailedFetches:
    """Records failed fetches. It cannot change the state of a partition, so an extractor may hold it."""

    def __init__(self, writer: LedgerWriter, retry_queue: RetryQueue) -> None:
        self._writer, self._retry_queue = writer, retry_queue

    def record(
        self, failures: Sequence[FailedFetch], policy: RetryPolicy
    ) -> dict[PartitionKey, ScheduledRetry | None]:
        """Record failed fetches, at most one per partition, and schedule their retries.

        Returns the scheduled retry of each partition whose failure is new. A failure that was recorded before is left
        out, so a report may be repeated. An error of an account, a query or the source parks it as well.
        """
        scheduled = self._writer.transact(lambda transaction: self._record(transaction, failures, policy))
        if scheduled:
            classes = ",".join(sorted({failure.error_class for failure in failures if failure.key in scheduled}))
            log_event(_LOG, LogEvent.FETCHES_FAILED, partitions=len(scheduled), first=min(scheduled), classes=classes)
        return scheduled

    def _record(
        self, transaction: LedgerTransaction, failures: Sequence[FailedFetch], policy: RetryPolicy
    ) -> dict[PartitionKey, ScheduledRetry | None]:
        connection, keys = transaction.connection, sorted({failure.key for failure in failures})
        transaction.insert_pending(keys)
        transaction.lock_states(keys)
        rows = READ_FAILED_FETCHES.execute(connection, map(encode_key, keys)).all()
        known = {(decode_key(row), row.attempt_id) for row in rows}
        new = sorted(
            (each for each in failures if (each.key, each.failure_id) not in known), key=lambda each: each.key
        )
        if not new:
            return {}
        parkings = {(each.source, each.target): each for each in reversed(list(_parkings(new)))}
        parked_at = {"parked_at": transaction.at}
        INSERT_PARKINGS.write(connection, (asdict(each) | parked_at for each in parkings.values()))
        transaction.record_attempts(RAW, [_describe(failure, transaction) for failure in new])
        earlier = Counter(map(decode_key, rows))
        for failure in new:
            transaction.emit("FetchFailed", failure.key, earlier[failure.key] + 1, _event_data(failure))
        new_keys = [failure.key for failure in new]
        scheduled = self._retry_queue.schedule_partitions(connection, new_keys, policy, transaction.now.date())
        return dict.fromkeys(new_keys) | {retry.key: retry for retry in scheduled}


def _describe(failure: FailedFetch, transaction: LedgerTransaction) -> AttemptResult:
    """The attempt that failed. The clock of an extractor may be ahead, and no failure is in the future."""
    error = FetchError(
        failed_at=min(failure.failed_at or transaction.now, transaction.now),
        engine_run_id=transaction.writer.origin.engine_run_id,
        wait_until=failure.wait_until,
        request_id=failure.request_id,
        **_error_fields(failure),
    )
    return AttemptResult(key=failure.key, attempt_id=failure.failure_id, outcome=AttemptOutcome.FAILED, error=error)


def _error_fields(failure: FailedFetch) -> dict[str, Any]:
    return {"error_class": failure.error_class, "error_message": printable(failure.error_message)}


def _event_data(failure: FailedFetch) -> dict[str, Any]:
    wait = failure.wait_until and instant_text(failure.wait_until)
    named = {"request_id": failure.request_id, "wait_until": wait}
    return _error_fields(failure) | {name: value for name, value in named.items() if value is not None}


def _parkings(failures: Sequence[FailedFetch]) -> Iterator[Parking]:
    """The accounts, queries and sources that these error classes park."""
    for failure in failures:
        scope = PARKING_SCOPES.get(ERROR_POLICIES.get(failure.error_class, ErrorPolicy.RETRY))
        if scope is not None:
            key, why = failure.key, printable(failure.error_message)
            name = names_by_scope(key)[scope]
            yield Parking(source=key.source, scope=scope, name=name, error_class=failure.error_class, why=why)
