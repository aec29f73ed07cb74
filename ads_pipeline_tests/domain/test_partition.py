"""Names: what is let in, and that every spelling of a key leads back to the one key it came from."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import FrozenInstanceError, astuple
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ads_pipeline.domain.partition import (
    DATE_RULE,
    NAME_RULES,
    PartitionKey,
    Run,
    checked_name,
    days_between,
    new_run_id,
    parse_dagster_key,
    parse_date,
    parse_key,
    parse_run,
    parse_run_path,
)
from ads_pipeline.errors import BadName
from ads_pipeline_tests import builders

KEY = builders.key(day=date(2024, 2, 29))
RUN = builders.run("20240301T020304567Z-0a1b2c3d", KEY)
KEY_TEXT = "google_ads/1234567890/campaign_daily/2024-02-29"
KEY_PATH = "google_ads/customer_id=1234567890/query_name=campaign_daily/logical_date=2024-02-29"
RUN_PATH = f"{KEY_PATH}/run_id={RUN.run_id}"

SHORTEST_AND_LONGEST = {
    "source": ("a", "a" + "_9" * 15 + "z"),
    "customer_id": ("0", "9" * 20),
    "query_name": ("q", "q" + "_1z" * 21),
    "run_id": ("0", "Z" + "z.9_-" * 19),
    "validation_id": ("v", "9" + "A.z_-" * 19),
    "act_id": ("a", "9" + "A.z_-" * 19),
    "label": ("l", "9" + "A.z_-" * 19),
    "schema_version": ("1", "v" + "1" * 31),
    "error_class": ("e", "e" * 64),
}
# Refused by every field.
HOSTILE: tuple[object, ...] = (
    *("", ".", "..", "...", "../x", "/etc", "-a", "_a", ".a", " a", "a ", "a\n", "1\n", "\x00", "%2e"),
    *(f"a{sign}b" for sign in "/\\|,[]:;=+%*?~$&#@!()'\"\t\r\n\x00\x1b\x7f\x85\u00a0\u2028\u202e\ufeff "),
    *("\u0661\u0662", "1\u0661", "\uff11\uff12", "\uff41", "\u00e9", "e\u0301", "\u212a", "\u017f", "\ud800"),
    *("a" * 300, "1" * 300, None, True, False, 1, 1.5, b"a", ["a"], ("a",), {"a": 1}, date(2024, 2, 29)),
)
# Refused by one field although another may take it.
HOSTILE_TO: dict[str, tuple[str, ...]] = {
    "source": ("Google", "1a", "a-b", "a.b", "a...b"),
    "customer_id": ("123-456-7890", "1...2", "12a", "a", "1_0", "0x1", "1e3", "1.0"),
    "query_name": ("Campaign", "9a", "a-b", "a.b", "a...b"),
    "error_class": ("Timeout", "9a", "a-b", "a.b"),
}
NOT_DAYS: tuple[object, ...] = (
    *("2024-02-30", "2023-02-29", "2024-13-01", "2024-00-10", "2024-01-00", "0000-01-01", "10000-01-01"),
    *("2024-2-3", "24-02-03", "20240203", "2024-0203", "2024/02/03", "2024-W05-6", "2024W056", "2024-034", "2024-02"),
    *("2024-02-03 ", " 2024-02-03", "2024-02-03\n", "2024-02-03\x00", "2024-02-03T00:00:00", "2024-02-03Z", ""),
    *("\u0662\u0660\u0662\u0664-02-03", "\uff12024-02-03", "2024\u201002\u201003"),
    *(None, True, 20240203, 1.0, b"2024-02-03", datetime(2024, 2, 3, tzinfo=UTC)),
)


def matching(pattern: str) -> st.SearchStrategy[str]:
    return st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True)


keys = st.builds(
    PartitionKey,
    source=matching("[a-z][a-z0-9_]{0,31}"),
    customer_id=matching("[0-9]{1,20}"),
    query_name=matching("[a-z][a-z0-9_]{0,63}"),
    logical_date=st.dates(),
)
runs = st.builds(Run, key=keys, run_id=matching("[0-9A-Za-z][0-9A-Za-z._-]{0,95}"))
near_keys = st.builds(  # few enough that two of them are often alike, and alike enough to be confused
    builders.key,
    st.sampled_from(["1", "11", "01"]),
    query_name=st.sampled_from(["a", "a_1"]),
    day=st.sampled_from([date(1, 1, 1), date(11, 1, 1), date(1, 11, 1)]),
)
near_runs = st.builds(Run, key=near_keys, run_id=st.sampled_from(["1", "11", "a"]))
pieces = st.sampled_from(["1", "a", "/", "|", "=", "...", "\n", KEY_TEXT, "1|2024-01-31", KEY_PATH, "/run_id="])
near_texts = st.lists(pieces | st.text(max_size=2), max_size=5).map("".join)


def short(value: object) -> str:
    return ascii(value)[:30]


def name(field: str, value: Any) -> object:
    """The name put where the product takes it."""
    parts: dict[str, Any] = {"source": "s", "customer_id": "1", "query_name": "q", "logical_date": date(2024, 2, 29)}
    if field in parts:
        return PartitionKey(**(parts | {field: value}))
    return Run(key=KEY, run_id=value) if field == "run_id" else checked_name(field, value)


def refused(attempt: Callable[[], object]) -> BadName:
    with pytest.raises(BadName) as caught:
        attempt()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250
    return caught.value


@contextmanager
def local_zone(zone: str) -> Iterator[None]:
    """The machine stands in that zone."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            january = datetime(2024, 1, 1, tzinfo=ZoneInfo(zone))
            assert time.localtime(january.timestamp())[:4] == (2024, 1, 1, 0)
            yield
    finally:
        time.tzset()


@pytest.mark.parametrize("field", NAME_RULES)
def test_every_field_has_a_shortest_and_a_longest_name(field: str) -> None:
    """A name at either end of its rule is let in unchanged, and one character more is refused."""
    shortest, longest = SHORTEST_AND_LONGEST[field]
    for value in (shortest, longest):
        assert checked_name(field, value) == value
        name(field, value)
    refused(lambda: name(field, longest + "1"))


@pytest.mark.invariant("R5", "X2")
@pytest.mark.parametrize("value", HOSTILE, ids=short)
@pytest.mark.parametrize("field", NAME_RULES)
def test_a_hostile_name_is_refused_everywhere(field: str, value: object) -> None:
    """What no whitelist holds is refused by field and rule, with the value escaped on the same line."""
    error = refused(lambda: name(field, value))
    rule = NAME_RULES[field][1]
    assert (error.field, error.rule, error.value) == (field, rule, value)
    assert str(error).startswith(f"{field}: ")
    assert str(error).endswith(f" is refused: {rule}")


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in HOSTILE_TO.items() for v in values], ids=short)
def test_a_name_of_another_field_is_refused(field: str, value: str) -> None:
    """Each field has a rule of its own, so what one takes another refuses."""
    assert refused(lambda: name(field, value)).field == field


def test_a_refused_value_is_shown_escaped_with_its_type() -> None:
    """The reader of a refusal sees which characters stood there, and that a number was no text."""
    assert r"'1\n\x1b[31m'" in str(refused(lambda: name("customer_id", "1\n\x1b[31m")))
    assert "customer_id: 1 is refused" in str(refused(lambda: name("customer_id", 1)))
    assert "\u2026" in str(refused(lambda: name("customer_id", "9" * 300)))


@pytest.mark.invariant("S20")
@pytest.mark.parametrize("value", NOT_DAYS, ids=short)
def test_only_one_spelling_of_a_real_day_is_a_date(value: object) -> None:
    """A day is written YYYY-MM-DD and held as a plain date; a moment is no day, since its zone would decide which."""
    for attempt in (lambda: parse_date(value), lambda: name("logical_date", value)):
        error = refused(attempt)
        assert (error.field, error.rule) == ("logical_date", DATE_RULE)


@pytest.mark.invariant("R5", "O6")
def test_a_key_is_spelled_in_three_ways() -> None:
    """The spellings never change: raw directories and Dagster's records are full of them."""
    assert (str(KEY), KEY.path, KEY.dagster_key) == (KEY_TEXT, KEY_PATH, "1234567890|2024-02-29")
    assert (str(RUN), RUN.path) == (f"{KEY_TEXT}/{RUN.run_id}", RUN_PATH)


@pytest.mark.invariant("S20", "O6", "R5")
@given(run=runs)
def test_every_spelling_leads_back_to_its_key(run: Run) -> None:
    """Text, path and Dagster key are read back as exactly the key that was spelled."""
    key = run.key
    assert parse_key(str(key)) == key
    assert parse_run(str(run)) == run
    assert parse_run_path(run.path) == run
    assert run.path.startswith(f"{key.path}/")
    assert parse_dagster_key(key.dagster_key, source=key.source, query_name=key.query_name) == key
    assert parse_date(key.logical_date.isoformat()) == key.logical_date


@pytest.mark.invariant("O6", "R5")
@given(one=near_runs, other=near_runs)
def test_no_two_keys_share_a_spelling(one: Run, other: Run) -> None:
    """Two keys are equal exactly when any one of their spellings is."""
    same = one.key == other.key
    assert (str(one.key) == str(other.key)) is same
    assert (one.key.path == other.key.path) is same
    assert (one.key.path.casefold() == other.key.path.casefold()) is same
    assert (str(one) == str(other)) is (one == other)
    assert (one.path == other.path) is (one == other)
    if (one.key.source, one.key.query_name) == (other.key.source, other.key.query_name):
        assert (one.key.dagster_key == other.key.dagster_key) is same


@pytest.mark.invariant("O6")
@given(text=near_texts)
def test_what_is_read_is_spelled_the_same_again(text: str) -> None:
    """A reader refuses a text or reads it as the one key that is spelled exactly so."""
    spelled: tuple[tuple[Callable[[], Any], Callable[[Any], str]], ...] = (
        (lambda: parse_key(text), str),
        (lambda: parse_run(text), str),
        (lambda: parse_run_path(text), lambda run: str(run.path)),
        (lambda: parse_dagster_key(text, source="s", query_name="q"), lambda key: str(key.dagster_key)),
    )
    for read, spell in spelled:
        with suppress(BadName):
            assert spell(read()) == text


@pytest.mark.parametrize(
    "text",
    ["", "a/1/b", f"/{KEY_TEXT}", f"{KEY_TEXT}/", f"{KEY_TEXT}\n", f"{KEY_TEXT}/r/s", "a/1//2024-01-31"],
)
def test_a_malformed_text_is_no_key(text: str) -> None:
    """Nothing but four whole parts is a key, and nothing but those and a run_id is a run."""
    refused(lambda: parse_key(text))
    refused(lambda: parse_run(text))


@pytest.mark.invariant("R5")
@pytest.mark.parametrize(
    ("part", "instead"),
    [
        *(("customer_id=", ""), ("query_name=", "query="), ("=1234", "=customer_id=1234"), ("02-29", "02-30")),
        *(("/run_id=", "/"), (RUN_PATH, KEY_PATH), (RUN.run_id, ""), (RUN.run_id, ".."), (RUN.run_id, "_tmp")),
        *((RUN.run_id, "r/"), (RUN.run_id, "r/seal"), (RUN.run_id, "r\n"), (RUN_PATH, ""), (RUN_PATH, "google_ads")),
        *(("google_ads/", "/google_ads/"), ("google_ads/", "../"), ("google_ads/", ""), ("/", "//"), ("/", "\\")),
    ],
)
def test_a_malformed_path_is_no_run(part: str, instead: str) -> None:
    """A directory that is not spelled exactly like a run's is not taken for one."""
    refused(lambda: parse_run_path(RUN_PATH.replace(part, instead)))


@pytest.mark.invariant("O6")
@pytest.mark.parametrize(
    "text",
    ["", "1|", "|2024-01-31", "1|2024-01-31|x", "1|2024-01-31\n", "1,2024-01-31", "1|2024-01-30...1|2024-01-31"],
)
def test_a_malformed_dagster_key_is_no_key(text: str) -> None:
    """A range, a list or a third dimension is never read as one partition."""
    refused(lambda: parse_dagster_key(text, source="s", query_name="q"))


@pytest.mark.invariant("O6")
@given(key=keys)
def test_dagster_spells_the_key_the_same(key: PartitionKey) -> None:
    """The Dagster key is the text Dagster itself makes of the two dimensions, free of its range and list signs."""
    dimensions = {"customer": key.customer_id, "date": key.logical_date.isoformat()}
    assert str(dg.MultiPartitionKey(dimensions)) == key.dagster_key
    assert key.dagster_key.count("|") == 1
    assert not re.search(r"[,\[\]]|\.\.\.|[\x00-\x1f]", key.dagster_key)


@pytest.mark.invariant("O6")
def test_dagster_accepts_the_key_of_a_known_customer() -> None:
    """Real definitions of customer and day hold our key, and split it into the same two parts."""
    customers = dg.DynamicPartitionsDefinition(name="customers")
    days = dg.DailyPartitionsDefinition(start_date="2024-01-01")
    both = dg.MultiPartitionsDefinition({"customer": customers, "date": days})
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("customers", [KEY.customer_id])
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            assert both.has_partition_key(KEY.dagster_key)
            assert not both.has_partition_key(f"1{KEY.dagster_key}")
    split = both.get_partition_key_from_str(KEY.dagster_key)
    assert split.keys_by_dimension == {"customer": "1234567890", "date": "2024-02-29"}


ZONES = ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Pacific/Apia", "Europe/Berlin", "America/New_York"]
# Days on which a clock changed somewhere; in Apia 30 December 2011 never was.
CHANGES = [date(2024, 3, 10), date(2024, 3, 31), date(2024, 4, 26), date(2011, 12, 30), date(2018, 11, 4)]


@pytest.mark.invariant("S20")
@given(run=runs, day=st.sampled_from(CHANGES) | st.dates(), here=st.sampled_from(ZONES), there=st.sampled_from(ZONES))
def test_no_zone_shifts_the_day(run: Run, day: date, here: str, there: str) -> None:
    """A key spelled on one side of the world names the same day on the other, clock changes and all."""
    parts = {"source": run.key.source, "query_name": run.key.query_name}
    with local_zone(here):
        key = PartitionKey(**parts, customer_id=run.key.customer_id, logical_date=day)
        text, path, dagster_key = str(key), Run(key=key, run_id=run.run_id).path, key.dagster_key
    with local_zone(there):
        assert parse_key(text) == parse_run_path(path).key == parse_dagster_key(dagster_key, **parts) == key
    assert text.endswith(f"/{day.year:04}-{day.month:02}-{day.day:02}")


moments = st.datetimes(datetime(2000, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - zone added
hexes = matching("[0-9a-f]{8}")


@given(moment=moments, gap=st.integers(1, 5000) | st.integers(1, 10**13), tails=st.tuples(hexes, hexes))
def test_our_run_ids_sort_by_their_moment(moment: datetime, gap: int, tails: tuple[str, str]) -> None:
    """Of two run_ids the one made in a later millisecond sorts last, and each is safe in a path."""
    first, last = new_run_id(moment, tails[0]), new_run_id(moment + timedelta(milliseconds=gap), tails[1])
    assert first < last
    assert all(re.fullmatch(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}", run_id, re.ASCII) for run_id in (first, last))


@given(moment=moments, tail=hexes, other=hexes, hours=st.integers(-14, 14), zone=st.sampled_from(ZONES))
def test_our_run_ids_are_blind_to_zones(moment: datetime, tail: str, other: str, hours: int, zone: str) -> None:
    """One moment gives one run_id in every zone, and another one for every other tail."""
    with local_zone(zone):
        assert new_run_id(datetime(2024, 3, 1, 2, 3, 4, 567890, tzinfo=UTC), "0a1b2c3d") == RUN.run_id
        assert new_run_id(moment.astimezone(timezone(timedelta(hours=hours))), tail) == new_run_id(moment, tail)
    assert (new_run_id(moment, tail) == new_run_id(moment, other)) is (tail == other)


@pytest.mark.parametrize(
    "tail", ["", "0123456", "012345678", "ABCDEF01", "0123456g", "0123456\n", "../../..", "\u0661" * 8], ids=short
)
def test_a_run_id_needs_eight_hexadecimal_digits(tail: str) -> None:
    """A tail of another shape is refused, since it would weaken uniqueness or escape the path."""
    assert refused(lambda: new_run_id(datetime(2024, 1, 1, tzinfo=UTC), tail)).field == "run_id"


@given(some=st.lists(runs))
def test_keys_and_runs_sort_part_by_part(some: list[Run]) -> None:
    """Order goes by source, customer, query, day and run_id, each compared as written."""
    assert sorted(some) == sorted(some, key=astuple)
    assert len(set(some)) == len(set(map(astuple, some)))


def test_a_key_never_changes() -> None:
    """What was checked once stays as it was checked."""
    for value, part in ((KEY, "customer_id"), (RUN, "run_id")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, part, "../x")


@pytest.mark.invariant("S20")
@given(since=st.dates(), length=st.integers(-3, 400))
def test_days_between_counts_both_ends(since: date, length: int) -> None:
    """Every day from first to last comes once and in order, and none when the last is before the first."""
    assume(date.min.toordinal() <= since.toordinal() + length <= date.max.toordinal())
    days = list(days_between(since, since + timedelta(days=length)))
    assert [day.toordinal() for day in days] == list(range(since.toordinal(), since.toordinal() + length + 1))
