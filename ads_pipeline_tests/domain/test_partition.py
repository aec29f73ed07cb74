"""Names: validation, and conversion of keys to text, paths and Dagster keys and back."""

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

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import (
    DATE_RULE,
    NAME_RULES,
    PartitionKey,
    Run,
    days_between,
    generate_run_id,
    parse_dagster_key,
    parse_date,
    parse_key,
    parse_run_path,
    validate_name,
)
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
    "failure_id": ("v", "9" + "A.z_-" * 19),
    "validation_id": ("v", "9" + "A.z_-" * 19),
    "action_id": ("a", "9" + "A.z_-" * 19),
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
near_keys = st.builds(  # few and similar values, so that two keys are often equal or easily confused
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


def construct(field: str, value: Any) -> object:
    """Construct the value that holds the field."""
    parts: dict[str, Any] = {"source": "s", "customer_id": "1", "query_name": "q", "logical_date": date(2024, 2, 29)}
    if field in parts:
        return PartitionKey(**(parts | {field: value}))
    return Run(key=KEY, run_id=value) if field == "run_id" else validate_name(field, value)


def catch_bad_name(attempt: Callable[[], object]) -> BadName:
    with pytest.raises(BadName) as caught:
        attempt()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250
    return caught.value


@contextmanager
def set_local_zone(zone: str) -> Iterator[None]:
    """Set the machine's time zone."""
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
def test_name_length_limits(field: str) -> None:
    """The shortest and the longest name of a field are accepted; one more character is refused."""
    shortest, longest = SHORTEST_AND_LONGEST[field]
    for value in (shortest, longest):
        assert validate_name(field, value) == value
        construct(field, value)
    catch_bad_name(lambda: construct(field, longest + "1"))


@pytest.mark.invariant("R5", "X2")
@pytest.mark.parametrize("value", HOSTILE, ids=short)
@pytest.mark.parametrize("field", NAME_RULES)
def test_hostile_name_is_refused(field: str, value: object) -> None:
    """A hostile name is refused with field and rule, and its value escaped on one line."""
    error = catch_bad_name(lambda: construct(field, value))
    rule = NAME_RULES[field][1]
    assert (error.field, error.rule, error.value) == (field, rule, value)
    assert str(error).startswith(f"{field}: ")
    assert str(error).endswith(f" is refused: {rule}")


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in HOSTILE_TO.items() for v in values], ids=short)
def test_rules_differ_by_field(field: str, value: str) -> None:
    """A name that is valid for one field may be refused for another."""
    assert catch_bad_name(lambda: construct(field, value)).field == field


def test_refusal_shows_escaped_value_and_type() -> None:
    """A refusal shows escaped characters and the type of the value."""
    assert r"'1\n\x1b[31m'" in str(catch_bad_name(lambda: construct("customer_id", "1\n\x1b[31m")))
    assert "customer_id: 1 is refused" in str(catch_bad_name(lambda: construct("customer_id", 1)))
    assert "\u2026" in str(catch_bad_name(lambda: construct("customer_id", "9" * 300)))


@pytest.mark.invariant("S20")
@pytest.mark.parametrize("value", NOT_DAYS, ids=short)
def test_only_iso_dates_are_accepted(value: object) -> None:
    """A date is written YYYY-MM-DD and is a plain date; datetimes are refused: a zone could shift the day."""
    for attempt in (lambda: parse_date(value), lambda: construct("logical_date", value)):
        error = catch_bad_name(attempt)
        assert (error.field, error.rule) == ("logical_date", DATE_RULE)


@pytest.mark.invariant("R5", "O6")
def test_key_formats_never_change() -> None:
    """Text, path and Dagster key have fixed formats: raw directories and Dagster's records depend on them."""
    assert (str(KEY), KEY.path, KEY.dagster_key) == (KEY_TEXT, KEY_PATH, "1234567890|2024-02-29")
    assert (str(RUN), RUN.path) == (f"{KEY_TEXT}/{RUN.run_id}", RUN_PATH)


@pytest.mark.invariant("S20", "O6", "R5")
@given(run=runs)
def test_every_format_is_parsed_back(run: Run) -> None:
    """Text, path and Dagster key are parsed to the original key."""
    key = run.key
    assert parse_key(str(key)) == key
    assert parse_run_path(run.path) == run
    assert run.path.startswith(f"{key.path}/")
    assert parse_dagster_key(key.dagster_key, source=key.source, query_name=key.query_name) == key
    assert parse_date(key.logical_date.isoformat()) == key.logical_date


@pytest.mark.invariant("O6", "R5")
@given(one=near_runs, other=near_runs)
def test_different_keys_have_different_formats(one: Run, other: Run) -> None:
    """Two keys are equal exactly when any of their formats is equal."""
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
def test_parsed_text_formats_to_itself(text: str) -> None:
    """A text is either refused or parsed to a key that formats to the same text."""
    formats: tuple[tuple[Callable[[], Any], Callable[[Any], str]], ...] = (
        (lambda: parse_key(text), str),
        (lambda: parse_run_path(text), lambda run: str(run.path)),
        (lambda: parse_dagster_key(text, source="s", query_name="q"), lambda key: str(key.dagster_key)),
    )
    for parse, format_value in formats:
        with suppress(BadName):
            assert format_value(parse()) == text


@pytest.mark.parametrize(
    "text",
    ["", "a/1/b", f"/{KEY_TEXT}", f"{KEY_TEXT}/", f"{KEY_TEXT}\n", f"{KEY_TEXT}/r/s", "a/1//2024-01-31"],
)
def test_malformed_text_is_refused(text: str) -> None:
    """A key needs exactly four valid parts."""
    catch_bad_name(lambda: parse_key(text))


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
def test_malformed_path_is_refused(part: str, instead: str) -> None:
    """A path that is not exactly a run's path is refused."""
    catch_bad_name(lambda: parse_run_path(RUN_PATH.replace(part, instead)))


@pytest.mark.invariant("O6")
@pytest.mark.parametrize(
    "text",
    ["", "1|", "|2024-01-31", "1|2024-01-31|x", "1|2024-01-31\n", "1,2024-01-31", "1|2024-01-30...1|2024-01-31"],
)
def test_malformed_dagster_key_is_refused(text: str) -> None:
    """A range, a list or a third dimension is not parsed as one partition."""
    catch_bad_name(lambda: parse_dagster_key(text, source="s", query_name="q"))


@pytest.mark.invariant("O6")
@given(key=keys)
def test_dagster_formats_the_same_key(key: PartitionKey) -> None:
    """The Dagster key equals Dagster's own text of the two dimensions, without range and list characters."""
    dimensions = {"customer": key.customer_id, "date": key.logical_date.isoformat()}
    assert str(dg.MultiPartitionKey(dimensions)) == key.dagster_key
    assert key.dagster_key.count("|") == 1
    assert not re.search(r"[,\[\]]|\.\.\.|[\x00-\x1f]", key.dagster_key)


@pytest.mark.invariant("O6")
def test_dagster_definition_accepts_key() -> None:
    """A real multi-partitions definition contains the key and splits it into the same two parts."""
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
# Days with a clock change somewhere; Apia skipped 30 December 2011.
CHANGES = [date(2024, 3, 10), date(2024, 3, 31), date(2024, 4, 26), date(2011, 12, 30), date(2018, 11, 4)]


@pytest.mark.invariant("S20")
@given(run=runs, day=st.sampled_from(CHANGES) | st.dates(), here=st.sampled_from(ZONES), there=st.sampled_from(ZONES))
def test_time_zone_does_not_shift_day(run: Run, day: date, here: str, there: str) -> None:
    """A key written in one time zone names the same day in another, also across clock changes."""
    parts = {"source": run.key.source, "query_name": run.key.query_name}
    with set_local_zone(here):
        key = PartitionKey(**parts, customer_id=run.key.customer_id, logical_date=day)
        text, path, dagster_key = str(key), Run(key=key, run_id=run.run_id).path, key.dagster_key
    with set_local_zone(there):
        assert parse_key(text) == parse_run_path(path).key == parse_dagster_key(dagster_key, **parts) == key
    assert text.endswith(f"/{day.year:04}-{day.month:02}-{day.day:02}")


times = st.datetimes(datetime(2000, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - zone added
hexes = matching("[0-9a-f]{8}")


@given(instant=times, gap=st.integers(1, 5000) | st.integers(1, 10**13), tails=st.tuples(hexes, hexes))
def test_generated_run_ids_sort_by_time(instant: datetime, gap: int, tails: tuple[str, str]) -> None:
    """A run_id generated in a later millisecond sorts later, and every run_id is valid in a path."""
    first, last = generate_run_id(instant, tails[0]), generate_run_id(instant + timedelta(milliseconds=gap), tails[1])
    assert first < last
    assert all(re.fullmatch(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}", run_id, re.ASCII) for run_id in (first, last))


@given(instant=times, tail=hexes, other=hexes, hours=st.integers(-14, 14), zone=st.sampled_from(ZONES))
def test_generated_run_id_ignores_time_zone(instant: datetime, tail: str, other: str, hours: int, zone: str) -> None:
    """One instant gives one run_id in every time zone, and another one for each random part."""
    with set_local_zone(zone):
        assert generate_run_id(datetime(2024, 3, 1, 2, 3, 4, 567890, tzinfo=UTC), "0a1b2c3d") == RUN.run_id
        assert generate_run_id(instant.astimezone(timezone(timedelta(hours=hours))), tail) == generate_run_id(
            instant, tail
        )
    assert (generate_run_id(instant, tail) == generate_run_id(instant, other)) is (tail == other)


@pytest.mark.parametrize(
    "tail", ["", "0123456", "012345678", "ABCDEF01", "0123456g", "0123456\n", "../../..", "\u0661" * 8], ids=short
)
def test_generated_run_id_needs_eight_hex_digits(tail: str) -> None:
    """Another random part is refused, because it could weaken uniqueness or escape the path."""
    assert catch_bad_name(lambda: generate_run_id(datetime(2024, 1, 1, tzinfo=UTC), tail)).field == "run_id"


@given(some=st.lists(runs))
def test_keys_and_runs_sort_by_parts(some: list[Run]) -> None:
    """The order is by source, customer, query, day and run_id, each compared as text."""
    assert sorted(some) == sorted(some, key=astuple)
    assert len(set(some)) == len(set(map(astuple, some)))


def test_key_is_immutable() -> None:
    """A key cannot be changed after validation."""
    for value, part in ((KEY, "customer_id"), (RUN, "run_id")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, part, "../x")


@pytest.mark.invariant("S20")
@given(since=st.dates(), length=st.integers(-3, 400))
def test_days_between_includes_both_ends(since: date, length: int) -> None:
    """Every day from first to last comes once and in order; none when the last is before the first."""
    assume(date.min.toordinal() <= since.toordinal() + length <= date.max.toordinal())
    days = list(days_between(since, since + timedelta(days=length)))
    assert [day.toordinal() for day in days] == list(range(since.toordinal(), since.toordinal() + length + 1))
