"""Gathers everything known about one partition: ledger, sealed runs, staleness, retry forecast and events.

`why` prints the report.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.errors import RawUnavailable
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.retry_forecast import RetryForecast
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import suggest
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Outcome, PartitionState, RegisteredRun, Status
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import Attempt, PartitionAction, Pointer, PublicationStatus
from ads_pipeline.operations.cli.command_line.output import format_instant
from ads_pipeline.operations.cli.command_line.parsing import open_ledger
from ads_pipeline.pipeline.arrivals import SENSOR_WINDOW
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.days.next_steps import PartitionFacts, find_facts, find_next_commands
from ads_pipeline.pipeline.days.restorable_runs import RestorableRun, find_restorable
from ads_pipeline.pipeline.days.staleness import PartitionStaleness, calculate_staleness
from ads_pipeline.settings.environment import Settings

EVENTS_SHOWN: Final = 12
ACTION_PARTICIPLES: Final = {"withdraw": "withdrawn", "requeue": "requeued", "enqueue": "enqueued"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """Everything known about one partition.

    `command` is the next command that lists show. `sealed` is None when the raw root is not on this machine.
    """

    key: PartitionKey
    day: DayCondition
    command: str
    restorable: RestorableRun
    publication: PublicationStatus | None
    registered: Sequence[tuple[RegisteredRun, datetime]]
    attempts: Sequence[Attempt]
    actions: Sequence[PartitionAction]
    staleness: PartitionStaleness
    forecast: RetryForecast
    events: Sequence[LoggedEvent]
    sealed: Mapping[str, SealedRun | DamagedRun] | None
    no_asset_reason: str | None
    new_customer: str | None
    account: Account | None
    account_day: str | None
    rules: DayRules
    now: datetime

    @property
    def state(self) -> PartitionState:
        return self.publication.state if self.publication else PartitionState.absent(self.key)

    @property
    def pointer(self) -> Pointer | None:
        """The pointer, if it shows a run to readers."""
        return self.publication.pointer if self.publication and self.publication.is_published else None

    @property
    def is_known(self) -> bool:
        """True if the ledger or the raw folder holds anything of the partition."""
        return bool(self.publication or self.registered or self.sealed or self.events or self.actions)

    @property
    def is_safe(self) -> bool:
        return self.publication is not None and self.publication.is_publishable

    @property
    def unregistered(self) -> dict[str, SealedRun | DamagedRun]:
        """The sealed runs that the ledger has not registered."""
        known = {registered.run.run_id for registered, _at in self.registered}
        return {run_id: sealed for run_id, sealed in (self.sealed or {}).items() if run_id not in known}

    @property
    def facts(self) -> PartitionFacts:
        state, publication, forecast = self.state, self.publication, self.forecast
        unjudged, raw = _find_unjudged_run(self), self.staleness.raw
        last_attempt = raw.status.last_attempt_run_id if raw.status else None
        return replace(
            find_facts(
                self.key,
                self.day,
                state.status if publication else None,
                forecast,
                self.key.short_name,
                self.restorable,
            ),
            current_run_id=state.current_run_id,
            visible_run_id=self.pointer.run.run_id if self.pointer else None,
            demoting=publication is not None and publication.demotion_pending,
            unjudged_run_id=unjudged,
            judging_failed=unjudged is not None and unjudged == last_attempt,
            rejected_run_id=_find_rejected_run(self),
            stale_reasons=raw.reasons,
            last_action=_describe_last_action(self),
            next_retry=format_instant(forecast.next_at) if forecast.next_at else None,
            no_asset_reason=self.no_asset_reason,
            new_customer=self.new_customer,
            outside_sensor_window=self.key.logical_date < self.now.date() - SENSOR_WINDOW,
        )


def gather_report(settings: Settings, key: PartitionKey) -> PartitionReport:
    now, sealed = datetime.now(UTC), _find_sealed_runs(settings, key)
    with open_ledger(settings) as ledger:
        publication = ledger.publications.get(key)
        state = publication.state if publication else PartitionState.absent(key)
        rules = DayRules.read(ledger, settings, now=now)
        described = describe_days(ledger, [key], rules)
        account = ledger.accounts.by_id(key.source).get(key.customer_id)
        return PartitionReport(
            key=key,
            account=account,
            account_day=_describe_account_day(settings, account, key, described[key], now),
            day=described[key],
            command=find_next_commands(ledger, described, settings.retry_policy)[key],
            restorable=find_restorable(ledger.runs, [state])[key],
            publication=publication,
            registered=ledger.runs.registrations(key),
            attempts=ledger.runs.attempts(key),
            actions=ledger.audit.of_partition(key),
            staleness=calculate_staleness(ledger, settings.google_apis, [key], now=now)[key],
            forecast=ledger.retry_queue.forecast([state], settings.retry_policy)[key],
            events=ledger.events.find_step_events(str(key), EVENTS_SHOWN),
            sealed=sealed,
            no_asset_reason=_find_no_asset_reason(settings, key),
            new_customer=None if publication or sealed else _find_new_customer(ledger, key),
            rules=rules,
            now=now,
        )


def _describe_account_day(
    settings: Settings,
    account: Account | None,
    key: PartitionKey,
    day: DayCondition,
    now: datetime,
) -> str | None:
    """The day as settled, provisional, closed or unrecoverable; None for an account that is not known."""
    if account is None:
        return None
    days = AccountDays(apis=settings.google_apis, accounts={account.customer_id: account}, now=now)
    return days.describe_day(key, day.report)


def _find_sealed_runs(settings: Settings, key: PartitionKey) -> dict[str, SealedRun | DamagedRun] | None:
    """The sealed runs by run_id, or None when raw is not available.

    A damaged run without a valid run_id goes by its directory name.
    """
    try:
        return {_run_name(sealed): sealed for sealed in RawRuns(settings.raw_location).list_runs(key)}
    except RawUnavailable:
        return None


def _run_name(sealed: SealedRun | DamagedRun) -> str:
    path = sealed.path if isinstance(sealed, DamagedRun) else sealed.run.path
    return path.rpartition("/")[2] if sealed.run is None else sealed.run.run_id


def _find_new_customer(ledger: LedgerReader, key: PartitionKey) -> str | None:
    """A note on a customer without any partition, because the id may be misspelt."""
    known = ledger.states.customers(key.source)
    if key.customer_id in known:
        return None
    return f"the ledger records no partition of customer {key.customer_id}; {suggest(key.customer_id, known)}"


def _find_no_asset_reason(settings: Settings, key: PartitionKey) -> str | None:
    """The reason why Dagster has no asset partition for the key, or None when it has one."""
    apis, file = settings.google_apis, settings.queries_file
    if key.source != apis.source:
        return f"{file} defines the source {apis.source}"
    if key.query_name not in apis.queries:
        return f"{file} does not define {key.query_name}"
    return f"{file} starts at {apis.start_date}" if key.logical_date < apis.start_date else None


def _last_outcomes(attempts: Iterable[Attempt]) -> dict[str, Outcome]:
    return {attempt.verdict.run.run_id: attempt.verdict.outcome for attempt in attempts}


def _find_rejected_run(report: PartitionReport) -> str | None:
    """The newest run, if its last verdict rejected it."""
    if not report.registered:
        return None
    newest = report.registered[-1][0].run.run_id
    return newest if _last_outcomes(report.attempts).get(newest) is Outcome.REJECTED else None


def _find_unjudged_run(report: PartitionReport) -> str | None:
    """The newest run without a verdict. For a success, only a run newer than the current one counts."""
    sealed = [run for run in report.unregistered.values() if isinstance(run, SealedRun)]
    if sealed:
        return max(sealed, key=lambda seal: (seal.facts.extracted_at, seal.run.run_id)).run.run_id
    judged = _last_outcomes(report.attempts)
    for registered, _at in reversed(report.registered):
        run_id = registered.run.run_id
        if run_id not in judged:
            return run_id
        if report.state.status is Status.SUCCESS and run_id == report.state.current_run_id:
            return None
    return None


def _describe_last_action(report: PartitionReport) -> str | None:
    """The control action that made the partition pending.

    Only verdicts and actions change a status, and a verdict never leaves it pending. So it is the last action.
    """
    if report.state.status is not Status.PENDING or not report.actions:
        return None
    last = report.actions[-1]
    return f"{ACTION_PARTICIPLES.get(last.action, last.action)} by {last.operator}: {last.reason}"
