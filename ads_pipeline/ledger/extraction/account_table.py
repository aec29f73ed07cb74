"""The accounts that discovery has found, and the parkings that follow from their status."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.fetching.account import PARKED_BY_DISCOVERY, REFUSED, Account, choose_way
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.quoting import printable
from ads_pipeline.ledger.control.control_actions import INSERT_PARKINGS
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Instant, accounts, instant_text, parkings
from ads_pipeline.ledger.sql.statements import Statement, query, upsert
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction, LedgerWriter

DISCOVERY_FAILED: Final = "DiscoveryFailed"
_FLAGS: Final = ("is_manager", "is_test", "is_hidden")
_TEXTS: Final = {"status": 64, "name": 300, "time_zone": 100, "currency_code": 16}
_UPSERT_ACCOUNTS: Final = upsert(accounts)
_SET_LOOKBACKS: Final = Statement(
    "set_lookbacks",
    {"source": "text", "customer_id": "text", "lookback_days": "integer", "lookback_read_at": "instant"},
    """
    UPDATE accounts SET lookback_days = given.lookback_days, lookback_read_at = given.lookback_read_at
    FROM given WHERE accounts.source = given.source AND accounts.customer_id = given.customer_id
    """,
)
_COUNT_DISCOVERIES: Final = query(
    "SELECT count(*) FROM run_events WHERE engine_run_id = :engine_run_id AND event_type = 'AccountsDiscovered'"
)
_COUNT_FAILURES: Final = query(
    "SELECT count(*) FROM run_events WHERE engine_run_id = :engine_run_id AND event_type = 'DiscoveryFailed'"
)
_READ_LAST_DISCOVERY: Final = query(
    "SELECT max(seen_at) AS seen_at FROM accounts WHERE source = :source AND status <> 'REFUSED'"
)
_READ_FAILURES: Final = query(
    """
    SELECT persisted_at, event_data FROM run_events
    WHERE event_type = 'DiscoveryFailed' AND persisted_at > :since ORDER BY persisted_at
    """,
    since=Instant(),
)
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)
_RELEASE: Final = Statement(
    "release_accounts",
    {"source": "text", "name": "text", "error_class": "text"},
    """
    DELETE FROM parkings
    WHERE scope = 'customer' AND (source, name, error_class) IN (SELECT source, name, error_class FROM given)
    """,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResult:
    """The changes of a discovery, as customer ids in order. `returned` were gone before."""

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedDiscoveries:
    """The discoveries since the last one that has read an account, all of which failed. `why` is of the newest."""

    since: datetime
    count: int
    why: str
    last_read_at: datetime | None


class AccountReader:
    """Read access to the accounts of a source."""

    def __init__(self, engine: database.Reading) -> None:
        self._engine = engine

    def list_all(self, source: str) -> list[Account]:
        """Every account that was ever found, by customer id, those that are gone included."""
        return database.transact(self._engine, lambda connection: _read(connection, source))

    def find_failed_discoveries(self, source: str) -> FailedDiscoveries | None:
        """The failed discoveries; None when none failed, or when one has read an account since."""
        return database.transact(self._engine, lambda connection: _read_failures(connection, source))

    def by_id(self, source: str) -> dict[str, Account]:
        return {account.customer_id: account for account in self.list_all(source)}

    def names(self, source: str) -> dict[str, str]:
        """The names of the accounts that have one, by customer."""
        return {account.customer_id: account.name for account in self.list_all(source) if account.name}


class Accounts(AccountReader):
    """Stores what discovery found. It releases only the parkings that discovery made."""

    def __init__(self, writer: LedgerWriter) -> None:
        super().__init__(writer.engine)
        self._writer = writer

    def record(
        self,
        source: str,
        found: Iterable[Account],
        *,
        failed_logins: Collection[str] = frozenset(),
        refused: Iterable[Parking] = (),
    ) -> DiscoveryResult:
        """Store the found accounts, park those that cannot be fetched, and release those that can be again.

        The accounts in `refused` are stored and parked as these parkings say. Only a release lifts those.

        An account that was found in several ways keeps the best one. One that is no longer found is gone, unless it
        was last found below one of `failed_logins`, which could not be read. When nothing at all was found, nothing
        is gone: an account that answers lists itself.
        """
        best: dict[str, Account] = {}
        for account in found:
            known = best.get(account.customer_id)
            best[account.customer_id] = account if known is None else choose_way(known, account)
        parkings = [each for each in refused if each.name not in best]
        return self._writer.transact(
            lambda transaction: _record(transaction, source, best, set(failed_logins), parkings)
        )

    def record_failure(self, source: str, why: str) -> None:
        """Record that a discovery has read no account. The event DiscoveryFailed says whether it is the first."""

        def write(transaction: LedgerTransaction) -> None:
            connection, engine_run_id = transaction.connection, transaction.writer.origin.engine_run_id
            earlier = connection.execute(_COUNT_FAILURES, {"engine_run_id": engine_run_id}).scalar_one()
            is_first = _read_failures(connection, source) is None
            data = {"source": source, "why": printable(why), "is_first": is_first}
            transaction.emit(DISCOVERY_FAILED, None, earlier + 1, data)

        self._writer.transact(write)

    def record_lookbacks(self, source: str, days: Mapping[str, int | None]) -> None:
        """Store the longest conversion window of accounts, by customer id, with the time at which it was read.

        None is stored for an account that has none; the settings decide about its days.
        """

        def write(transaction: LedgerTransaction) -> None:
            rows = [
                {
                    "source": source,
                    "customer_id": customer,
                    "lookback_days": window,
                    "lookback_read_at": transaction.at,
                }
                for customer, window in sorted(days.items())
            ]
            _SET_LOOKBACKS.execute(transaction.connection, rows)

        self._writer.transact(write)


def _read_failures(connection: sa.Connection, source: str) -> FailedDiscoveries | None:
    read_at = connection.execute(_READ_LAST_DISCOVERY, {"source": source}).scalar()
    rows = connection.execute(_READ_FAILURES, {"since": read_at or _BEGINNING}).all()
    found = [row for row in rows if json.loads(row.event_data)["source"] == source]
    if not found:
        return None
    return FailedDiscoveries(
        since=found[0].persisted_at,
        count=len(found),
        why=json.loads(found[-1].event_data)["why"],
        last_read_at=read_at,
    )


def _record(
    transaction: LedgerTransaction,
    source: str,
    found: dict[str, Account],
    failed_logins: set[str],
    refused: Sequence[Parking],
) -> DiscoveryResult:
    connection, now = transaction.connection, transaction.now
    known = {account.customer_id: account for account in _read(connection, source)}
    seen = [_with_history(account, known.get(customer), now) for customer, account in sorted(found.items())]
    gone = [
        replace(account, gone_at=now)
        for customer, account in known.items()
        if found and customer not in found and account.gone_at is None and account.status != REFUSED
        if account.login_customer_id not in failed_logins
    ]
    new_refused = [_make_refused(each, known.get(each.name), now) for each in refused]
    _UPSERT_ACCOUNTS.write(connection, [_encode(account) for account in (*seen, *gone, *new_refused)])
    parked, released = _park_and_release(transaction, source, [*seen, *gone])
    newly_refused = [asdict(each) | {"why": printable(each.why), "parked_at": transaction.at} for each in refused]
    INSERT_PARKINGS.write(connection, newly_refused)
    parked = tuple(sorted({*parked, *(each.name for each in refused)}))
    result = DiscoveryResult(
        new=tuple(each.customer_id for each in seen if each.customer_id not in known),
        gone=tuple(each.customer_id for each in gone),
        returned=tuple(each.customer_id for each in seen if _is_gone(known.get(each.customer_id))),
        parked=parked,
        released=released,
    )
    counts = {field.name: len(getattr(result, field.name)) for field in fields(result)}
    earlier = connection.execute(
        _COUNT_DISCOVERIES, {"engine_run_id": transaction.writer.origin.engine_run_id}
    ).scalar_one()
    transaction.emit("AccountsDiscovered", None, earlier + 1, {"found": len(seen)} | counts)
    return result


def _park_and_release(
    transaction: LedgerTransaction, source: str, changed: Sequence[Account]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Replace the parkings that discovery made before by those that follow from the status now."""
    connection = transaction.connection
    customers = [account for account in changed if not account.is_manager]
    before = _read_parked(connection, source)
    stale = [
        {"source": source, "name": account.customer_id, "error_class": error_class}
        for account in customers
        if (error_class := before.get(account.customer_id)) and error_class != account.parking_class
    ]
    _RELEASE.execute(connection, stale)
    rows = [
        asdict(_parking(account, account.parking_class)) | {"parked_at": transaction.at}
        for account in customers
        if account.parking_class is not None
    ]
    INSERT_PARKINGS.write(connection, rows)
    after = _read_parked(connection, source)
    return tuple(sorted(after.keys() - before.keys())), tuple(sorted(before.keys() - after.keys()))


def _make_refused(parking: Parking, known: Account | None, now: datetime) -> Account:
    """The account that Google refuses, as it was known before."""
    if known is not None:
        return replace(known, status=REFUSED, gone_at=None)
    name = parking.name
    return Account(source=parking.source, customer_id=name, status=REFUSED, login_customer_id=name, seen_at=now)


def _with_history(found: Account, known: Account | None, now: datetime) -> Account:
    """The found account with the conversion window that was read before. It is seen now, and not gone."""
    days, read_at = (known.lookback_days, known.lookback_read_at) if known else (None, None)
    return replace(found, seen_at=now, gone_at=None, lookback_days=days, lookback_read_at=read_at)


def _is_gone(account: Account | None) -> bool:
    return account is not None and account.gone_at is not None


def _parking(account: Account, error_class: str) -> Parking:
    return Parking(
        source=account.source,
        scope="customer",
        name=account.customer_id,
        error_class=error_class,
        why=account.parking_reason,
    )


def _read_parked(connection: sa.Connection, source: str) -> dict[str, str]:
    """The error class of each account that discovery has parked."""
    statement = sa.select(parkings.c.name, parkings.c.error_class).where(
        parkings.c.source == source,
        parkings.c.scope == "customer",
        parkings.c.error_class.in_(sorted(PARKED_BY_DISCOVERY)),
    )
    return {row.name: row.error_class for row in connection.execute(statement)}


def _read(connection: sa.Connection, source: str) -> list[Account]:
    rows = connection.execute(sa.select(accounts).where(accounts.c.source == source).order_by(accounts.c.customer_id))
    return [Account(**_decode(row)) for row in rows]


def _decode(row: sa.Row[Any]) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(Account)}
    return values | {name: bool(values[name]) for name in _FLAGS}


def _encode(account: Account) -> dict[str, Any]:
    """The row of an account. Texts come from outside: they are escaped and cut."""
    row = asdict(account)
    for name, limit in _TEXTS.items():
        row[name] = row[name] if row[name] is None else printable(row[name], limit=limit)
    for name in _FLAGS:
        row[name] = int(row[name])
    for name in ("seen_at", "gone_at", "lookback_read_at"):
        row[name] = row[name] and instant_text(row[name])
    return row
