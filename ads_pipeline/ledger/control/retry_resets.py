"""Lets failed fetches count again from a time on: the source answered again, or an operator released something.

Rejections by the validator are never forgiven: the same rows would be rejected again.
"""

from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.fetching.outages import UNANSWERED
from ads_pipeline.ledger.sql.ledger_tables import Instant
from ads_pipeline.ledger.sql.statements import query
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction

RECOVERY: Final = "recovery"
_REASONS: Final = {RECOVERY: "the source answers again"}
_IS_IN_SCOPE: Final = """
    source = :source AND failed_at <= :at
    AND (:scope IN ('source', 'recovery') OR :scope = 'customer' AND customer_id = :name
        OR :scope = 'query' AND query_name = :name)
    """

_FORGIVE: Final = query(
    f"""
    UPDATE retry_queue
    SET released_at = CASE WHEN :scope = 'recovery' THEN released_at ELSE :at END,
        recovered_at = CASE WHEN :scope = 'recovery' THEN :at ELSE recovered_at END
    WHERE {_IS_IN_SCOPE}
    """,
    at=Instant(),
    scope=sa.Text(),
    name=sa.Text(),
)
# What failed before is due now. A row without a time waits for an operator, and a rejection is not a failed fetch.
_MAKE_DUE: Final = query(
    f"""
    UPDATE retry_queue SET due_at = :at, failures = 0, why = :why
    WHERE {_IS_IN_SCOPE} AND due_at IS NOT NULL AND (due_at > :at OR failures > 0)
        AND (:scope <> 'recovery' OR error_class IN :unanswered)
        AND EXISTS (
            SELECT 1 FROM failed_fetches AS failed
            WHERE (failed.source, failed.customer_id, failed.query_name, failed.logical_date) =
                (retry_queue.source, retry_queue.customer_id, retry_queue.query_name, retry_queue.logical_date)
                AND failed.failed_at = retry_queue.failed_at)
    """,
    at=Instant(),
    scope=sa.Text(),
    name=sa.Text(),
).bindparams(sa.bindparam("unanswered", sorted(UNANSWERED), expanding=True))


def reset_retries(transaction: LedgerTransaction, *, source: str, scope: str, name: str, at: datetime) -> None:
    """Let failed fetches count from this time on. What failed before is due now."""
    given = {"source": source, "scope": scope, "name": name, "at": at}
    transaction.connection.execute(_FORGIVE, given)
    transaction.connection.execute(_MAKE_DUE, given | {"why": _REASONS.get(scope, f"the {scope} was released")})
