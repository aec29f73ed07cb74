"""From when on failed fetches count again: since the source answered again, or since an operator released something.

Rejections by the validator are never reset: the same rows would be rejected again.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.fetching.outages import UNANSWERED
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.sql.control_tables import retry_resets
from ads_pipeline.ledger.sql.row_mapping import pick_fields
from ads_pipeline.ledger.sql.state_tables import Instant, instant_text
from ads_pipeline.ledger.sql.statements import query, upsert
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction

RECOVERY: Final = "recovery"
_UPSERT: Final = upsert(retry_resets)
_REASONS: Final = {RECOVERY: "the source answers again"}
# What failed before is due now. A row without a time waits for an operator, and a rejection is not a failed fetch.
_MAKE_DUE: Final = query(
    """
    UPDATE retry_schedule SET due_at = :at, failures = 0, why = :why
    WHERE source = :source AND failed_at <= :at AND due_at IS NOT NULL AND (due_at > :at OR failures > 0)
        AND (:scope IN ('source', 'recovery') OR :scope = 'customer' AND customer_id = :name
            OR :scope = 'query' AND query_name = :name)
        AND (:scope <> 'recovery' OR error_class IN :unanswered)
        AND EXISTS (
            SELECT 1 FROM finished_attempts AS failed
            WHERE failed.error_class IS NOT NULL
                AND (failed.source, failed.customer_id, failed.query_name, failed.logical_date) =
                    (retry_schedule.source, retry_schedule.customer_id, retry_schedule.query_name,
                        retry_schedule.logical_date)
                AND failed.failed_at = retry_schedule.failed_at)
    """,
    at=Instant(),
    scope=sa.Text(),
    name=sa.Text(),
).bindparams(sa.bindparam("unanswered", sorted(UNANSWERED), expanding=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryReset:
    """The failed fetches of a source, a customer or a query up to a time do not count."""

    source: str
    scope: str
    name: str
    reset_at: datetime

    def forgives(self, key: PartitionKey, error_class: str, failed_at: datetime) -> bool:
        """Whether a failed fetch does not count any more."""
        if self.source != key.source or failed_at > self.reset_at:
            return False
        match self.scope:
            case "customer":
                return self.name == key.customer_id
            case "query":
                return self.name == key.query_name
            case "recovery":
                return error_class in UNANSWERED
        return True


def reset_retries(transaction: LedgerTransaction, *, source: str, scope: str, name: str, at: datetime) -> None:
    """Let failed fetches count from this time on. What failed before is due now."""
    row = {"source": source, "scope": scope, "name": name}
    _UPSERT.write(transaction.connection, [row | {"reset_at": instant_text(at)}])
    why = _REASONS.get(scope, f"the {scope} was released")
    transaction.connection.execute(_MAKE_DUE, row | {"at": at, "why": why})


def read_resets(connection: sa.Connection, sources: Collection[str]) -> list[RetryReset]:
    """All resets of these sources."""
    statement = sa.select(retry_resets).where(retry_resets.c.source.in_(sources))
    return [RetryReset(**pick_fields(RetryReset, row)) for row in connection.execute(statement)]
