"""Finds the facts that an operator must know, in the ledger's events and in its retry queue.

A partition that has recovered by now is left out: nobody has to act on it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from ads_pipeline.domain.days.conditions import BLOCKED_CONDITIONS, OVERDUE_CONDITIONS, Condition, GapReason
from ads_pipeline.domain.days.readability import IN_PROGRESS_LIMIT, Blocker, DayCondition
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking, RetryForecast
from ads_pipeline.domain.fetching.retry_policy import (
    WAITING_CLASSES,
    ErrorPolicy,
    Parked,
    RetryPolicy,
    TerminalReason,
)
from ads_pipeline.domain.partition import PartitionKey, Run, parse_key
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.run_events import LEDGER_TYPES, LoggedEvent
from ads_pipeline.domain.transitions import Effect, Status
from ads_pipeline.ledger.extraction.account_table import DISCOVERY_FAILED
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.operations.notifications.notices import Fact, Incident, Kind
from ads_pipeline.pipeline.days.day_conditions import NONE_EXPECTED, DayRules, describe_days, find_days

FAILURE_TYPES: Final = frozenset({"VerdictRejected", "FetchFailed"})
EVENT_TYPES: Final = FAILURE_TYPES | {
    "PartitionWithdrawn",
    "TerminalMarked",
    "LoadFailed",
    "RunFailed",
    "StepFailed",
    DISCOVERY_FAILED,
}
MAX_PROBLEMS: Final = 3
HOLD_TOLD_AFTER: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """The facts that the ledger records now of a partition with new events."""

    key: PartitionKey
    status: Status
    failures: int  # in a row, since the last accepted verdict
    new_failures: int
    forecast: RetryForecast
    max_age: timedelta

    @property
    def is_given_up(self) -> bool:
        """True if nothing fetches it again without an operator's action, not even after a release."""
        decision = self.forecast.decision
        return (self.forecast.terminal or self.forecast.given_up) is not None or (
            isinstance(decision, Parked) and decision.scope is ErrorPolicy.HOLD
        )

    @property
    def has_just_failed(self) -> bool:
        """True if the first of the failures in a row is new. The others are retries, which are silent."""
        return 0 < self.failures <= self.new_failures


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFinder:
    """Finds facts about one source of one ledger."""

    ledger: LedgerReader
    source: str
    policy: RetryPolicy
    read_rules: Callable[[datetime], DayRules]  # of the days, as of a time
    invocation: str = ""  # before each command, as in the settings

    def of_events(self, events: Sequence[LoggedEvent], now: datetime) -> Iterator[Fact]:
        """Yield the facts about partitions and dead runs.

        The newest event of a partition that still matters gives one fact; a load that failed gives another. A fact
        about a day is left out when its condition is another one by now, such as acknowledged.
        """
        yield from _find_dead_runs(events)
        yield from self._find_failed_discoveries(events)
        failed_loads = self._find_failed_loads(events)
        by_partition = defaultdict[PartitionKey, list[LoggedEvent]](list)
        for each in events:
            if each.event.event_type in LEDGER_TYPES and each.event.step_id:
                key = parse_key(each.event.step_id)
                if key.source == self.source:
                    by_partition[key].append(each)
        facts = dict[PartitionKey, Fact]()
        for partition in self._describe(by_partition):
            found = (_find(partition, each) for each in reversed(by_partition[partition.key]))
            facts.update((partition.key, fact) for fact in islice(filter(None, found), 1))
        keys = {*facts, *failed_loads}
        days = describe_days(self.ledger, keys, self.read_rules(now)) if keys else {}
        for key in failed_loads:
            blocker = days[key].blocked_by
            if blocker is not None and days[key].condition in BLOCKED_CONDITIONS:
                yield _of_blocked(key, days[key], blocker)
        for key, fact in facts.items():
            if isinstance(fact.kind, Incident) or days[key].condition in {fact.kind, Condition.IN_PROGRESS}:
                yield fact

    def of_deadlines(self, since: datetime, now: datetime) -> Iterator[Fact]:
        """Yield a fact per day whose deadline passed after `since`, and of which readers get nothing.

        A blocked day is told as such. Parked days and days in progress are left out.
        """
        rules = self.read_rules(now)
        passed = {name: window for name in rules.due_after if (window := self._find_passed(rules, name, since))}
        if not passed:  # as at most times of the day
            return
        first_days = self.ledger.days.first_days(self.source)
        for name, window in passed.items():
            days = find_days(
                self.ledger, window, OVERDUE_CONDITIONS, first_days=first_days.of_query(name), rules=rules
            )
            for key, day in days.items():
                deadline = rules.deadline(key)
                if since < deadline <= now:
                    yield _of_overdue(key, day, deadline)

    def of_ended_waits(self, since: datetime, now: datetime) -> Iterator[Fact]:
        """Yield a fact per day whose wait for a quota is over, and that no run came for in the time that it has."""
        limit = IN_PROGRESS_LIMIT
        ended = self.ledger.retry_queue.list_ended_waits(self.source, since - limit, now - limit)
        if not ended:
            return
        rules = self.read_rules(now)
        for key, day in describe_days(self.ledger, ended, rules).items():
            if day.condition in OVERDUE_CONDITIONS:
                yield _of_overdue(key, day, rules.deadline(key))

    def _find_passed(self, rules: DayRules, query_name: str, since: datetime) -> DayWindow | None:
        """The days of a query whose deadline has passed since a time in one of the time zones."""
        expectations = [rules.expect(each, query_name, NONE_EXPECTED) for each in rules.one_of_each_zone]
        due = [(each.last_due_day(since) + timedelta(days=1), each.last_due_day(rules.now)) for each in expectations]
        passed = [(first, last) for first, last in due if first <= last]
        if not passed:
            return None
        first, last = min(first for first, _last in passed), max(last for _first, last in passed)
        return DayWindow(source=self.source, query_name=query_name, since=first, until=last)

    def _find_failed_discoveries(self, events: Iterable[LoggedEvent]) -> Iterator[Fact]:
        """A fact for the first of several discoveries in a row that have read no account."""
        for each in events:
            data = each.event.event_data or {}
            if each.event.event_type != DISCOVERY_FAILED or data.get("source") != self.source or not data["is_first"]:
                continue
            if self.ledger.accounts.find_failed_discoveries(self.source) is not None:
                yield Fact(
                    kind=Incident.DISCOVERY_FAILED,
                    subject=self.source,
                    occurrence=each.idempotency_key,
                    reason=str(data["why"]),
                )

    def _find_failed_loads(self, events: Iterable[LoggedEvent]) -> list[PartitionKey]:
        """The partitions whose current run could not be loaded for the first time.

        The hourly attempts of `reconcile` are silent.
        """
        new = Counter[Run]()
        for each in events:
            if each.event.event_type == "LoadFailed" and each.event.step_id:
                new[Run(key=parse_key(each.event.step_id), run_id=each.event.event_data["run_id"])] += 1
        failures = self.ledger.publications.count_failed_loads(new)
        states = self.ledger.states.get_many(run.key for run in new)
        return [
            run.key
            for run, number in sorted(new.items())
            if run.key.source == self.source
            and states[run.key].status is Status.SUCCESS
            and states[run.key].current_run_id == run.run_id
            and failures.get(run, 0) <= number
        ]

    def list_blocked(self, now: datetime) -> dict[str, list[Fact]]:
        """The blocked days by their cause, such as a schema version without a contract. Failed loads are events."""
        rules, first_days = self.read_rules(now), self.ledger.days.first_days(self.source)
        found = defaultdict[str, list[Fact]](list)
        for name in rules.due_after:
            window = DayWindow(source=self.source, query_name=name)
            days = find_days(
                self.ledger, window, BLOCKED_CONDITIONS, first_days=first_days.of_query(name), rules=rules
            )
            for key, day in days.items():
                if day.blocked_by is not None and day.blocked_by.reason is not GapReason.UNLOADABLE:
                    found[f"{name}: {day.blocked_by}"].append(_of_blocked(key, day, day.blocked_by))
        return found

    def list_parkings(self) -> dict[str, Parking]:
        """The parked accounts and queries, each by a short name for this parking of it."""
        parkings = self.ledger.retry_queue.list_parkings(self.source)
        return {f"{each.target} {each.parked_at and each.parked_at.isoformat()}": each for each in parkings}

    def list_holds(self, now: datetime) -> dict[str, Hold]:
        """The holds that have stopped calls for an hour, each by a short name. An outage is one."""
        standing = (each for each in self.ledger.quota.list_holds(self.source) if each.until > now or each.is_outage)
        return {
            f"hold of {each.scope} {each.name} {each.since.isoformat()}": each
            for each in standing
            if each.since is not None and now - each.since >= HOLD_TOLD_AFTER
        }

    def _describe(self, events: Mapping[PartitionKey, Iterable[LoggedEvent]]) -> Iterator[_Partition]:
        states = self.ledger.states.get_many(events)
        failures = self.ledger.retry_queue.find_failures(events)
        forecasts = self.ledger.retry_queue.forecast(list(states.values()), self.policy)
        for key, state in states.items():
            yield _Partition(
                key=key,
                status=state.status,
                failures=failures[key].failures if key in failures else 0,
                new_failures=sum(map(_is_failure, events[key])),
                forecast=forecasts[key],
                max_age=self.policy.max_age,
            )


def _of_overdue(key: PartitionKey, day: DayCondition, deadline: datetime) -> Fact:
    if day.blocked_by is not None:
        return _of_blocked(key, day, day.blocked_by)
    return Fact.of_partition(day.condition, key, deadline.isoformat(), reason=str(day.gap or ""))


def _of_blocked(key: PartitionKey, day: DayCondition, blocker: Blocker) -> Fact:
    occurrence = f"{blocker} {day.since.isoformat()}"
    return Fact.of_partition(day.condition, key, occurrence, reason=str(blocker))


def of_parkings(parkings: Iterable[Parking]) -> Iterator[Fact]:
    """A fact per parked account or query."""
    for each in parkings:
        occurrence = each.parked_at.isoformat() if each.parked_at else ""
        reason = f"{each.error_class}: {each.why}" if each.error_class else each.why
        yield Fact(kind=Condition.PARKED, subject=each.target, occurrence=occurrence, reason=reason)


def of_holds(holds: Iterable[Hold]) -> Iterator[Fact]:
    """A fact per account or source on hold."""
    for each in holds:
        subject = f"{'account' if each.customer_id else each.scope} {each.name}"
        reason = f"{each.why}; to lift it now: {each.release_command}"
        yield Fact(kind=Incident.ON_HOLD, subject=subject, occurrence=str(each.since), reason=reason)


def _is_failure(logged: LoggedEvent) -> bool:
    """True if the retry policy counts the event."""
    event_type, data = logged.event.event_type, logged.event.event_data
    is_waiting = event_type == "FetchFailed" and data.get("error_class") in WAITING_CLASSES
    return event_type in FAILURE_TYPES and not is_waiting


def _find(partition: _Partition, logged: LoggedEvent) -> Fact | None:
    """The fact that follows from this event, if it still holds."""
    data: Mapping[str, Any] = logged.event.event_data
    kind = _find_kind(partition, logged.event.event_type, data.get("effect"))
    if kind is None:
        return None
    reason, operator = _describe_cause(data)
    if kind is Condition.HIDDEN and not operator:
        kind = Condition.REJECTED  # the validator judged the run again
    if kind is Incident.TERMINAL and not operator:
        reason = f"{_describe_terminal(partition)}; {reason}"
    return Fact.of_partition(kind, partition.key, logged.idempotency_key, reason=reason, operator=operator)


def _find_kind(partition: _Partition, event_type: str, effect: str | None) -> Kind | None:
    status, forecast = partition.status, partition.forecast
    match event_type:
        case "TerminalMarked":
            return Incident.TERMINAL if forecast.marked else None
        case "PartitionWithdrawn":
            return Condition.HIDDEN if status is Status.PENDING else None
        case "VerdictRejected" | "FetchFailed":
            kind = _find_kind_of_failure(partition, effect)
            is_rerun = kind is Condition.REJECTED_RERUN
            return kind if is_rerun == (status is Status.SUCCESS) else None
    return None


def _find_kind_of_failure(partition: _Partition, effect: str | None) -> Kind | None:
    if effect == Effect.DEMOTED:
        return Condition.HIDDEN
    if partition.is_given_up:
        return Incident.TERMINAL
    kinds = {Effect.SET_ASIDE: Condition.REJECTED_RERUN, Effect.FAILED: Condition.REJECTED}
    return kinds.get(Effect(effect)) if effect is not None and partition.has_just_failed else None


def _describe_cause(data: Mapping[str, Any]) -> tuple[str, str]:
    """Give the cause without values that differ from day to day; and the operator, if there was one."""
    reason = data.get("reason")
    if isinstance(reason, dict):
        parsed = Reason.from_json(json.dumps(reason))
        more = "; …" if len(parsed.problems) > MAX_PROBLEMS else ""
        return "; ".join(problem.text for problem in parsed.problems[:MAX_PROBLEMS]) + more, parsed.operator or ""
    if "error_class" in data:
        return f"{data['error_class']}: {data.get('error_message', '')}", ""
    return str(reason or ""), str(data.get("operator", ""))


def _describe_terminal(partition: _Partition) -> str:
    terminal = partition.forecast.terminal or partition.forecast.given_up
    match terminal and terminal.reason:
        case TerminalReason.TOO_MANY_ATTEMPTS:
            return f"{partition.failures} failures in a row"
        case TerminalReason.TOO_OLD:
            return f"after {count_of(partition.max_age.days, 'day')} nothing is retried"
    return "it is not fetched again"


def _find_dead_runs(events: Sequence[LoggedEvent]) -> Iterator[Fact]:
    """A fact per failed Dagster run. Commands of operators report their failure on the terminal.

    A failed discovery has a fact of its own.
    """
    discoveries = {each.event.engine_run_id for each in events if each.event.event_type == DISCOVERY_FAILED}
    left, failed = Counter[str](), dict[str, LoggedEvent]()
    for each in events:
        if each.event.event_type == "StepFailed":
            left[each.event.engine_run_id] += 1
        elif each.event.event_type == "RunFailed" and "job" in (each.event.engine_run_ref or {}):
            if each.event.engine_run_id in discoveries:
                continue
            failed[each.event.engine_run_id] = each
    for engine_run_id, each in failed.items():
        why = (each.event.event_data or {}).get("why", "the run failed")
        unjudged = f"; {left[engine_run_id]:,} sealed runs have no verdict" if left[engine_run_id] else ""
        yield Fact(
            kind=Incident.RUN_DIED, subject=engine_run_id, occurrence=each.idempotency_key, reason=f"{why}{unjudged}"
        )
