"""Finishes, in every order, against what the newest of each kind says; versions against a second spelling of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import chain, combinations, pairwise, permutations, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ads_pipeline.domain.freshness import (
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
    asset_partition,
    display,
    fold,
    mint,
    partition_values,
    staleness,
    version_number,
)
from ads_pipeline.errors import BadName
from ads_pipeline_tests import builders

DAY = builders.DAY
ENDED = datetime(2026, 2, 4, tzinfo=UTC)  # when DAY has
PLACE = asset_partition(WAREHOUSE, builders.key())
VALUES = partition_values(builders.key())
TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
SUCCEEDED, FAILED, CANCELLED = AttemptOutcome
POLICY = FreshnessPolicy(reread_after_days=(1, 7, 30))
LAST_VERSION = "7" + 25 * "Z"

Heard = PartitionStatus | None
Folding = Callable[[Heard, FinishedAttempt], PartitionStatus]


def spelled(number: int) -> str:
    """A ULID as its definition has it, one digit at a time."""
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # no I, L, O, U
    return "".join(digits[number // 32**place % 32] for place in reversed(range(26)))


def finish(hour: int, outcome: AttemptOutcome = SUCCEEDED, *, code: str | None = None) -> FinishedAttempt:
    """What the store stamps: a later hour has a later version."""
    at = ENDED + hour * HOUR
    return FinishedAttempt(run_id=f"run-{hour}", at=at, outcome=outcome, version=spelled(hour), code_version=code)


def hear(before: Heard, heard: FinishedAttempt) -> PartitionStatus:
    return fold(before, heard, place=PLACE, values=VALUES)


def hear_all(heard: Sequence[FinishedAttempt], before: Heard = None, folding: Folding = hear) -> PartitionStatus:
    assert before or heard
    row = before
    for each in heard:
        row = folding(row, each)
    assert row is not None
    return row


def attempt_of(row: PartitionStatus) -> tuple[object, ...]:
    return row.last_attempt_at, row.last_attempt_run_id, row.last_attempt_outcome


def materialization_of(row: PartitionStatus) -> tuple[object, ...]:
    return row.last_materialization_at, row.last_materialization_run_id, row.last_materialization_code_version


def stale_of(row: PartitionStatus) -> tuple[object, ...]:
    return row.stale_since, row.stale_reason_code


def expected_of(heard: Sequence[FinishedAttempt]) -> PartitionStatus:
    """The row of these finishes, said at once and not step by step."""
    tried = max(heard, key=lambda each: (each.at, each.run_id, each.outcome))
    making = [each for each in heard if each.code_version is not None]
    made = max(making, key=lambda each: (each.at, each.run_id, each.code_version or ""), default=None)
    return PartitionStatus(
        tenant_id="default",
        workspace_id="google_ads",
        asset_key="warehouse/campaign_daily",
        partition_key="1234567890|2026-02-03",
        last_materialization_run_id=made.run_id if made else None,
        last_materialization_at=made.at if made else None,
        last_materialization_code_version=made.code_version if made else None,
        last_attempt_run_id=tried.run_id,
        last_attempt_at=tried.at,
        last_attempt_outcome=tried.outcome,
        partition_values={"customer": "1234567890", "date": "2026-02-03"},
        row_version=max(each.version for each in heard),
    )


# Few words, so that ties are common; versions that do not follow the times, as no store of ours would stamp them.
zones = st.sampled_from([UTC, timezone(timedelta(hours=-7)), ZoneInfo("Europe/Paris")])
hours = st.integers(0, 3)
endings = st.sampled_from(
    [(SUCCEEDED, None), (SUCCEEDED, "code-1"), (SUCCEEDED, "code-2"), (FAILED, None), (CANCELLED, None)]
)
any_finish = st.builds(
    lambda hour, zone, run_id, ending, version: FinishedAttempt(
        run_id=run_id,
        at=(ENDED + hour * HOUR).astimezone(zone),
        outcome=ending[0],
        code_version=ending[1],
        version=spelled(version),
    ),
    hours,
    zones,
    st.sampled_from(["run-1", "run-2"]),
    endings,
    st.integers(0, 3),
)
# As the store stamps them, one after the other.
histories = st.lists(endings, min_size=1, max_size=12).map(
    lambda ended: [finish(hour, ending[0], code=ending[1]) for hour, ending in enumerate(ended, start=1)]
)
# What may already be there: nothing, or what earlier finishes left, perhaps with a sweep's mark on it.
rows = st.none() | st.builds(
    lambda heard, marked: replace(
        hear_all(heard),
        stale_since=ENDED if marked else None,
        stale_reason_code=StaleReason.CODE_CHANGED if marked else None,
    ),
    st.lists(any_finish, min_size=1, max_size=3),
    st.booleans(),
)


@pytest.mark.invariant("P1", "P2", "P3")
@given(heard=st.lists(any_finish, min_size=1, max_size=6), before=rows)
def test_every_order_leaves_the_same_row(heard: list[FinishedAttempt], before: Heard) -> None:
    """Up to six finishes, some of them the same, leave one row in each of their orders."""
    row = hear_all(heard, before)
    assert all(hear_all(order, before) == row for order in permutations(heard))
    if before is None:
        assert row == expected_of(heard)


@pytest.mark.invariant("P1", "P2", "P3")
@given(data=st.data(), heard=st.lists(any_finish, min_size=7, max_size=30), before=rows)
def test_repetition_and_order_change_nothing(
    data: st.DataObject, heard: list[FinishedAttempt], before: Heard
) -> None:
    """Many finishes leave the row they left the first time, shuffled and with any of them heard again."""
    again = data.draw(st.permutations(heard + data.draw(st.lists(st.sampled_from(heard)))))
    row = hear_all(heard, before)
    assert hear_all(again, before) == row
    assert hear_all(again, row) == row
    if before is None:
        assert row == expected_of(heard)


@pytest.mark.invariant("P3")
@given(one=st.lists(any_finish, min_size=1, max_size=8), other=st.lists(any_finish, max_size=8))
def test_a_row_grows_from_where_it_is(one: list[FinishedAttempt], other: list[FinishedAttempt]) -> None:
    """Hearing on from a row is hearing everything from the start: nothing is remembered outside the row."""
    assert hear_all(other, hear_all(one)) == expected_of([*one, *other])


@pytest.mark.invariant("P1", "P2")
@given(heard=histories)
def test_each_finish_moves_what_it_may(heard: list[FinishedAttempt]) -> None:
    """In the store's order every finish is the last attempt, and only one that made something the materialization."""
    row: Heard = None
    made: tuple[object, ...] = (None, None, None)
    for each in heard:
        row = hear(row, each)
        made = (each.at, each.run_id, each.code_version) if each.code_version else made
        assert materialization_of(row) == made
        assert attempt_of(row) == (each.at, each.run_id, each.outcome)
        assert row.row_version == each.version


@pytest.mark.invariant("P1")
@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_an_attempt_that_made_nothing_is_an_attempt_only(outcome: AttemptOutcome) -> None:
    """A failure, a cancellation and a success without rows to make leave materialization and sweep's mark alone."""
    before = replace(
        hear(None, finish(1, code="code-1")), stale_since=ENDED, stale_reason_code=StaleReason.UPSTREAM_CHANGED
    )
    after = hear(before, finish(2, outcome))
    assert (materialization_of(after), stale_of(after)) == (materialization_of(before), stale_of(before))
    assert attempt_of(after) == (ENDED + 2 * HOUR, "run-2", outcome)


def one_guard(before: Heard, heard: FinishedAttempt) -> PartitionStatus:
    """The fold that looks right: what is older than the row is dropped whole."""
    return before if before is not None and heard.version <= before.row_version else hear(before, heard)


@pytest.mark.invariant("P3", "P4")
@pytest.mark.parametrize("outcome", [FAILED, CANCELLED])
def test_a_late_success_counts_as_made_and_not_as_tried(outcome: AttemptOutcome) -> None:
    """A success heard after a newer attempt is what was made, and not the last attempt. One guard loses it."""
    made, tried = finish(1, code="code-1"), finish(2, outcome)
    late = hear_all([tried, made])
    assert late == hear_all([made, tried])
    assert materialization_of(late) == (made.at, "run-1", "code-1")
    assert attempt_of(late) == (tried.at, "run-2", outcome)
    assert late.row_version == tried.version
    lossy = hear_all([tried, made], folding=one_guard)
    assert materialization_of(lossy) == (None, None, None)
    assert lossy != hear_all([made, tried], folding=one_guard)


@pytest.mark.invariant("P4")
def test_an_older_success_takes_nothing_from_a_newer_one() -> None:
    """What was made later stays, and so does the mark a sweep put on it."""
    newer = replace(
        hear(None, finish(5, code="code-2")), stale_since=ENDED, stale_reason_code=StaleReason.UPSTREAM_CHANGED
    )
    assert hear(newer, finish(4, code="code-1")) == newer


@pytest.mark.invariant("P2", "P3")
def test_the_newest_is_so_by_the_instant() -> None:
    """Where clocks are put back, a finish in the second of two like hours is newer than any in the first."""
    paris = ZoneInfo("Europe/Paris")
    first = replace(finish(1, code="c"), at=datetime(2026, 10, 25, 2, 30, tzinfo=paris))
    second = replace(finish(2, code="c"), at=datetime(2026, 10, 25, 2, 15, tzinfo=paris, fold=1))
    for order in permutations([first, second]):
        row = hear_all(order)
        assert (row.last_attempt_run_id, row.last_materialization_run_id) == ("run-2", "run-2")
        assert row.last_attempt_at == datetime(2026, 10, 25, 1, 15, tzinfo=UTC)


def test_what_is_made_anew_is_not_stale() -> None:
    """A newer materialization takes away a sweep's mark, the time and the reason."""
    stale = replace(hear(None, finish(1, code="c")), stale_since=ENDED, stale_reason_code=StaleReason.CODE_CHANGED)
    assert stale_of(hear(stale, finish(2, code="c"))) == (None, None)


def test_a_finish_is_folded_into_its_own_row() -> None:
    """A finish at one place is never told to the row of another."""
    row = hear(None, finish(1))
    for field in ("tenant_id", "workspace_id", "asset_key", "partition_key"):
        with pytest.raises(ValueError, match="does not belong"):
            fold(row, finish(2), place=replace(PLACE, **{field: "other"}), values=VALUES)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"at": ENDED.replace(tzinfo=None)}, ValueError, "no zone"),
        ({"outcome": FAILED}, ValueError, "FAILED materializes nothing"),
        ({"outcome": CANCELLED}, ValueError, "CANCELLED materializes nothing"),
        ({"version": "1"}, BadName, "row_version"),
    ],
)
def test_a_finish_that_contradicts_itself_is_refused(
    changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    """A finish has an instant and a version, and a code version only where something was made."""
    with pytest.raises(error, match=said):
        replace(finish(1, code="code-1"), **changes)


def test_a_row_has_the_columns_of_the_decision() -> None:
    """Fourteen columns, in their order, and no hidden one."""
    assert [field.name for field in fields(PartitionStatus)] == [
        *("tenant_id", "workspace_id", "asset_key", "partition_key"),
        *("last_materialization_run_id", "last_materialization_at", "last_materialization_code_version"),
        *("last_attempt_run_id", "last_attempt_at", "last_attempt_outcome"),
        *("stale_since", "stale_reason_code", "partition_values", "row_version"),
    ]


def test_two_sources_share_no_row() -> None:
    """A row is named as Dagster names its partition, apart from those of other assets, sources and spaces."""
    key = builders.key("42")
    expected = AssetPartition(
        tenant_id="default",
        workspace_id="google_ads",
        asset_key="raw/campaign_daily",
        partition_key="42|2026-02-03",
    )
    assert asset_partition(RAW, key) == expected
    assert asset_partition(WAREHOUSE, key) == replace(expected, asset_key="warehouse/campaign_daily")
    assert asset_partition(RAW, replace(key, source="bing_ads")) == replace(expected, workspace_id="bing_ads")
    space = Tenancy(tenant_id="acme", workspace_id="eu")
    assert asset_partition(RAW, key, space) == replace(expected, tenant_id="acme", workspace_id="eu")
    assert partition_values(key) == {"customer": "42", "date": "2026-02-03"}


# What is shown of data that were made, by how the last attempt ended, and when beside the materialization.
SHOWN_TEXT = """
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


def shown() -> Iterator[tuple[Heard, Staleness | None, DisplayStatus]]:
    _, *lines = map(str.split, SHOWN_TEXT.strip().splitlines())
    for outcome, when, *words in lines:
        row = replace(
            hear(None, finish(0, code="code-1")),
            last_attempt_at=WHEN[when],
            last_attempt_outcome=None if outcome == "-" else AttemptOutcome(outcome),
        )
        never = replace(row, last_materialization_at=None)
        for stale, word in zip((None, STALE), words, strict=True):
            yield row, stale, DisplayStatus(word)
            yield never, stale, DisplayStatus.NEVER_MATERIALIZED
    yield None, None, DisplayStatus.NEVER_MATERIALIZED
    yield None, STALE, DisplayStatus.NEVER_MATERIALIZED


@pytest.mark.invariant("P5")
def test_what_is_shown_follows_the_table() -> None:
    """Every outcome, at every time beside the materialization, fresh and stale, made and never made."""
    cells = list(shown())
    tried = {(row.last_attempt_outcome, row.last_attempt_at) for row, _, _ in cells if row is not None}
    assert tried == {*product(AttemptOutcome, (ENDED - TICK, ENDED, ENDED + TICK)), (None, None)}
    assert {word for _, _, word in cells} == set(DisplayStatus)
    assert [display(row, stale) for row, stale, _ in cells] == [word for _, _, word in cells]


def test_the_deadline_is_the_first_one_not_yet_met() -> None:
    """A day is due again so many days after it ended; what is made at a deadline satisfies it."""
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


def test_the_end_of_the_calendar_has_no_deadline() -> None:
    """A day whose deadline no calendar holds is never due, and is no error."""
    near_the_end = FreshnessPolicy(reread_after_days=(1, 10**12))
    assert near_the_end.deadline(date(9999, 12, 29), ENDED) == datetime(9999, 12, 31, tzinfo=UTC)
    for day in (date(9999, 12, 30), date.max):
        assert near_the_end.deadline(day, ENDED) is None
    assert near_the_end.deadline(DAY, datetime(2026, 2, 5, tzinfo=UTC)) is None


@pytest.mark.parametrize("days", [(0,), (-1, 2), (1, 1), (3, 2), (1.5,), (True,), ("1",)], ids=str)
def test_a_policy_that_makes_no_sense_is_refused(days: Any) -> None:
    """The days of a policy are whole, begin after the day has ended, and each comes after the one before."""
    with pytest.raises(ValueError, match=r"^reread_after_days: "):
        FreshnessPolicy(reread_after_days=days)


MADE_AT = ENDED + HOUR
ROW = replace(hear(None, finish(1, code="code-1")), last_attempt_outcome=FAILED)
DUE = datetime(2026, 2, 5, tzinfo=UTC)
UPSTREAM_AT = MADE_AT + HOUR
SEEN_AT = MADE_AT + 2 * HOUR
BEGAN = dict(zip(StaleReason, (DUE, UPSTREAM_AT, SEEN_AT), strict=True))
ALL_REASONS = [StaleReason.FRESHNESS_POLICY, StaleReason.UPSTREAM_CHANGED, StaleReason.CODE_CHANGED]


def ask(row: Heard = ROW, **changes: Any) -> Staleness | None:
    """How stale, a moment before the deadline, nothing upstream and nothing of the code having changed."""
    asked: dict[str, Any] = {
        "policy": POLICY,
        "upstream_at": MADE_AT,
        "code": CodeVersion(version="code-1", since=ENDED),
        "now": DUE,
    }
    return staleness(row, day=DAY, **(asked | changes))


@pytest.mark.invariant("P6")
@pytest.mark.parametrize(
    "reasons", [each for size in range(4) for each in combinations(ALL_REASONS, size)], ids="-".join
)
def test_the_first_reason_decides_since_when(reasons: tuple[StaleReason, ...]) -> None:
    """Policy, upstream, code: all that hold are named, in that order, and the first one says since when."""
    changes: dict[StaleReason, dict[str, Any]] = {
        StaleReason.FRESHNESS_POLICY: {"now": DUE + TICK},
        StaleReason.UPSTREAM_CHANGED: {"upstream_at": UPSTREAM_AT},
        StaleReason.CODE_CHANGED: {"code": CodeVersion(version="code-2", since=SEEN_AT)},
    }
    stale = ask(**dict(chain.from_iterable(changes[each].items() for each in reasons)))
    expected = Staleness(since=BEGAN[reasons[0]], reason=reasons[0], reasons=reasons) if reasons else None
    assert stale == expected


@pytest.mark.invariant("P9")
@pytest.mark.parametrize("day", [DAY, date(2024, 2, 29), date(2026, 3, 28), date(2026, 10, 24), date(1, 1, 1)])
@pytest.mark.parametrize("days", POLICY.reread_after_days)
def test_a_deadline_is_passed_a_microsecond_after_it(day: date, days: int) -> None:
    """At the deadline a partition is current, one microsecond later it is stale since the deadline."""
    due = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=days + 1)
    row = replace(ROW, last_materialization_at=due - TICK)
    asked: dict[str, Any] = {"day": day, "policy": POLICY, "upstream_at": None, "code": None}
    for now in (due - TICK, due):
        assert staleness(row, now=now, **asked) is None
    policy = StaleReason.FRESHNESS_POLICY
    expected = Staleness(since=due, reason=policy, reasons=(policy,))
    for now in (due + TICK, (due + TICK).astimezone(ZoneInfo("America/New_York")), due + 1000 * HOUR):
        assert staleness(row, now=now, **asked) == expected
    assert staleness(replace(row, last_materialization_at=due), now=due + TICK, **asked) is None


@pytest.mark.invariant("P6")
def test_upstream_and_code_count_only_once_they_changed() -> None:
    """What was made upstream at the same time or never, and code nobody names, make nothing stale."""
    assert ask(upstream_at=None, code=None, policy=FreshnessPolicy(), now=ENDED + 9999 * HOUR) is None
    assert ask(upstream_at=MADE_AT) is None
    upstream, code = StaleReason.UPSTREAM_CHANGED, StaleReason.CODE_CHANGED
    assert ask(upstream_at=MADE_AT + TICK) == Staleness(since=MADE_AT + TICK, reason=upstream, reasons=(upstream,))
    older = CodeVersion(version="code-2", since=ENDED - HOUR)  # seen before this was made by a release behind it
    assert ask(code=older) == Staleness(since=MADE_AT, reason=code, reasons=(code,))


@pytest.mark.invariant("P6")
def test_what_was_never_made_does_not_age() -> None:
    """Without a materialization nothing is stale, whatever was tried and whatever has changed."""
    everything: dict[str, Any] = {"now": DUE + TICK, "upstream_at": UPSTREAM_AT, "code": None}
    assert ask(**everything) is not None
    assert ask(None, **everything) is None
    assert ask(hear(None, finish(1, FAILED)), **everything) is None


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
def test_staleness_depends_on_nothing_else(
    made_at: datetime,
    upstream_at: datetime | None,
    code: CodeVersion | None,
    now: datetime,
    wait: int,
    mark: tuple[datetime, StaleReason] | None,
) -> None:
    """The same answer each time, whatever a sweep marked; waiting adds a deadline at most, and moves no time."""
    row = replace(ROW, last_materialization_at=made_at)
    since, reason = mark or (None, None)
    marked = replace(row, stale_since=since, stale_reason_code=reason)
    asked: dict[str, Any] = {"upstream_at": upstream_at, "code": code}
    stale = ask(row, now=now, **asked)
    assert ask(row, now=now, **asked) == stale == ask(marked, now=now, **asked)
    assert display(row, stale) == display(marked, stale)
    later = ask(row, now=now + wait * HOUR, **asked)
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


def test_a_version_is_the_ulid_others_spell() -> None:
    """The published example of a ULID is read as its time and written from it."""
    text, time = "01ARYZ6S41TSV4RRFFQ69G5FAV", 1469918176385
    number = version_number(text)
    assert number >> 80 == time
    assert mint(milliseconds(time), after=None, randomness=number % 2**80) == text


@pytest.mark.invariant("P8")
@given(one=numbers, other=numbers)
def test_versions_sort_as_their_numbers_do(one: int, other: int) -> None:
    """A version is read as the number it spells, and the greater text is the greater number."""
    assert version_number(spelled(one)) == one
    assert (spelled(one) < spelled(other)) is (one < other)


@example(milli=1013, micro=0, randomness=0)  # seconds in a float fall short of this one
@given(milli=st.integers(0, 253402300799999), micro=st.integers(0, 999), randomness=random_parts)
def test_a_first_version_is_its_millisecond_and_its_random_part(milli: int, micro: int, randomness: int) -> None:
    """Without one before, a version is the clock's millisecond, cut and not rounded, and the random part."""
    now = milliseconds(milli) + micro * TICK
    assert mint(now, after=None, randomness=randomness) == spelled(milli << 80 | randomness)


def test_a_clock_before_its_beginning_stands_there() -> None:
    """A time that no ULID spells counts as the first one."""
    assert mint(EPOCH - HOUR, after=None, randomness=7) == spelled(7)


@pytest.mark.invariant("P8")
@given(writes=st.lists(st.tuples(clocks, random_parts), max_size=30))
def test_versions_only_grow(writes: list[tuple[datetime, int]]) -> None:
    """Whatever the clock does, each version is greater as text, and no further than it has to be."""
    versions: list[str] = []
    for now, randomness in writes:
        before = versions[-1] if versions else None
        drawn = mint(now, after=None, randomness=randomness)
        minted = mint(now, after=before, randomness=randomness)
        assert minted == drawn or (before is not None and minted == spelled(version_number(before) + 1))
        assert before is None or minted == max(drawn, spelled(version_number(before) + 1))
        versions.append(minted)
    assert all(earlier < later for earlier, later in pairwise(versions))


@pytest.mark.invariant("P8")
@pytest.mark.parametrize("back", [timedelta(0), TICK, HOUR, 20000 * 24 * HOUR], ids=str)
def test_versions_grow_in_one_millisecond_and_backwards(back: timedelta) -> None:
    """A clock that stands still or goes back gives the next number, also over the end of the random part."""
    full = 2**80 - 1
    before = mint(ENDED, after=None, randomness=full)
    after = mint(ENDED - back, after=before, randomness=0)
    assert version_number(after) == version_number(before) + 1
    assert after > before


@pytest.mark.invariant("P8")
def test_after_the_last_version_nothing_comes() -> None:
    """A row that has the last version is refused another one, and never given a smaller one."""
    assert mint(ENDED, after=spelled(2**128 - 2), randomness=0) == LAST_VERSION
    with pytest.raises(OverflowError, match=LAST_VERSION):
        mint(ENDED, after=LAST_VERSION, randomness=0)


@pytest.mark.parametrize("randomness", [-1, 2**80])
def test_a_random_part_has_eighty_bits(randomness: int) -> None:
    """What does not fit the random part would change the time, and is refused."""
    with pytest.raises(ValueError, match="80 random bits"):
        mint(ENDED, after=None, randomness=randomness)


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
def test_no_other_spelling_is_a_version(text: str) -> None:
    """Another length, another letter, a small one or a number too large: versions are compared as text."""
    for attempt in (version_number, lambda each: mint(ENDED, after=each, randomness=0)):
        with pytest.raises(BadName) as caught:
            attempt(text)
        assert (caught.value.field, caught.value.value) == ("row_version", text)
