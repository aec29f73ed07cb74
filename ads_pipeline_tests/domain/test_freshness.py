"""Folding of attempts in every order against a second computation, staleness, display status, and row versions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import chain, combinations, pairwise, permutations, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ads_pipeline.domain.days.materialization_status import (
    RAW,
    WAREHOUSE,
    AssetPartition,
    AttemptOutcome,
    CodeVersion,
    DisplayStatus,
    FinishedAttempt,
    FreshnessPolicy,
    PartitionStatus,
    Staleness,
    StaleReason,
    Tenancy,
    display_status,
    find_staleness,
    fold_attempt,
    make_asset_partition,
    new_row_version,
    partition_values,
    row_version_to_int,
)
from ads_pipeline.domain.errors import BadName
from ads_pipeline_tests import builders

DAY = builders.DAY
ENDED = datetime(2026, 2, 4, tzinfo=UTC)  # the end of DAY
ASSET_PARTITION = make_asset_partition(WAREHOUSE, builders.key())
VALUES = partition_values(builders.key())
TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
SUCCEEDED, FAILED, CANCELLED = AttemptOutcome
POLICY = FreshnessPolicy(reread_after_days=(1, 7, 30))
LAST_VERSION = "7" + 25 * "Z"

PreviousRow = PartitionStatus | None
FoldFunction = Callable[[PreviousRow, FinishedAttempt], PartitionStatus]


def encode_ulid(number: int) -> str:
    """The ULID of a number, computed one digit at a time."""
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # no I, L, O, U
    return "".join(digits[number // 32**index % 32] for index in reversed(range(26)))


def finished_attempt(hour: int, outcome: AttemptOutcome = SUCCEEDED, *, code: str | None = None) -> FinishedAttempt:
    """An attempt as the store records it: a later hour has a later version."""
    at = ENDED + hour * HOUR
    return FinishedAttempt(run_id=f"run-{hour}", at=at, outcome=outcome, version=encode_ulid(hour), code_version=code)


def fold_one(before: PreviousRow, attempt: FinishedAttempt) -> PartitionStatus:
    return fold_attempt(before, attempt, asset_partition=ASSET_PARTITION, values=VALUES)


def fold_all(
    attempts: Sequence[FinishedAttempt], before: PreviousRow = None, folding: FoldFunction = fold_one
) -> PartitionStatus:
    assert before or attempts
    row = before
    for each in attempts:
        row = folding(row, each)
    assert row is not None
    return row


def attempt_columns(row: PartitionStatus) -> tuple[object, ...]:
    return row.last_attempt_at, row.last_attempt_run_id, row.last_attempt_outcome


def materialization_columns(row: PartitionStatus) -> tuple[object, ...]:
    return row.last_materialization_at, row.last_materialization_run_id, row.last_materialization_code_version


def staleness_columns(row: PartitionStatus) -> tuple[object, ...]:
    return row.stale_since, row.stale_reason_code


def expected_row(attempts: Sequence[FinishedAttempt]) -> PartitionStatus:
    """The row after these attempts, computed at once and not step by step."""
    last_attempt = max(attempts, key=lambda each: (each.at, each.run_id, each.outcome))
    materializing = [each for each in attempts if each.code_version is not None]
    last_materialization = max(
        materializing, key=lambda each: (each.at, each.run_id, each.code_version or ""), default=None
    )
    return PartitionStatus(
        tenant_id="default",
        workspace_id="google_ads",
        asset_key="warehouse/campaign_daily",
        partition_key="1234567890|2026-02-03",
        last_materialization_run_id=last_materialization.run_id if last_materialization else None,
        last_materialization_at=last_materialization.at if last_materialization else None,
        last_materialization_code_version=last_materialization.code_version if last_materialization else None,
        last_attempt_run_id=last_attempt.run_id,
        last_attempt_at=last_attempt.at,
        last_attempt_outcome=last_attempt.outcome,
        partition_values={"customer": "1234567890", "date": "2026-02-03"},
        row_version=max(each.version for each in attempts),
    )


# Few values, so that ties are common. Versions do not follow the times, unlike those of a real store.
zones = st.sampled_from([UTC, timezone(timedelta(hours=-7)), ZoneInfo("Europe/Paris")])
hours = st.integers(0, 3)
attempt_events = st.sampled_from(
    [(SUCCEEDED, None), (SUCCEEDED, "code-1"), (SUCCEEDED, "code-2"), (FAILED, None), (CANCELLED, None)]
)
any_finish = st.builds(
    lambda hour, zone, run_id, ending, version: FinishedAttempt(
        run_id=run_id,
        at=(ENDED + hour * HOUR).astimezone(zone),
        outcome=ending[0],
        code_version=ending[1],
        version=encode_ulid(version),
    ),
    hours,
    zones,
    st.sampled_from(["run-1", "run-2"]),
    attempt_events,
    st.integers(0, 3),
)
# Attempts as a store records them, in increasing order of time and version.
histories = st.lists(attempt_events, min_size=1, max_size=12).map(
    lambda ended: [finished_attempt(hour, ending[0], code=ending[1]) for hour, ending in enumerate(ended, start=1)]
)
# Previous rows: none, or the result of earlier attempts, possibly with the staleness columns of a sweep.
rows = st.none() | st.builds(
    lambda attempts, marked: replace(
        fold_all(attempts),
        stale_since=ENDED if marked else None,
        stale_reason_code=StaleReason.CODE_CHANGED if marked else None,
    ),
    st.lists(any_finish, min_size=1, max_size=3),
    st.booleans(),
)


@pytest.mark.invariant("P1", "P2", "P3")
@given(attempts=st.lists(any_finish, min_size=1, max_size=6), before=rows)
def test_every_order_gives_same_row(attempts: list[FinishedAttempt], before: PreviousRow) -> None:
    """Up to six attempts, some of them equal, give one row in each of their orders."""
    row = fold_all(attempts, before)
    assert all(fold_all(order, before) == row for order in permutations(attempts))
    if before is None:
        assert row == expected_row(attempts)


@pytest.mark.invariant("P1", "P2", "P3")
@given(data=st.data(), attempts=st.lists(any_finish, min_size=7, max_size=30), before=rows)
def test_repetition_and_order_do_not_matter(
    data: st.DataObject, attempts: list[FinishedAttempt], before: PreviousRow
) -> None:
    """Many attempts give the same row when they are shuffled and when any are repeated."""
    again = data.draw(st.permutations(attempts + data.draw(st.lists(st.sampled_from(attempts)))))
    row = fold_all(attempts, before)
    assert fold_all(again, before) == row
    assert fold_all(again, row) == row
    if before is None:
        assert row == expected_row(attempts)


@pytest.mark.invariant("P3")
@given(one=st.lists(any_finish, min_size=1, max_size=8), other=st.lists(any_finish, max_size=8))
def test_folding_continues_from_row(one: list[FinishedAttempt], other: list[FinishedAttempt]) -> None:
    """Folding from a row equals folding from the start: there is no state outside the row."""
    assert fold_all(other, fold_all(one)) == expected_row([*one, *other])


@pytest.mark.invariant("P1", "P2")
@given(attempts=histories)
def test_attempt_changes_only_its_columns(attempts: list[FinishedAttempt]) -> None:
    """In the store's order every attempt is the last attempt; only one with a code version is the materialization."""
    row: PreviousRow = None
    last_materialization: tuple[object, ...] = (None, None, None)
    for each in attempts:
        row = fold_one(row, each)
        last_materialization = (
            (each.at, each.run_id, each.code_version) if each.code_version else last_materialization
        )
        assert materialization_columns(row) == last_materialization
        assert attempt_columns(row) == (each.at, each.run_id, each.outcome)
        assert row.row_version == each.version


@pytest.mark.invariant("P1")
@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_attempt_without_materialization_changes_attempt_only(outcome: AttemptOutcome) -> None:
    """A failure, a cancellation and a success without data keep the materialization and staleness columns."""
    before = replace(
        fold_one(None, finished_attempt(1, code="code-1")),
        stale_since=ENDED,
        stale_reason_code=StaleReason.UPSTREAM_CHANGED,
    )
    after = fold_one(before, finished_attempt(2, outcome))
    assert (materialization_columns(after), staleness_columns(after)) == (
        materialization_columns(before),
        staleness_columns(before),
    )
    assert attempt_columns(after) == (ENDED + 2 * HOUR, "run-2", outcome)


def fold_with_one_comparison(before: PreviousRow, attempts: FinishedAttempt) -> PartitionStatus:
    """A wrong fold that ignores every attempt older than the row."""
    return before if before is not None and attempts.version <= before.row_version else fold_one(before, attempts)


@pytest.mark.invariant("P3", "P4")
@pytest.mark.parametrize("outcome", [FAILED, CANCELLED])
def test_late_success_is_materialization_not_attempt(outcome: AttemptOutcome) -> None:
    """A success folded after a newer attempt becomes the materialization and not the last attempt."""
    last_materialization, last_attempt = finished_attempt(1, code="code-1"), finished_attempt(2, outcome)
    late = fold_all([last_attempt, last_materialization])
    assert late == fold_all([last_materialization, last_attempt])
    assert materialization_columns(late) == (last_materialization.at, "run-1", "code-1")
    assert attempt_columns(late) == (last_attempt.at, "run-2", outcome)
    assert late.row_version == last_attempt.version
    lossy = fold_all([last_attempt, last_materialization], folding=fold_with_one_comparison)
    assert materialization_columns(lossy) == (None, None, None)
    assert lossy != fold_all([last_materialization, last_attempt], folding=fold_with_one_comparison)


@pytest.mark.invariant("P4")
def test_older_success_keeps_newer_materialization() -> None:
    """An older success changes neither the newer materialization nor its staleness columns."""
    newer = replace(
        fold_one(None, finished_attempt(5, code="code-2")),
        stale_since=ENDED,
        stale_reason_code=StaleReason.UPSTREAM_CHANGED,
    )
    assert fold_one(newer, finished_attempt(4, code="code-1")) == newer


@pytest.mark.invariant("P2", "P3")
def test_attempts_are_ordered_by_instant() -> None:
    """When clocks go back, an attempt in the second of two equal hours is newer than any in the first."""
    paris = ZoneInfo("Europe/Paris")
    first = replace(finished_attempt(1, code="c"), at=datetime(2026, 10, 25, 2, 30, tzinfo=paris))
    second = replace(finished_attempt(2, code="c"), at=datetime(2026, 10, 25, 2, 15, tzinfo=paris, fold=1))
    for order in permutations([first, second]):
        row = fold_all(order)
        assert (row.last_attempt_run_id, row.last_materialization_run_id) == ("run-2", "run-2")
        assert row.last_attempt_at == datetime(2026, 10, 25, 1, 15, tzinfo=UTC)


def test_new_materialization_clears_staleness() -> None:
    """A newer materialization clears `stale_since` and `stale_reason_code`."""
    stale = replace(
        fold_one(None, finished_attempt(1, code="c")), stale_since=ENDED, stale_reason_code=StaleReason.CODE_CHANGED
    )
    assert staleness_columns(fold_one(stale, finished_attempt(2, code="c"))) == (None, None)


def test_attempt_of_another_row_is_refused() -> None:
    """An attempt at one asset partition cannot change the row of another."""
    row = fold_one(None, finished_attempt(1))
    for field in ("tenant_id", "workspace_id", "asset_key", "partition_key"):
        with pytest.raises(ValueError, match="cannot change the row"):
            fold_attempt(
                row, finished_attempt(2), asset_partition=ASSET_PARTITION._replace(**{field: "other"}), values=VALUES
            )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"at": ENDED.replace(tzinfo=None)}, ValueError, "needs a time zone"),
        ({"outcome": FAILED}, ValueError, "ended as FAILED has no code version"),
        ({"outcome": CANCELLED}, ValueError, "ended as CANCELLED has no code version"),
        ({"version": "1"}, BadName, "row_version"),
    ],
)
def test_invalid_attempt_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """An attempt needs a time zone and a valid version; only a success may have a code version."""
    with pytest.raises(error, match=message):
        replace(finished_attempt(1, code="code-1"), **changes)


def test_row_has_columns_of_adr_026() -> None:
    """The row has the fourteen columns of ADR-026 in their order, and no hidden one."""
    assert [field.name for field in fields(PartitionStatus)] == [
        *("tenant_id", "workspace_id", "asset_key", "partition_key"),
        *("last_materialization_run_id", "last_materialization_at", "last_materialization_code_version"),
        *("last_attempt_run_id", "last_attempt_at", "last_attempt_outcome"),
        *("stale_since", "stale_reason_code", "partition_values", "row_version"),
    ]


def test_sources_assets_and_tenants_have_own_rows() -> None:
    """A row is named as Dagster names its partition, and differs by asset, source, tenant and workspace."""
    key = builders.key("42")
    expected = AssetPartition(
        tenant_id="default",
        workspace_id="google_ads",
        asset_key="raw/campaign_daily",
        partition_key="42|2026-02-03",
    )
    assert make_asset_partition(RAW, key) == expected
    assert make_asset_partition(WAREHOUSE, key) == expected._replace(asset_key="warehouse/campaign_daily")
    assert make_asset_partition(RAW, replace(key, source="bing_ads")) == expected._replace(workspace_id="bing_ads")
    tenancy = Tenancy(tenant_id="acme", workspace_id="eu")
    assert make_asset_partition(RAW, key, tenancy) == expected._replace(tenant_id="acme", workspace_id="eu")
    assert partition_values(key) == {"customer": "42", "date": "2026-02-03"}


# The display status, by the outcome of the last attempt and its time relative to the materialization.
DISPLAY_TEXT = """
    outcome    attempt  fresh                             stale
    SUCCEEDED  before   Materialized                      Stale
    SUCCEEDED  same     Materialized                      Stale
    SUCCEEDED  after    Materialized                      Stale
    FAILED     before   Materialized                      Stale
    FAILED     same     Materialized                      Stale
    FAILED     after    MaterializedButLastAttemptFailed  MaterializedButLastAttemptFailed
    CANCELLED  before   Materialized                      Stale
    CANCELLED  same     Materialized                      Stale
    CANCELLED  after    Materialized                      Stale
    -          -        Materialized                      Stale
"""
WHEN = {"before": ENDED - TICK, "same": ENDED, "after": ENDED + TICK, "-": None}
STALE = Staleness(since=ENDED, reason=StaleReason.CODE_CHANGED, reasons=(StaleReason.CODE_CHANGED,))


def shown() -> Iterator[tuple[PreviousRow, Staleness | None, DisplayStatus]]:
    _, *lines = map(str.split, DISPLAY_TEXT.strip().splitlines())
    for outcome, when, *statuses in lines:
        row = replace(
            fold_one(None, finished_attempt(0, code="code-1")),
            last_attempt_at=WHEN[when],
            last_attempt_outcome=None if outcome == "-" else AttemptOutcome(outcome),
        )
        never = replace(row, last_materialization_at=None)
        for stale, status in zip((None, STALE), statuses, strict=True):
            yield row, stale, DisplayStatus(status)
            yield never, stale, DisplayStatus.NEVER_MATERIALIZED
    yield None, None, DisplayStatus.NEVER_MATERIALIZED
    yield None, STALE, DisplayStatus.NEVER_MATERIALIZED


@pytest.mark.invariant("P5")
def test_display_status_follows_table() -> None:
    """The display status for every outcome, before and after the materialization, fresh and stale."""
    cells = list(shown())
    last_attempt = {(row.last_attempt_outcome, row.last_attempt_at) for row, _, _ in cells if row is not None}
    assert last_attempt == {*product(AttemptOutcome, (ENDED - TICK, ENDED, ENDED + TICK)), (None, None)}
    assert {status for _, _, status in cells} == set(DisplayStatus)
    assert [display_status(row, stale) for row, stale, _ in cells] == [status for _, _, status in cells]


def test_deadline_is_first_after_materialization() -> None:
    """A deadline is a number of days after the day's end; a materialization at a deadline satisfies it."""
    first, second, last = (datetime(2026, *day, tzinfo=UTC) for day in ((2, 5), (2, 11), (3, 6)))
    paris = timezone(timedelta(hours=1))
    for made_at, expected in [
        (ENDED - 12 * HOUR, first),
        (ENDED, first),
        (first - TICK, first),
        (datetime(2026, 2, 5, 0, 59, tzinfo=paris), first),
        (datetime(2026, 2, 5, 1, 0, tzinfo=paris), second),
        (first, second),
        (first + TICK, second),
        (second, last),
        (last - TICK, last),
        (last, None),
        (last + 1000 * HOUR, None),
    ]:
        assert POLICY.deadline(DAY, made_at) == expected
    assert FreshnessPolicy().deadline(DAY, ENDED) is None


def test_no_deadline_beyond_calendar() -> None:
    """A deadline after the last date of the calendar is None and no error."""
    near_the_end = FreshnessPolicy(reread_after_days=(1, 10**12))
    assert near_the_end.deadline(date(9999, 12, 29), ENDED) == datetime(9999, 12, 31, tzinfo=UTC)
    for day in (date(9999, 12, 30), date.max):
        assert near_the_end.deadline(day, ENDED) is None
    assert near_the_end.deadline(DAY, datetime(2026, 2, 5, tzinfo=UTC)) is None


@pytest.mark.parametrize("days", [(0,), (-1, 2), (1, 1), (3, 2), (1.5,), (True,), ("1",)], ids=str)
def test_invalid_policy_is_refused(days: Any) -> None:
    """The days of a policy are whole, at least 1, and ascending."""
    with pytest.raises(ValueError, match=r"^reread_after_days: "):
        FreshnessPolicy(reread_after_days=days)


MADE_AT = ENDED + HOUR
ROW = replace(fold_one(None, finished_attempt(1, code="code-1")), last_attempt_outcome=FAILED)
DUE = datetime(2026, 2, 5, tzinfo=UTC)
UPSTREAM_AT = MADE_AT + HOUR
SEEN_AT = MADE_AT + 2 * HOUR
BEGAN = dict(zip(StaleReason, (DUE, UPSTREAM_AT, SEEN_AT), strict=True))
ALL_REASONS = [StaleReason.FRESHNESS_POLICY, StaleReason.UPSTREAM_CHANGED, StaleReason.CODE_CHANGED]


def compute_staleness(row: PreviousRow = ROW, **changes: Any) -> Staleness | None:
    """The staleness, by default before the deadline, with nothing changed upstream or in the code."""
    arguments: dict[str, Any] = {
        "policy": POLICY,
        "upstream_at": MADE_AT,
        "code": CodeVersion(version="code-1", since=ENDED),
        "now": DUE,
    }
    return find_staleness(row, day=DAY, **(arguments | changes))


@pytest.mark.invariant("P6")
@pytest.mark.parametrize(
    "reasons", [each for size in range(4) for each in combinations(ALL_REASONS, size)], ids="-".join
)
def test_first_reason_sets_since(reasons: tuple[StaleReason, ...]) -> None:
    """All reasons that hold are listed in the order policy, upstream, code; the first sets `since`."""
    changes: dict[StaleReason, dict[str, Any]] = {
        StaleReason.FRESHNESS_POLICY: {"now": DUE + TICK},
        StaleReason.UPSTREAM_CHANGED: {"upstream_at": UPSTREAM_AT},
        StaleReason.CODE_CHANGED: {"code": CodeVersion(version="code-2", since=SEEN_AT)},
    }
    stale = compute_staleness(**dict(chain.from_iterable(changes[each].items() for each in reasons)))
    expected = Staleness(since=BEGAN[reasons[0]], reason=reasons[0], reasons=reasons) if reasons else None
    assert stale == expected


@pytest.mark.invariant("P9")
@pytest.mark.parametrize("day", [DAY, date(2024, 2, 29), date(2026, 3, 28), date(2026, 10, 24), date(1, 1, 1)])
@pytest.mark.parametrize("days", POLICY.reread_after_days)
def test_partition_is_stale_after_deadline(day: date, days: int) -> None:
    """At the deadline a partition is current; one microsecond later it is stale since the deadline."""
    due = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=days + 1)
    row = replace(ROW, last_materialization_at=due - TICK)
    arguments: dict[str, Any] = {"day": day, "policy": POLICY, "upstream_at": None, "code": None}
    for now in (due - TICK, due):
        assert find_staleness(row, now=now, **arguments) is None
    policy = StaleReason.FRESHNESS_POLICY
    expected = Staleness(since=due, reason=policy, reasons=(policy,))
    for now in (due + TICK, (due + TICK).astimezone(ZoneInfo("America/New_York")), due + 1000 * HOUR):
        assert find_staleness(row, now=now, **arguments) == expected
    assert find_staleness(replace(row, last_materialization_at=due), now=due + TICK, **arguments) is None


@pytest.mark.invariant("P6")
def test_unchanged_upstream_and_code_are_not_stale() -> None:
    """Upstream data of the same time or none, and no code version, make nothing stale."""
    assert compute_staleness(upstream_at=None, code=None, policy=FreshnessPolicy(), now=ENDED + 9999 * HOUR) is None
    assert compute_staleness(upstream_at=MADE_AT) is None
    upstream, code = StaleReason.UPSTREAM_CHANGED, StaleReason.CODE_CHANGED
    assert compute_staleness(upstream_at=MADE_AT + TICK) == Staleness(
        since=MADE_AT + TICK, reason=upstream, reasons=(upstream,)
    )
    older = CodeVersion(version="code-2", since=ENDED - HOUR)  # first seen before the materialization
    assert compute_staleness(code=older) == Staleness(since=MADE_AT, reason=code, reasons=(code,))


@pytest.mark.invariant("P6")
def test_never_materialized_is_not_stale() -> None:
    """Without a materialization nothing is stale, whatever was attempted or changed."""
    everything: dict[str, Any] = {"now": DUE + TICK, "upstream_at": UPSTREAM_AT, "code": None}
    assert compute_staleness(**everything) is not None
    assert compute_staleness(None, **everything) is None
    assert compute_staleness(fold_one(None, finished_attempt(1, FAILED)), **everything) is None


instants = st.integers(0, 40 * 24).map(lambda hour: ENDED + hour * HOUR)


@pytest.mark.invariant("P6")
@given(
    made_at=instants,
    upstream_at=st.none() | instants,
    code=st.none() | st.builds(CodeVersion, version=st.sampled_from(["code-1", "code-2"]), since=instants),
    now=instants,
    wait=st.integers(0, 40 * 24),
    mark=st.none() | st.tuples(instants, st.sampled_from(StaleReason)),
)
def test_staleness_ignores_sweep_columns(
    made_at: datetime,
    upstream_at: datetime | None,
    code: CodeVersion | None,
    now: datetime,
    wait: int,
    mark: tuple[datetime, StaleReason] | None,
) -> None:
    """The result does not depend on the sweep's columns; as time passes, only a deadline can be added."""
    row = replace(ROW, last_materialization_at=made_at)
    since, reason = mark or (None, None)
    marked = replace(row, stale_since=since, stale_reason_code=reason)
    arguments: dict[str, Any] = {"upstream_at": upstream_at, "code": code}
    stale = compute_staleness(row, now=now, **arguments)
    assert compute_staleness(row, now=now, **arguments) == stale == compute_staleness(marked, now=now, **arguments)
    assert display_status(row, stale) == display_status(marked, stale)
    later = compute_staleness(row, now=now + wait * HOUR, **arguments)
    if stale is not None:
        assert later is not None
        assert made_at <= stale.since
        assert set(stale.reasons) <= set(later.reasons)
        assert set(later.reasons) - set(stale.reasons) <= {StaleReason.FRESHNESS_POLICY}
        assert stale.since == later.since or stale.reason is not later.reason


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
numbers = st.integers(0, 2**128 - 1)
random_parts = st.integers(0, 2**80 - 1)
clocks = st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - zone added


def milliseconds(number: int) -> datetime:
    return EPOCH + timedelta(milliseconds=number)


def test_version_is_a_standard_ulid() -> None:
    """The published example of a ULID is decoded to its time and encoded from it."""
    text, time = "01ARYZ6S41TSV4RRFFQ69G5FAV", 1469918176385
    number = row_version_to_int(text)
    assert number >> 80 == time
    assert new_row_version(milliseconds(time), after=None, randomness=number % 2**80) == text


@pytest.mark.invariant("P8")
@given(one=numbers, other=numbers)
def test_versions_sort_by_number(one: int, other: int) -> None:
    """A version decodes to the number it encodes, and text order equals numeric order."""
    assert row_version_to_int(encode_ulid(one)) == one
    assert (encode_ulid(one) < encode_ulid(other)) is (one < other)


@example(milli=1013, micro=0, randomness=0)  # float seconds would round this one down
@given(milli=st.integers(0, 253402300799999), micro=st.integers(0, 999), randomness=random_parts)
def test_first_version_has_time_and_random_part(milli: int, micro: int, randomness: int) -> None:
    """Without a previous version, a version is the clock's millisecond, rounded down, and the random part."""
    now = milliseconds(milli) + micro * TICK
    assert new_row_version(now, after=None, randomness=randomness) == encode_ulid(milli << 80 | randomness)


def test_time_before_epoch_counts_as_epoch() -> None:
    """A time before the first ULID counts as the first one."""
    assert new_row_version(EPOCH - HOUR, after=None, randomness=7) == encode_ulid(7)


@pytest.mark.invariant("P8")
@given(writes=st.lists(st.tuples(clocks, random_parts), max_size=30))
def test_versions_only_grow(writes: list[tuple[datetime, int]]) -> None:
    """Whatever the clock does, each version is greater than the one before, by as little as possible."""
    versions: list[str] = []
    for now, randomness in writes:
        before = versions[-1] if versions else None
        drawn = new_row_version(now, after=None, randomness=randomness)
        version = new_row_version(now, after=before, randomness=randomness)
        assert version == drawn or (before is not None and version == encode_ulid(row_version_to_int(before) + 1))
        assert before is None or version == max(drawn, encode_ulid(row_version_to_int(before) + 1))
        versions.append(version)
    assert all(earlier < later for earlier, later in pairwise(versions))


@pytest.mark.invariant("P8")
@pytest.mark.parametrize("back", [timedelta(0), TICK, HOUR, 20000 * 24 * HOUR], ids=str)
def test_versions_grow_when_clock_stands_or_goes_back(back: timedelta) -> None:
    """A clock that stands still or goes back gives the next number, also past the end of the random part."""
    full = 2**80 - 1
    before = new_row_version(ENDED, after=None, randomness=full)
    after = new_row_version(ENDED - back, after=before, randomness=0)
    assert row_version_to_int(after) == row_version_to_int(before) + 1
    assert after > before


@pytest.mark.invariant("P8")
def test_no_version_after_the_last() -> None:
    """After the greatest ULID a new version is an OverflowError, never a smaller version."""
    assert new_row_version(ENDED, after=encode_ulid(2**128 - 2), randomness=0) == LAST_VERSION
    with pytest.raises(OverflowError, match=LAST_VERSION):
        new_row_version(ENDED, after=LAST_VERSION, randomness=0)


@pytest.mark.parametrize("randomness", [-1, 2**80])
def test_random_part_has_eighty_bits(randomness: int) -> None:
    """A random part of more than 80 bits is refused, because it would change the time."""
    with pytest.raises(ValueError, match="does not fit 80 bits"):
        new_row_version(ENDED, after=None, randomness=randomness)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,  # would be the 129th bit
        "Z" * 26,
        *(f"01ARYZ6S41TSV4RRFFQ69G5FA{wrong}" for wrong in "ILOUilou-_ \n\x00v\u0661\uff11"),
        "01aryz6s41tsv4rrffq69g5fav",
        " 1ARYZ6S41TSV4RRFFQ69G5FAV",
        "+1ARYZ6S41TSV4RRFFQ69G5FAV",
        "01ARYZ6S41TSV4RRFFQ69G5FAV\n",
        "01ARYZ6S41_TSV4RRFFQ69G5FA",
    ],
    ids=ascii,
)
def test_only_canonical_ulid_is_a_version(text: str) -> None:
    """Another length, letter or case, and a number too large, are refused: versions are compared as text."""
    for attempt in (row_version_to_int, lambda each: new_row_version(ENDED, after=each, randomness=0)):
        with pytest.raises(BadName) as caught:
            attempt(text)
        assert (caught.value.field, caught.value.value) == ("row_version", text)


@pytest.mark.parametrize(
    ("days", "lookback", "expected"),
    [
        ((), 30, (31,)),
        ((7,), 30, (7, 31)),
        ((7, 30), 30, (7, 31)),
        ((7, 30), 14, (7, 30)),
        ((7, 31), 30, (7, 31)),
        ((3, 7), 0, (3, 7)),
        ((), 0, (1,)),
    ],
)
def test_last_reread_is_after_the_conversion_window(
    days: tuple[int, ...], lookback: int, expected: tuple[int, ...]
) -> None:
    """A longer window of the policy stays. A reread on the window's last day moves to the day after it."""
    assert FreshnessPolicy(reread_after_days=days).settling_after(lookback).reread_after_days == expected


def test_deadline_counts_from_the_end_of_the_accounts_day() -> None:
    """The day ends elsewhere at another time than midnight UTC."""
    ended = ENDED + timedelta(hours=8)
    policy = FreshnessPolicy(reread_after_days=(7,))
    assert policy.deadline(DAY, ENDED, day_end=ended) == ended + timedelta(days=7)
    assert policy.deadline(DAY, ended + timedelta(days=7), day_end=ended) is None
