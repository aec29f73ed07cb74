"""The commands `accounts`: the accounts that discovery found, what stops their fetches, and a new discovery."""

from collections.abc import Iterator
from typing import Any, Final

from ads_pipeline.domain.fetching.account import PARKED_BY_DISCOVERY, Account
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.operations.cli.command_line.options import AsJson, Customers
from ads_pipeline.operations.cli.command_line.output import Column, fields_of, format_minute, write_list
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, parse_customers
from ads_pipeline.operations.cli.google_ads.extraction_opening import open_extraction
from ads_pipeline.settings.environment import Settings

COLUMNS: Final = (
    Column("account", "customer_id"),
    Column("name", "name", wrap=True),
    Column("status", "shown_status"),
    Column("zone", "time_zone", from_width=100),
    Column("currency", "currency_code", from_width=120),
    Column("below", "login_customer_id", from_width=100),
    Column("fetched", "fetched"),
    Column("seen", lambda row: format_minute(row["seen_at"]), from_width=140),
    Column("because", "because", wrap=True, below=True),
)
NO_ACCOUNT: Final = 'no account is known; "ads-pipeline accounts discover" finds those that the credentials reach'


def list_accounts(settings: Settings, *, customer: Customers = None, as_json: AsJson = False) -> None:
    """List the accounts that discovery has found, with what stops their fetches and the next command.

    Accounts that are gone stay in the list. Managers are not fetched themselves.
    """
    given = parse_customers(customer)
    with open_ledger(settings) as ledger:
        rows = list(_rows(settings, ledger, given))
    stopped = sum(row["parked"] is not None for row in rows)
    notes = [f"{count_of(len(rows), 'account')}, {stopped:,} parked"] if rows else [NO_ACCOUNT]
    write_list(rows, COLUMNS, notes, as_json=as_json)


def discover(settings: Settings, *, as_json: AsJson = False) -> bool:
    """Ask Google Ads for the accounts below the configured managers, and park those that cannot be fetched.

    It costs one operation for each manager, and once a week one for each account. Accounts that are enabled again are
    released, unless a refusal or an operator parked them. A direct account of the credentials that Google refuses is
    parked and not asked again until it is released. Dagster gets the new customers from its own daily job. Exit code:
    0 when every other login answered and there is one, else 1.
    """
    with open_extraction(settings) as extraction:
        report = extraction.discover()
        rows, warnings = list(_rows(settings, extraction.ledger, None)), extraction.configuration.warnings
    counts = {name: len(getattr(report.changes, name)) for name in ("new", "parked", "released", "gone")}
    notes = [f"{count_of(len(rows), 'account')}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())]
    notes += [
        f"no answer from {account or 'the credentials'}: {fault.error_class}: {fault.message}"
        for account, fault in report.failed.items()
    ]
    notes += [f"parked {account}: {fault.error_class}: {fault.message}" for account, fault in report.refused.items()]
    if report.failure is not None and not report.failed:
        notes.append(report.failure)
    write_list(rows, COLUMNS, [*warnings, *notes], as_json=as_json)
    return bool(report.failed) or report.failure is not None


def _rows(settings: Settings, ledger: LedgerReader, customers: list[str] | None) -> Iterator[dict[str, Any]]:
    source = settings.google_apis.source
    parkings = {each.name: each for each in ledger.retry_queue.list_parkings(source) if each.scope == "customer"}
    holds = ledger.quota.list_holds(source)
    for account in ledger.accounts.list_all(source):
        if customers is None or account.customer_id in customers:
            hold = next((each for each in holds if each.covers(account.customer_id)), None)
            yield describe_account_row(account, parkings.get(account.customer_id), hold)


def describe_account_row(account: Account, parking: Parking | None, hold: Hold | None = None) -> dict[str, Any]:
    """The fields of an account, its parking or hold, and the next command of one that is not fetched."""
    if account.is_manager:
        fetched, because = "manager", None
    elif parking is not None:
        fetched, because = "parked", f"{parking.error_class}: {parking.why}"
    elif hold is not None:
        fetched, because = "on hold", str(hold)
    else:
        fetched, because = "yes", None
    status = "gone" if account.gone_at else account.status.lower()
    return fields_of(
        account,
        shown_status=status,
        fetched=fetched,
        parked=parking and parking.error_class,
        parked_at=parking and parking.parked_at,
        because=because,
        on_hold_until=hold and hold.until,
        next=_find_next_command(parking) or (hold and hold.release_command),
    )


def _find_next_command(parking: Parking | None) -> str | None:
    if parking is None:
        return None
    if parking.error_class in PARKED_BY_DISCOVERY:
        return "ads-pipeline accounts discover"
    return f"ads-pipeline state release --customer {parking.name} --reason TEXT"
