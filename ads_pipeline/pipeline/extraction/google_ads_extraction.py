"""Joins the extraction from Google Ads with the ledger, the raw runs and the settings.

Importing this module imports the client, which takes seconds. Import it in the step or command that needs it.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Final

from ads_pipeline.domain.days.settlement import DayLimits
from ads_pipeline.domain.fetching.account import REFUSED, Account
from ads_pipeline.domain.fetching.quota import Operation, OperationKind
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import ERROR_POLICIES, ErrorPolicy
from ads_pipeline.domain.partition import PartitionKey, generate_run_id
from ads_pipeline.google_ads.account_discovery import DISCOVER, AccountDiscovery, Discovery
from ads_pipeline.google_ads.calls import find_query_fault
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.configuration import ClientConfiguration
from ads_pipeline.google_ads.faults.fault_reading import Fault
from ads_pipeline.google_ads.fetch_rules import FetchRules
from ads_pipeline.google_ads.google_ads_source import GoogleAdsSource
from ads_pipeline.google_ads.operation_budget import Budget
from ads_pipeline.google_ads.requests.gaql import complete_query
from ads_pipeline.google_ads.streaming import RangeStreams
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.run_source import Source
from ads_pipeline.ledger.extraction.account_table import DiscoveryResult
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.days.account_days import LOOKBACK_AGE
from ads_pipeline.pipeline.extraction.range_widths import read_known_widths
from ads_pipeline.settings.query_file import GoogleApis

_STOPS_QUESTIONS: Final = frozenset({ErrorPolicy.PARK_CUSTOMER, ErrorPolicy.PARK_SOURCE, ErrorPolicy.WAIT})


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryReport:
    """The result of a discovery: the customers to fetch, the changes in the ledger, and what could not be read.

    `refused` are the direct accounts that are parked now because Google refuses them. `failure` says why no account
    was read; None when one was, or when all are parked.
    """

    customers: tuple[str, ...]
    changes: DiscoveryResult
    failed: Mapping[str, Fault]
    refused: Mapping[str, Fault]
    failure: str | None
    lookbacks_read: int


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The extraction of one step. Its clients are built when the first call is made."""

    apis: GoogleApis
    configuration: ClientConfiguration
    ledger: Ledger
    clock: Callable[[], datetime] = _now
    sleep: Callable[[float], None] = time.sleep

    def source(self, raw: RawRuns, sealed: Source) -> GoogleAdsSource:
        """The source of the raw assets. `sealed` finds the runs that others have sealed."""
        return GoogleAdsSource(
            sealed=sealed,
            rules=self._make_rules(),
            streams=RangeStreams(
                self._clients,
                raw,
                make_run_id=lambda now: generate_run_id(now, secrets.token_hex(4)),
                clock=self.clock,
            ),
            budget=self._budget,
            clock=self.clock,
        )

    def discover(self) -> DiscoveryReport:
        """Find all accounts, store them, park and release them by their status, and read conversion windows."""
        discovery = AccountDiscovery(self._clients, self._budget, source=self.apis.source)
        found = discovery.discover(self._login_ids, refused=self._refused)
        failed_logins = found.unread_logins
        if not found.found:  # a login lists itself at least, so no login was read
            failed_logins |= {
                each.login_customer_id or "" for each in self.ledger.accounts.list_all(self.apis.source)
            }
        changes = self.ledger.accounts.record(
            self.apis.source,
            found.found,
            failed_logins=failed_logins,
            refused=[
                Parking(
                    source=self.apis.source,
                    scope="customer",
                    name=login,
                    error_class=fault.error_class,
                    why=fault.message,
                )
                for login, fault in found.refused.items()
            ],
        )
        failure = _find_failure(found)
        if failure is not None:
            self.ledger.accounts.record_failure(self.apis.source, failure)
        accounts = self.ledger.accounts.list_all(self.apis.source)
        days, failed = discovery.read_lookbacks(each for each in accounts if self._needs_lookback(each))
        self.ledger.accounts.record_lookbacks(self.apis.source, days)
        return DiscoveryReport(
            customers=tuple(
                each.customer_id
                for each in accounts
                if not each.is_manager and each.gone_at is None and each.status != REFUSED
            ),
            changes=changes,
            failed={**found.failed, **failed},
            refused=found.refused,
            failure=failure,
            lookbacks_read=len(days),
        )

    def validate_queries(self, customer_id: str, day: date) -> dict[str, Fault | None]:
        """Ask Google whether it would accept each query for this account. Each question is one operation.

        A fault of the account, of the source or of the budget would meet every query, so it is the last answer. The
        queries after it are left out.
        """
        account = self.ledger.accounts.by_id(self.apis.source).get(customer_id)
        login = (account.login_customer_id if account else None) or next(iter(self._login_ids), None)
        answers: dict[str, Fault | None] = {}
        for name, query in self.apis.queries.items():
            operation = Operation(
                source=self.apis.source, kind=OperationKind.CHECK, customer_id=customer_id, query_name=name
            )
            gaql = complete_query(query.gaql, day, day)
            fault = find_query_fault(self._clients, self._budget, operation, login, gaql)
            answers[name] = fault
            if fault is not None and ERROR_POLICIES.get(fault.error_class) in _STOPS_QUESTIONS:
                break
        return answers

    @cached_property
    def _clients(self) -> Clients:
        return Clients(self.configuration, self.apis.api_version)

    @property
    def _budget(self) -> Budget:
        return Budget(ledger=self.ledger.quota, limits=self.apis.google_ads.quota, clock=self.clock, sleep=self.sleep)

    @property
    def _login_ids(self) -> tuple[str, ...]:
        configured = self.configuration.login_customer_id
        return self.apis.google_ads.login_customer_ids or ((configured,) if configured else ())

    def _needs_lookback(self, account: Account) -> bool:
        if account.is_manager or account.gone_at is not None or self._find_parked(account.customer_id):
            return False
        read_at = account.lookback_read_at
        return read_at is None or self.clock() - read_at >= LOOKBACK_AGE

    def _find_parked(self, customer_id: str) -> bool:
        return any(each.scope == "customer" and each.name == customer_id for each in self._parkings)

    @property
    def _refused(self) -> set[str]:
        """The accounts that a refusal of Google has parked."""
        policies = {
            each.name: ERROR_POLICIES.get(each.error_class) for each in self._parkings if each.scope == "customer"
        }
        return {name for name, policy in policies.items() if policy is ErrorPolicy.PARK_CUSTOMER}

    @property
    def _parkings(self) -> list[Parking]:
        return self.ledger.retry_queue.list_parkings(self.apis.source)

    def _make_rules(self) -> FetchRules:
        apis, extraction = self.apis, self.apis.google_ads
        accounts = self.ledger.accounts.by_id(apis.source)
        parkings = self._parkings

        def find_parking(key: PartitionKey) -> str | None:
            return next((str(parking) for parking in parkings if parking.includes(key)), None)

        def find_refusal(key: PartitionKey, since: datetime) -> Fault | None:
            new = (each for each in parkings if each.parked_at and each.parked_at >= since and each.includes(key))
            return next((Fault(error_class=each.error_class, message=each.why) for each in new), None)

        def find_lookback(customer_id: str, query_name: str) -> int:
            account = accounts.get(customer_id)
            return extraction.find_lookback(
                customer_id,
                query_name,
                of_query=apis.queries[query_name].lookback_days,
                of_account=account.lookback_days if account else None,
            )

        def find_extracted(keys: Collection[PartitionKey], since: datetime) -> set[PartitionKey]:
            newest = self.ledger.runs.newest(keys)
            return {key for key, (run, _outcome) in newest.items() if run.extracted_at and run.extracted_at >= since}

        return FetchRules(
            queries=apis.queries,
            accounts=accounts,
            find_parking=find_parking,
            find_refusal=find_refusal,
            lookback_days=find_lookback,
            find_extracted=find_extracted,
            default_login=next(iter(self._login_ids), None),
            known_widths=read_known_widths(self.ledger, apis.source, self.clock()),
            logins={
                customer: settings.login_customer_id
                for customer, settings in extraction.customers.items()
                if settings.login_customer_id is not None
            },
            limits=DayLimits(close_lag=extraction.close_lag, reach_days=extraction.reach_days),
        )


def _find_failure(found: Discovery) -> str | None:
    """Why a discovery has read no account; None when it has, or when all direct accounts are parked."""
    if found.found or ((found.refused or found.skipped) and not found.failed):
        return None
    if not found.failed:
        return f"the credentials reach no account; grant access to one, then run {DISCOVER}"
    login, fault = next(iter(found.failed.items()))
    more = f" (and {len(found.failed) - 1:,} other logins)" if len(found.failed) > 1 else ""
    return f"no answer from {login or 'the credentials'}{more}: {fault.error_class}: {fault.message}"
