"""`GoogleAdsSource`: the source of the raw assets that fetches from Google Ads.

It returns sealed runs, failed fetches and skipped partitions, and writes no state of a partition.

Dagster divides a backfill of a few days of many accounts into a run for each day. One request can fetch all these
days. So the first run that comes to an account fetches the other days of the backfill too, and seals their runs. The
runs of those days take them. While one run fetches, the others go on with other accounts.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ads_pipeline.domain.fetching.fetch_results import Backfill, FailedFetch, SkippedFetch
from ads_pipeline.domain.fetching.outages import (
    LONGEST_HOLD,
    NOT_NEEDED,
    SOURCE_UNAVAILABLE,
    TIMED_OUT,
    TRANSIENT,
    UNANSWERED,
)
from ads_pipeline.domain.fetching.quota import (
    Granted,
    Hold,
    Operation,
    OperationOutcome,
    OtherCall,
    Refused,
    SharedSince,
)
from ads_pipeline.domain.fetching.retry_policy import (
    ERROR_POLICIES,
    RUN_TOO_LONG,
    WAITING_CLASSES,
    ErrorPolicy,
    lane_for,
)
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.google_ads.faults.fault_reading import Fault
from ads_pipeline.google_ads.faults.fault_table import OUT_OF_REACH
from ads_pipeline.google_ads.fetch_rules import FetchRules
from ads_pipeline.google_ads.operation_budget import Budget
from ads_pipeline.google_ads.requests.narrowing import TOO_WIDE, Narrowing
from ads_pipeline.google_ads.requests.ranges import FetchRange, cut_ranges, halve
from ads_pipeline.google_ads.streaming import RangeRequest, RangeStreams
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.run_source import Landed, Source

_LOG: Final = logging.getLogger(__name__)

# Policies after which another request of the same account, query or source cannot succeed either.
_PARKED_FIELD: Final = {
    ErrorPolicy.PARK_CUSTOMER: "customer_id",
    ErrorPolicy.PARK_QUERY: "query_name",
    ErrorPolicy.PARK_SOURCE: "source",
}
_REFUSALS: Final = frozenset(name for name, policy in ERROR_POLICIES.items() if policy in _PARKED_FIELD)
_MAY_BE_AWAY: Final = UNANSWERED | {TIMED_OUT}
FETCH_LIMIT: Final = timedelta(hours=4)  # of one call; a stream that has begun may take another hour
PAUSE_AFTER_LIMIT: Final = timedelta(minutes=5)
SECONDS_BETWEEN_LOOKS: Final = 1.0  # at the fetches of other runs


@dataclass(slots=True)
class _Progress:
    """The progress of one call of `land`. `waiting` are the ranges that another run is fetching."""

    requested: frozenset[PartitionKey]
    shared: SharedSince | None
    narrowing: Narrowing
    clock: Callable[[], datetime]
    began_at: datetime
    runs: list[SealedRun | DamagedRun] = field(default_factory=list)
    notes: dict[Run, Mapping[str, Any]] = field(default_factory=dict)
    failed: list[FailedFetch] = field(default_factory=list)
    skipped: list[SkippedFetch] = field(default_factory=list)
    stopped: dict[tuple[str, str], str] = field(default_factory=dict)  # what was refused in this call -> why
    waiting: list[FetchRange] = field(default_factory=list)
    answered: int = 0  # the failures that were there when the source answered last

    def wait(self, keys: Sequence[PartitionKey], refused: Refused, earlier: Fault | None) -> None:
        """No call was granted. The fault of the try before stays the reason, if there was one that counts."""
        if earlier is not None and earlier.error_class not in WAITING_CLASSES:
            self.fail(keys, earlier)
            return
        message = f"{refused.why}; on hold until {refused.until:%Y-%m-%d %H:%M:%S} UTC"
        self.fail(keys, Fault(error_class=refused.error_class, message=message), refused.until)

    def note_call(self, fetch_range: FetchRange, fault: Fault | None, outage: Hold | None) -> None:
        """Note how a call ended. In an outage, the unanswered calls before it do not count either."""
        if fault is None:
            self.narrowing.note_answer(fetch_range)
        if fault is None or fault.error_class not in _MAY_BE_AWAY:
            self.answered = len(self.failed)
        if outage is None:
            return
        for index, each in enumerate(self.failed[self.answered :], start=self.answered):
            if each.error_class in UNANSWERED:
                self.failed[index] = replace(each, error_class=SOURCE_UNAVAILABLE, wait_until=outage.until)

    def wants(self, keys: Iterable[PartitionKey]) -> bool:
        return not self.requested.isdisjoint(keys)

    def find_stop(self, key: PartitionKey) -> str | None:
        names = ((field_name, getattr(key, field_name)) for field_name in _PARKED_FIELD.values())
        return next((self.stopped[name] for name in names if name in self.stopped), None)

    def add(self, seals: Iterable[SealedRun | DamagedRun]) -> None:
        self.runs += [each for each in seals if each.run is not None and each.run.key in self.requested]

    def skip(self, keys: Iterable[PartitionKey], why: str) -> None:
        self.skipped += [SkippedFetch(key=key, reason=why) for key in keys if key in self.requested]

    def fail(self, keys: Sequence[PartitionKey], fault: Fault, wait_until: datetime | None = None) -> None:
        """Record the fault for the requested partitions, and stop what would meet it again."""
        self.failed += [
            FailedFetch(
                key=key,
                error_class=fault.error_class,
                error_message=fault.message,
                wait_until=wait_until,
                failed_at=self.clock(),
                request_id=fault.request_id,
            )
            for key in keys
            if key in self.requested
        ]
        parked = _PARKED_FIELD.get(ERROR_POLICIES.get(fault.error_class, ErrorPolicy.RETRY))
        if parked is not None:
            self.stopped[parked, getattr(keys[0], parked)] = fault.message


class GoogleAdsSource:
    """Fetches reports. Runs that were sealed before and have no verdict are taken as they are."""

    fetches = True

    def __init__(
        self,
        *,
        sealed: Source,
        rules: FetchRules,
        streams: RangeStreams,
        budget: Budget,
        clock: Callable[[], datetime],
    ) -> None:
        self._sealed, self._rules, self._streams = sealed, rules, streams
        self._budget, self._clock = budget, clock

    def land(self, partitions: Sequence[PartitionKey], backfill: Backfill | None = None) -> Landed:
        """Fetch these partitions, in as few requests as their days allow.

        In a backfill, those that were extracted after it was requested are not fetched again.
        """
        now, due, shared = self._clock(), list[PartitionKey](), None
        if backfill is not None:
            shared = SharedSince(at=backfill.requested_at, final=_REFUSALS, final_at=now)
        progress = _Progress(
            requested=frozenset(partitions),
            shared=shared,
            narrowing=Narrowing(self._rules.known_widths),
            clock=self._clock,
            began_at=now,
        )
        progress.add(self._sealed.land(partitions).runs)
        present = {each.run.key for each in progress.runs if each.run is not None}
        if backfill is not None:
            present |= set(self._rules.find_extracted(partitions, backfill.requested_at))
        for key in partitions:
            if key in present:
                continue
            if backfill is not None and (fault := self._rules.find_refusal(key, backfill.requested_at)):
                progress.fail([key], fault)  # as if one run had fetched all days; a release then retries them
            elif skip := self._rules.find_skip(key, now):
                progress.skipped.append(skip)
            else:
                due.append(key)
        ranges = self._cut_ranges(due, backfill, progress, now)
        while ranges:
            for fetch_range in ranges:
                self._fetch(fetch_range, progress)
            ranges, progress.waiting = progress.waiting, []
            if ranges:
                self._budget.sleep(SECONDS_BETWEEN_LOOKS)
        return Landed(
            runs=tuple(progress.runs),
            failed=tuple(progress.failed),
            skipped=tuple(progress.skipped),
            notes=progress.notes,
        )

    def _cut_ranges(
        self, due: list[PartitionKey], backfill: Backfill | None, progress: _Progress, now: datetime
    ) -> list[FetchRange]:
        """The ranges that hold the due partitions. All runs of a backfill cut its days in the same way."""
        if backfill is None:
            return cut_ranges(due, progress.narrowing.find)
        reports = {(key.customer_id, key.query_name) for key in due}
        others = [
            key
            for key in backfill.keys - progress.requested
            if (key.customer_id, key.query_name) in reports and self._rules.find_skip(key, now) is None
        ]
        return [each for each in cut_ranges([*due, *others], progress.narrowing.find) if progress.wants(each.keys)]

    def _fetch(
        self, fetch_range: FetchRange, progress: _Progress, *, tries: int = 2, earlier: Fault | None = None
    ) -> None:
        """Fetch one range. A transient failure, and a short wait for the quota, are followed by one more try.

        `earlier` is the fault of the try before. It stays the reason when there is no operation for another try.
        """
        if why := progress.find_stop(fetch_range.keys[0]):
            progress.skip(fetch_range.keys, why)
            return
        parts = self._narrow(fetch_range, progress)
        if parts != [fetch_range]:
            self._fetch_all(parts, progress)
            return
        if progress.shared is not None:
            left = self._take_sealed(fetch_range, progress)
            if left is None:
                return
            fetch_range = left
        granted = self._reserve(fetch_range, progress)
        if isinstance(granted, OtherCall):
            self._follow(granted, fetch_range, progress)
            return
        if isinstance(granted, Refused):
            progress.wait(fetch_range.keys, granted, earlier)
            return
        if progress.shared is not None and (left := self._take_sealed(fetch_range, progress)) != fetch_range:
            # Another run has sealed them since we looked. It may not have fetched the rest.
            self._budget.ledger.finish(granted, OperationOutcome(outcome=NOT_NEEDED))
            progress.waiting += [] if left is None else [left]
            return
        with self._budget.spend(granted) as spent:
            result = self._streams.fetch(self._request(fetch_range))
            spent.fault, spent.request_id = result.fault, result.facts.request_id
            spent.rows, spent.seconds = result.facts.rows, result.facts.seconds
            spent.consumption = result.facts.consumption
        progress.add(result.seals)
        progress.notes |= result.notes
        progress.note_call(fetch_range, result.fault, spent.outage)
        if result.fault is not None:
            fault = _judge(result.fault, spent.outage, self._clock())
            self._handle(fetch_range, fault, progress, tries=tries - 1)

    def _find_end(self, progress: _Progress) -> Refused | None:
        """The reason why nothing more is requested in this call; None while it has time."""
        now = self._clock()
        if now - progress.began_at <= FETCH_LIMIT:
            return None
        why = f"this run has fetched for {FETCH_LIMIT // timedelta(hours=1)} hours and leaves the rest to another one"
        return Refused(until=now + PAUSE_AFTER_LIMIT, why=why, error_class=RUN_TOO_LONG)

    def _fetch_all(self, ranges: Iterable[FetchRange], progress: _Progress) -> None:
        for fetch_range in ranges:
            if progress.wants(fetch_range.keys):
                self._fetch(fetch_range, progress)

    def _narrow(self, fetch_range: FetchRange, progress: _Progress) -> list[FetchRange]:
        """The ranges to request in place of this one, by what this call has learned. The rest has failed."""
        narrowing = progress.narrowing
        if (timeout := narrowing.find_last_timeout(fetch_range)) is not None:
            progress.fail(fetch_range.keys, timeout)
            return []
        old, fault = narrowing.find_too_old(fetch_range)
        if old and fault is not None:
            progress.fail(old, fault)
        return cut_ranges(fetch_range.keys[len(old) :], narrowing.find)

    def _take_sealed(self, fetch_range: FetchRange, progress: _Progress) -> FetchRange | None:
        """Take the runs that another run has sealed. Return the rest of the range; None when nothing is requested."""
        found = self._sealed.land(fetch_range.keys).runs
        progress.add(found)
        sealed = {each.run.key for each in found if each.run is not None}
        left = tuple(key for key in fetch_range.keys if key not in sealed)
        return FetchRange(keys=left) if progress.wants(left) else None

    def _reserve(self, fetch_range: FetchRange, progress: _Progress) -> Granted | Refused | OtherCall:
        if (refused := self._find_end(progress)) is not None:
            return refused
        operation = self._operation(fetch_range)
        if progress.shared is None:
            return self._budget.reserve(operation)
        return self._budget.reserve_shared(operation, progress.shared)

    def _follow(self, other: OtherCall, fetch_range: FetchRange, progress: _Progress) -> None:
        """Wait for the other run's answer, or take its refusal, which a call of our own would only repeat."""
        refusal = other.refusal
        if refusal is None:
            log_event(_LOG, LogEvent.FETCH_AWAITED, run=other.engine_run_id, range=str(fetch_range))
            progress.waiting.append(fetch_range)
            return
        message = refusal.error_message or refusal.outcome
        fault = Fault(error_class=refusal.outcome, message=message, request_id=refusal.request_id)
        progress.fail(fetch_range.keys, fault)

    def _handle(self, fetch_range: FetchRange, fault: Fault, progress: _Progress, *, tries: int) -> None:
        error_class, narrowing = fault.error_class, progress.narrowing
        can_halve = len(fetch_range.keys) > 1
        if error_class in TOO_WIDE and can_halve:
            narrowing.note_too_wide(fetch_range, error_class)
            self._fetch(fetch_range, progress)
            return
        if error_class == OUT_OF_REACH:
            if can_halve:  # its newest days may be in reach; those that are not show that all earlier ones are not
                self._fetch_all(reversed(halve(fetch_range)), progress)
                return
            narrowing.note_too_old(fetch_range.keys[0], fault)
        if error_class == TIMED_OUT:
            narrowing.note_timeout(fetch_range, fault)
            if can_halve:
                self._fetch_all(halve(fetch_range), progress)
                return
        if error_class == TRANSIENT and tries:
            self._fetch(fetch_range, progress, tries=tries, earlier=fault)
            return
        wait = fault.wait
        if wait is not None and wait <= self._budget.longest_sleep and tries:
            # The budget sleeps until the hold has passed.
            self._fetch(fetch_range, progress, tries=tries, earlier=fault)
            return
        until = None if wait is None else self._clock() + min(wait, LONGEST_HOLD)
        progress.fail(fetch_range.keys, fault, until)

    def _operation(self, fetch_range: FetchRange) -> Operation:
        key = fetch_range.keys[-1]  # its newest day decides the lane
        return Operation(
            source=key.source,
            lane=lane_for(key, self._clock().date()),
            customer_id=key.customer_id,
            query_name=key.query_name,
            since=fetch_range.since,
            until=fetch_range.until,
        )

    def _request(self, fetch_range: FetchRange) -> RangeRequest:
        key, rules = fetch_range.keys[0], self._rules
        account = rules.find_account(key)
        return RangeRequest(
            fetch_range=fetch_range,
            query=rules.queries[key.query_name],
            login_customer_id=rules.find_login(key),
            time_zone=account.time_zone,
            currency_code=account.currency_code,
            lookback_days=rules.lookback_days(key.customer_id, key.query_name),
            limits=rules.limits,
        )


def _judge(fault: Fault, outage: Hold | None, now: datetime) -> Fault:
    """The fault of an unanswered call, as all calls together show it: of the source, or of this account alone."""
    if fault.error_class not in _MAY_BE_AWAY:
        return fault
    if outage is None:
        return replace(fault, error_class=TRANSIENT) if fault.error_class == SOURCE_UNAVAILABLE else fault
    return replace(fault, error_class=SOURCE_UNAVAILABLE, wait=max(outage.until - now, timedelta(0)))
