"""Several reads of the ledger in one transaction."""

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerRefused
from ads_pipeline.domain.partition import Run
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.ledger.builders import key, registered_runs


def test_reads_see_one_moment(ledger: Ledger) -> None:
    """A run that is registered between two reads is seen by neither. The reads are one transaction."""
    transactions = list[sa.Connection]()

    def note(connection: sa.Connection) -> None:
        transactions.append(connection)

    def read(reader: LedgerReader) -> list[list[Run]]:
        found = [reader.runs.unjudged([key()])]
        sa.event.remove(ledger.engine, "begin", note)
        registered_runs(ledger, key(), "r1")
        return [*found, reader.runs.unjudged([key()]), reader.read_at_once(lambda own: own.runs.unjudged([key()]))]

    sa.event.listen(ledger.engine, "begin", note)
    assert ledger.read_at_once(read) == [[], [], []]
    assert len(transactions) == 1
    assert [run.run_id for run in ledger.runs.unjudged([key()])] == ["r1"]


def test_reads_cannot_write(ledger: Ledger) -> None:
    """The database refuses it, also for the ledger of a writer."""
    delete = sa.text("DELETE FROM accounts")
    with pytest.raises(LedgerRefused):
        ledger.read_at_once(lambda reader: database.transact(reader.engine, lambda own: own.execute(delete)))


def test_reads_are_repeated_together(ledger: Ledger) -> None:
    """After a conflict in the second read, the first one is repeated, too."""
    calls = list[str]()

    def read(reader: LedgerReader) -> int:
        calls.append("first")
        reader.runs.unjudged([key()])
        if len(calls) == 1:
            raise database.ConcurrentWrite
        return len(calls)

    assert ledger.read_at_once(read) == 2
