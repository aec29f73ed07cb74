"""One request: reads a stream of rows into one run per day, and seals all of them or none.

Google sends rows in no order, so before the stream has ended every day may still lack rows.
"""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import compress
from typing import Any, Final

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.days.settlement import (
    DayLimits,
    ReportState,
    closes_at,
    find_report_state,
    find_zone,
    is_known_zone,
    settles_at,
)
from ads_pipeline.domain.errors import AdsPipelineError, BadJson, FieldRefused, RawUnavailable, StreamRefused
from ads_pipeline.domain.fetching.outages import SOURCE_UNAVAILABLE, TIMED_OUT, TRANSIENT
from ads_pipeline.domain.fetching.retry_forecast import names_by_scope
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.quoting import quoted
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.faults.fault_reading import Fault, clean_request_id, make_fault, read_fault
from ads_pipeline.google_ads.faults.fault_table import GOOGLE_ADS_ERROR, ROWS_REFUSED, UNRECOGNIZED_FIELD
from ads_pipeline.google_ads.requests.descriptors import VersionFields
from ads_pipeline.google_ads.requests.flattening import Flattener
from ads_pipeline.google_ads.requests.gaql import complete_query
from ads_pipeline.google_ads.requests.ranges import FetchRange
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.row_encoding import StrictLine, encode_columns
from ads_pipeline.lake.raw.seal import hash_gaql
from ads_pipeline.lake.raw.unsealed_run import UnsealedRun
from ads_pipeline.settings.query_file import Query

_CURRENCY: Final = re.compile(r"[A-Z]{3}")
STALL_LIMIT: Final = timedelta(minutes=5)
# Rows that are flattened and encoded at once. 1,000 took half as much CPU time again: their messages leave the cache
# and are enough objects to start the garbage collector.
ROWS_PER_BLOCK: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRequest:
    """A range of one query to fetch, the login id that reaches the account, and what is known of the account."""

    fetch_range: FetchRange
    query: Query
    login_customer_id: str | None
    time_zone: str | None
    currency_code: str | None
    lookback_days: int
    limits: DayLimits


@dataclass(slots=True)
class StreamFacts:
    """The known facts of a request while it runs and afterwards."""

    started_at: datetime
    rows: int = 0
    request_id: str | None = None
    consumption: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """The end of a request: the sealed runs of all days and the notes in them, or a fault and no run."""

    facts: StreamFacts
    seals: tuple[SealedRun, ...] = ()
    notes: Mapping[Run, Mapping[str, Any]] = field(default_factory=dict)
    fault: Fault | None = None


class RangeStreams:
    """Fetches ranges. Rows pass through in batches, so memory does not grow with a report."""

    def __init__(
        self,
        clients: Clients,
        raw: RawRuns,
        *,
        make_run_id: Callable[[datetime], str],
        clock: Callable[[], datetime],
        stall_limit: timedelta = STALL_LIMIT,
    ) -> None:
        self._clients, self._raw, self._make_run_id = clients, raw, make_run_id
        self._clock, self._stall_limit = clock, stall_limit
        self._fields = VersionFields(clients.api_version)
        self._tool_version = version("google-ads")  # reads a file

    def fetch(self, request: RangeRequest) -> StreamResult:
        """Fetch one range. A failure of the disk is raised; any other is in the result, and costs this range only."""
        facts, start = StreamFacts(started_at=self._clock()), time.monotonic()
        stalled = threading.Event()
        try:
            sealed = self._fetch(request, facts, stalled)
            notes = {seal.run: extraction for seal, extraction in sealed}
            return StreamResult(facts=facts, seals=tuple(seal for seal, _extraction in sealed), notes=notes)
        except Exception as error:
            if isinstance(error, RawUnavailable | MemoryError):
                raise
            return StreamResult(facts=facts, fault=self._read_fault(error, request, facts, stalled))
        finally:
            facts.seconds = time.monotonic() - start

    def _read_fault(
        self, error: Exception, request: RangeRequest, facts: StreamFacts, stalled: threading.Event
    ) -> Fault:
        """The fault of Google's errors, of our own, and of a stream that this process cancelled."""
        requested = request.fetch_range
        context = self._clients.request_context(
            request.login_customer_id,
            parked_names=names_by_scope(requested.keys[0]),
            is_single_day=len(requested.keys) == 1,
        )
        if stalled.is_set():
            text = f"the stream stalled: no rows for {self._stall_limit.total_seconds():.0f} s"
            return make_fault(TIMED_OUT, text, context, facts.request_id)
        if isinstance(error, StreamRefused | FieldRefused):
            error_class = ROWS_REFUSED if isinstance(error, StreamRefused) else UNRECOGNIZED_FIELD
            return make_fault(error_class, str(error), context, facts.request_id)
        if isinstance(error, AdsPipelineError):  # such as a path below raw that is no directory
            return make_fault(GOOGLE_ADS_ERROR, str(error), context, facts.request_id)
        fault = read_fault(error, context, facts.request_id)
        if fault.error_class != SOURCE_UNAVAILABLE or facts.request_id is None:
            return fault
        # The source has sent rows, so that the break may concern this answer alone.
        return replace(fault, error_class=TRANSIENT)

    def _fetch(
        self, request: RangeRequest, facts: StreamFacts, stalled: threading.Event
    ) -> list[tuple[SealedRun, Mapping[str, Any]]]:
        requested = request.fetch_range
        flattener = Flattener(request.query.fields, self._fields)
        with ExitStack() as stack:
            call = self._clients.search_stream(
                customer_id=requested.customer_id,
                login_customer_id=request.login_customer_id,
                query=complete_query(request.query.gaql, requested.since, requested.until),
            )
            stack.callback(call.cancel)  # a stream that is left halfway; no effect on one that has ended
            days: dict[str, UnsealedRun] = {}
            with cancel_when_stalled(call, self._stall_limit, stalled) as note_progress:
                for batch in call:
                    if batch.results:  # batches without rows are no progress
                        note_progress()
                    _note_batch(batch, facts)
                    days = days or self._open_days(request, facts, stack)
                    _write_batch(batch, flattener, requested, days)
            days = days or self._open_days(request, facts, stack)  # an answer without a batch
            return [self._seal(request, run, facts, flattener) for _day, run in sorted(days.items())]

    def _open_days(self, request: RangeRequest, facts: StreamFacts, stack: ExitStack) -> dict[str, UnsealedRun]:
        """The runs to write, by day. They are opened with the first batch: a refused request leaves no trace."""
        return {
            key.logical_date.isoformat(): stack.enter_context(
                self._raw.landing(Run(key=key, run_id=self._make_run_id(facts.started_at)))
            )
            for key in request.fetch_range.keys
        }

    def _seal(
        self, request: RangeRequest, run: UnsealedRun, facts: StreamFacts, flattener: Flattener
    ) -> tuple[SealedRun, Mapping[str, Any]]:
        query, day, currency = request.query, run.run.key.logical_date, request.currency_code or ""
        zone = find_zone(request.time_zone)
        seal_facts = SealFacts(
            extracted_at=facts.started_at,
            schema_version=query.schema_version,
            api_version=self._clients.api_version,
            query_hash=hash_gaql(query.gaql),
            time_zone=request.time_zone if is_known_zone(request.time_zone) else None,
            currency_code=currency if _CURRENCY.fullmatch(currency) else None,
        )
        state = find_report_state(facts.started_at, settles_at(day, zone, request.lookback_days))
        extraction: Mapping[str, Any] = {
            "tool": "google-ads",
            "tool_version": self._tool_version,
            "request_id": facts.request_id,
            "range": [request.fetch_range.since.isoformat(), request.fetch_range.until.isoformat()],
            "query_resource_consumption": facts.consumption,
            "day_closed_at": closes_at(day, zone, request.limits).isoformat(),
            "provisional": state is ReportState.PROVISIONAL,
            "lookback_days": request.lookback_days,
            "login_customer_id": request.login_customer_id,
            "unknown_enum_values": flattener.unknown_values,
        }
        return run.seal(seal_facts, extraction=extraction), extraction


@contextmanager
def cancel_when_stalled(call: Any, limit: timedelta, stalled: threading.Event) -> Iterator[Callable[[], None]]:
    """Cancel the call when the returned function is not called for so long. Sets `stalled` before it cancels."""
    ended, progressed_at = threading.Event(), [time.monotonic()]

    def note_progress() -> None:
        progressed_at[0] = time.monotonic()

    def watch() -> None:
        while not ended.wait(max(progressed_at[0] + limit.total_seconds() - time.monotonic(), 0.01)):
            if time.monotonic() - progressed_at[0] >= limit.total_seconds():
                stalled.set()
                call.cancel()
                return

    watcher = threading.Thread(target=watch, name="google-ads-stall", daemon=True)
    watcher.start()
    try:
        yield note_progress
    finally:
        ended.set()
        watcher.join()


def _write_batch(batch: Any, flattener: Flattener, requested: FetchRange, days: dict[str, UnsealedRun]) -> None:
    for rows in split_batches(batch.results, ROWS_PER_BLOCK):
        columns = flattener.flatten(rows)
        _check_origin(columns, requested)
        is_requested = [day in days for day in columns["date"]]
        if not all(is_requested):  # days that the range bridges
            columns = {name: list(compress(values, is_requested)) for name, values in columns.items()}
        try:
            lines = encode_columns(columns)
        except BadJson as error:
            raise StreamRefused(f"{requested}: a row cannot be written as strict JSON: {error}") from error
        for day, its_lines in _group_lines(columns["date"], lines).items():
            days[day].write_lines(its_lines)


def _check_origin(columns: Mapping[str, Sequence[Any]], requested: FetchRange) -> None:
    if set(columns["customer_id"]) != {requested.customer_id}:
        raise StreamRefused(f"{requested}: the answer has a row of another customer")
    for day in set(columns["date"]):
        if day not in requested.day_names:
            raise StreamRefused(f"{requested}: the answer has a row of another day: {quoted(day)}")


def _group_lines(days: Sequence[str], lines: Sequence[StrictLine]) -> Mapping[str, list[StrictLine]]:
    """The lines of each day, in the order received."""
    grouped = defaultdict[str, list[StrictLine]](list)
    for day, line in zip(days, lines, strict=True):
        grouped[day].append(line)
    return grouped


def _note_batch(batch: Any, facts: StreamFacts) -> None:
    facts.rows += len(batch.results)
    facts.request_id = clean_request_id(batch.request_id) or facts.request_id
    facts.consumption = batch.query_resource_consumption or facts.consumption
