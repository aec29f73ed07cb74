"""Settings: what the environment and the query file may say, and that every mistake in them is reported at once."""

import re
import traceback
from dataclasses import FrozenInstanceError
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ads_pipeline.domain.freshness import FreshnessPolicy, Tenancy
from ads_pipeline.errors import BadName, BadSettings
from ads_pipeline.settings import SHIPPED_QUERIES, VARIABLES, Settings, read_settings

HOME, URL, QUERIES = "ADS_PIPELINE_HOME", "ADS_PIPELINE_DATABASE_URL", "ADS_PIPELINE_QUERIES"
TENANT, WORKSPACE = "ADS_PIPELINE_TENANT", "ADS_PIPELINE_WORKSPACE"
LEASE = "ADS_PIPELINE_LEASE_SECONDS"
SECRET = "hunter2-correct-horse"
GAQL = "SELECT segments.date, customer.id FROM campaign"
DOCUMENT = f"""\
source: google_ads
api_version: v26
start_date: 2024-01-01
queries:
  campaign_daily:
    schema_version: "1"
    gaql: {GAQL}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A query file that is in order."""
    path = tmp_path / "google_apis.yaml"
    path.write_text(DOCUMENT)
    return path


def refused(file: Path, **variables: str) -> list[str]:
    """What is said of each mistake, the file's own path left out."""
    with pytest.raises(BadSettings) as caught:
        read_settings({QUERIES: str(file), **variables})
    first, *listed = str(caught.value).split("\n")
    assert listed == [f"  {mistake}" for mistake in caught.value.mistakes]
    assert all(line.isprintable() for line in (first, *listed))
    return [str(mistake).replace(str(file), "file") for mistake in caught.value.mistakes]


def said_of(file: Path, content: str | bytes) -> list[str]:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return refused(file)


def changed(old: str, new: str) -> str:
    assert DOCUMENT.count(old) == 1
    return DOCUMENT.replace(old, new)


def test_an_empty_environment_gives_the_defaults() -> None:
    """Nothing has to be set: a folder in the user's home, SQLite in it, and the queries that ship."""
    for environ in ({}, dict.fromkeys(VARIABLES, "")):
        settings = read_settings(environ)
        assert settings.home == Path.home() / ".ads_pipeline"
        assert settings.database_url == f"sqlite:///{settings.home}/ledger.db"
        assert settings.raw_root == settings.home / "raw"
        assert settings.warehouse_root == settings.home / "warehouse"
        assert settings.queries_file == SHIPPED_QUERIES


def test_each_variable_is_heeded(file: Path, tmp_path: Path) -> None:
    """Home, database and query file are each where the environment says."""
    url = "postgresql+psycopg2://ads@db/ledger"
    settings = read_settings({HOME: str(tmp_path), URL: url, QUERIES: str(file), "PATH": "/bin", "ADS": "1"})
    assert (settings.home, settings.database_url, settings.queries_file) == (tmp_path, url, file)
    assert settings.google_apis.start_date == date(2024, 1, 1)
    assert settings.query("campaign_daily").gaql == GAQL
    assert read_settings({HOME: "~/ads"}).home == Path.home() / "ads"


def test_the_shipped_queries_are_in_order() -> None:
    """The four queries that ship are valid, and each selects its fields once and its day and customer among them."""
    apis = read_settings({}).google_apis
    assert apis.source == "google_ads"
    assert set(apis.queries) == {"campaign_daily", "ad_group_daily", "keyword_daily", "search_term_daily"}
    for query in apis.queries.values():
        selected = query.gaql.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
        assert len(set(selected)) == len(selected)
        assert {"segments.date", "customer.id"} < set(selected)
        assert query.gaql.isprintable()


def test_settings_never_change(file: Path) -> None:
    """What was read once is what every room was told: nothing of it can be set again."""
    settings = read_settings({QUERIES: str(file)})
    with pytest.raises(FrozenInstanceError):
        settings.home = Path("/")  # type: ignore[misc]
    for document, name in ((settings.google_apis, "source"), (settings.query("campaign_daily"), "gaql")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(document, name, "other")


def test_the_list_of_queries_never_changes(file: Path) -> None:
    """No query is added to settings, or taken from them, after they were checked."""
    queries: Any = read_settings({QUERIES: str(file)}).google_apis.queries
    with pytest.raises((TypeError, AttributeError)):
        queries["unchecked"] = "DELETE"


def test_a_query_says_when_its_days_are_reported_again(file: Path) -> None:
    """The days of the query file are the policy of that query; without any, nothing ages."""
    assert read_settings({QUERIES: str(file)}).query("campaign_daily").freshness == FreshnessPolicy()
    for written, days in (("[3, 30]", (3, 30)), ("[]", ()), ("[1]", (1,)), ("\n      - 7\n      - 90", (7, 90))):
        file.write_text(changed('"1"', f'"1"\n    reread_after_days: {written}'))
        policy = read_settings({QUERIES: str(file)}).query("campaign_daily").freshness
        assert policy == FreshnessPolicy(reread_after_days=days)


@pytest.mark.parametrize(
    ("days", "problem"),
    [
        ("30", "must be a list of days, such as [3, 30]"),
        ('"3, 30"', "must be a list of days"),
        ("{a: 3}", "must be a list of days"),
        ("null", "must be a list of days"),
        ("[30, 3]", "reread_after_days: (30, 3) is refused: whole days, each more than the one before"),
        ("[3, 3]", "reread_after_days: (3, 3) is refused"),
        ("[0]", "reread_after_days: (0,) is refused"),
        ("[-1, 3]", "reread_after_days: (-1, 3) is refused"),
        ("[1.5]", "reread_after_days: (1.5,) is refused"),
        ("[true]", "reread_after_days: (True,) is refused"),
        ('["3"]', "reread_after_days: ('3',) is refused"),
        ("[[3]]", "reread_after_days: ([3],) is refused"),
        ("[null]", "reread_after_days: (None,) is refused"),
        (r'["\x1b[31m"]', r"reread_after_days: ('\x1b[31m',) is refused"),
    ],
)
def test_days_that_are_no_policy_are_refused(file: Path, days: str, problem: str) -> None:
    """A list of days that means nothing, or is none, is reported where it stands."""
    (said,) = said_of(file, changed('"1"', f'"1"\n    reread_after_days: {days}'))
    assert said.startswith(f"file:7 queries.campaign_daily.reread_after_days: {problem}")


def test_the_space_is_named_by_the_environment(file: Path, tmp_path: Path) -> None:
    """Tenant and workspace are what is set, and else the tenant is the default and each source a workspace."""
    assert read_settings({QUERIES: str(file)}).space == Tenancy(tenant_id="default", workspace_id=None)
    named = read_settings({QUERIES: str(file), TENANT: "acme-1", WORKSPACE: "ads_eu", HOME: str(tmp_path)})
    assert named.space == Tenancy(tenant_id="acme-1", workspace_id="ads_eu")
    assert read_settings({QUERIES: str(file), TENANT: "", WORKSPACE: ""}).space == Tenancy()
    assert named.status_file == tmp_path / "partition_status.parquet"


@pytest.mark.parametrize("variable", ["ADS_PIPELINE_TENANT", "ADS_PIPELINE_WORKSPACE"])
@pytest.mark.parametrize(
    "name", [" ", "a b", "a|b", "a/b", "../x", "a\n", "\x1b[31m", "ü", "-a", "a" * 97, "a,b", "\u0661"], ids=ascii
)
def test_a_space_that_is_no_name_is_refused(file: Path, variable: str, name: str) -> None:
    """A name that would break a key or a line is refused with the variable that holds it."""
    (said,) = refused(file, **{variable: name})
    assert said.startswith(f"{variable}: ")
    assert " is refused: " in said


@pytest.mark.parametrize(("text", "seconds"), [("", 120), ("5", 5), ("0900", 900), ("86400", 86400)])
def test_a_lease_lasts_as_long_as_is_said(file: Path, text: str, seconds: int) -> None:
    """Whole seconds from five to a day, two minutes when nothing is said."""
    assert read_settings({QUERIES: str(file), LEASE: text}).lease == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["4", "0", "-5", "86401", "9" * 5000, "7.5", "1e2", " 60", "60s", "\u0661\u0662", "\n"]
)
def test_a_lease_that_is_none_is_refused(file: Path, text: str) -> None:
    """One so short that a living run would lose it, so long that a dead one would keep it, or no number at all."""
    (said,) = refused(file, **{LEASE: text})
    assert said.startswith(f"{LEASE}: '")
    assert said.endswith("' must be whole seconds, from 5 to 86400") or "…" in said


def test_every_mistake_is_told_together_with_its_place(file: Path) -> None:
    """One failed start names every variable and every line that has to be mended."""
    wrong = changed("v26", "26").replace("2024-01-01", "2024-02-30").replace('"1"', "1")
    file.write_text(f"{wrong}colour: blue\n")
    said = refused(file, **{HOME: "here", URL: "mysql://x", "ADS_PIPELINE_HOEM": "/x"})
    assert [line.partition(": ")[0] for line in said] == [
        *("ADS_PIPELINE_HOEM", HOME, URL, "file:2 api_version", "file:3 start_date"),
        *("file:6 queries.campaign_daily.schema_version", "file:8 colour"),
    ]


def test_a_misspelt_variable_is_refused_with_its_neighbour(file: Path) -> None:
    """A variable nobody reads would leave a default in force without a word, so the near one is suggested."""
    assert refused(file, ADS_PIPELINE_HOEM="/x") == [f"ADS_PIPELINE_HOEM: no such setting; did you mean {HOME}?"]
    assert refused(file, ADS_PIPELINE_DATABASE="x")[0].endswith(f"did you mean {URL}?")
    assert HOME in refused(file, **{"ADS_PIPELINE_\n\x1b[31m": "x"})[0]


@pytest.mark.parametrize("home", ["here", "./here", "../here", "a/~"])
def test_a_relative_home_is_refused(file: Path, home: str) -> None:
    """A home that depends on the working directory would be another one for each process."""
    (said,) = refused(file, **{HOME: home})
    assert said.startswith(f"{HOME}: '{home}' must be an absolute path")


def test_the_home_of_nobody_is_refused(file: Path) -> None:
    """A user who does not exist has no home, which is a mistake like any other."""
    assert refused(file, **{HOME: "~no-such-user-here/ads"})[0].startswith(f"{HOME}: ")


@pytest.mark.parametrize("scheme", ["postgresql://", "postgres://", "postgresql+psycopg://", "mysql://", "", " "])
def test_a_url_of_another_driver_is_refused_without_its_password(file: Path, scheme: str) -> None:
    """Only the driver that Dagster's notifications work under is accepted, and a refusal shows nothing of the URL."""
    url = f"{scheme}ads:{SECRET}@db/ledger"
    assert refused(file, **{URL: url}) == [f"{URL}: must start with postgresql+psycopg2://"]


def test_no_secret_is_shown(file: Path) -> None:
    """What the environment holds in confidence stands in no message, no traceback and no text of the settings."""
    wrong = {HOME: "here", URL: f"postgresql://ads:{SECRET}@db/ledger", "ADS_PIPELINE_PASSWORD": SECRET}
    with pytest.raises(BadSettings) as caught:
        read_settings({QUERIES: str(file), **wrong, "DB_PASSWORD": SECRET})
    shown = [
        str(caught.value),
        repr(caught.value),
        repr(caught.value.mistakes),
        *traceback.format_exception(caught.value),
    ]
    settings = read_settings({QUERIES: str(file), URL: f"postgresql+psycopg2://ads:{SECRET}@db/ledger"})
    shown += [str(settings), repr(settings), f"{settings}"]
    assert not [text for text in shown if SECRET in text]
    assert SECRET in settings.database_url


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "file:1: "),
        ("# nothing yet\n", "file:1: "),
        ("[1, 2]", "file:1: "),
        ("google_ads", "file:1: "),
        ("source: [google_ads\nqueries: 1", "file: cannot be read: "),
        ("source: 'google_ads", "file: cannot be read: "),
        ("\tsource: google_ads", "file: cannot be read: "),
        ("source: google_ads\x00", "file: cannot be read: "),
        ("source: \x1b[31mred", "file: cannot be read: "),
        (f"{DOCUMENT}---\n{DOCUMENT}", "file: cannot be read: "),
        (DOCUMENT.encode("utf-16"), "file: cannot be read: "),
        (DOCUMENT.replace("google", "gö").encode("latin-1"), "file: cannot be read: "),
        ("? [a, b]\n: 1\n", "file: cannot be read: "),
        ("source: !!python/object/apply:os.getcwd []", "file: cannot be read: "),
        ("[" * 50_000, "file: cannot be read: "),
        ("a: " * 2 + "{" * 20_000, "file: cannot be read: "),
        ("a: " + "[" * 400 + "]" * 400, "file: cannot be read: line 1 is nested deeper than 100"),
        ("queries: &a\n  b: *a\n", "file: cannot be read: line 2 holds an alias"),
        ("&a [*a]", "file: cannot be read: line 1 holds an alias"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_file_that_is_no_query_file_is_a_mistake(file: Path, content: str | bytes, problem: str) -> None:
    """Whatever the file holds instead of queries, the answer is a mistake with its place."""
    assert said_of(file, content)[0].startswith(problem)


@pytest.mark.parametrize(
    "value",
    [
        "!!int x",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "!!timestamp 2024-02-30",
        "9" * 5000,
        "1" + ":59" * 400 + ".5",
    ],
    ids=lambda value: value[:25],
)
def test_a_value_that_yaml_itself_cannot_read_is_a_mistake(file: Path, value: str) -> None:
    """A scalar that its own tag contradicts, or that no number can hold, is reported and not raised."""
    assert said_of(file, changed("2024-01-01", value))[0].startswith("file")


@pytest.mark.timeout(5)
def test_a_file_of_nested_aliases_is_read_in_no_time(file: Path) -> None:
    """A short file that unfolds into millions of parts is answered as fast as any other."""
    levels = [f"a{n}: &a{n} {{{', '.join(f'k{m}: *a{n - 1}' for m in range(10))}}}" for n in range(1, 9)]
    assert said_of(file, "\n".join(["a0: &a0 {k: 1}", *levels]))[0].startswith("file")


@pytest.mark.parametrize(
    "name", ["absent.yaml", "", "line\nbreak.yaml", "\x1b[31mred.yaml", "nul\x00.yaml"], ids=ascii
)
def test_a_file_that_cannot_be_opened_is_a_mistake(tmp_path: Path, name: str) -> None:
    """A query file that is missing, a directory or strangely named is reported on one line."""
    assert "cannot be read" in refused(tmp_path / name)[0]


@pytest.mark.parametrize(
    ("old", "new", "mistakes"),
    [
        ("google_ads", "Google", ["file:1 source: 'Google' is refused: a-z, then"]),
        ("google_ads", "[a]", ["file:1 source: "]),
        ("google_ads", "!!binary Z29vZ2xlX2Fkcw==", ["file:1 source: "]),
        ("source: google_ads", "sauce: google_ads", ["file:1 source: ", "file:1 sauce: "]),
        ("v26", "26", ["file:2 api_version: "]),
        ("v26", '"v26\\n"', ["file:2 api_version: "]),
        ("v26", "v26\napi_version: v27", ["file:3 api_version: stands already on line 2"]),
        ("v26", "v26\ncolour: blue", ["file:3 colour: "]),
        ("2024-01-01", "2024-02-30", ["file:3 start_date: '2024-02-30' is refused: a real day"]),
        ("2024-01-01", "2024-1-1", ["file:3 start_date: '2024-1-1' is refused: a real day"]),
        ("2024-01-01", "2024-01-01T00:00:00Z", ["file:3 start_date: "]),
        ("2024-01-01", "20240101", ["file:3 start_date: 20240101 is refused"]),
        ("2024-01-01", "null", ["file:3 start_date: None is refused"]),
        ("campaign_daily", "Campaign", ["file:5 queries.Campaign: 'Campaign' is refused: a-z, then"]),
        ("campaign_daily", '"a\\nb"', ["file:5 queries.a\\nb: 'a\\nb' is refused"]),
        ("campaign_daily", "7", ["file:5 queries.7: "]),
        ('"1"', "1", ["file:6 queries.campaign_daily.schema_version: "]),
        ('"1"', "true", ["file:6 queries.campaign_daily.schema_version: "]),
        ('"1"', '""', ["file:6 queries.campaign_daily.schema_version: '' is refused"]),
        ('"1"', '"1"\n    limit: 3', ["file:7 queries.campaign_daily.limit: "]),
        (
            '"1"',
            '"1"\n    schema_version: "2"',
            ["file:7 queries.campaign_daily.schema_version: stands already on line 6"],
        ),
        (f"    gaql: {GAQL}\n", "", ["file:5 queries.campaign_daily.gaql: "]),
        (f"gaql: {GAQL}", "gaql: [SELECT]", ["file:7 queries.campaign_daily.gaql: "]),
    ],
)
def test_a_wrong_value_is_told_with_its_line(file: Path, old: str, new: str, mistakes: list[str]) -> None:
    """A name, a type, a day or a key that is wrong is reported where it stands, and nothing else is."""
    said = said_of(file, changed(old, new))
    assert len(said) == len(mistakes)
    assert all(line.startswith(expected) for line, expected in zip(said, mistakes, strict=True))


def test_a_file_without_queries_is_refused(file: Path) -> None:
    """There is nothing to run without a query."""
    (said,) = said_of(file, DOCUMENT.partition("queries:")[0] + "queries: {}\n")
    assert said.startswith("file:4 queries: ")


@pytest.mark.parametrize(
    ("gaql", "problem"),
    [
        (f"{GAQL} WHERE campaign.id = 1", "with no WHERE, ORDER BY or LIMIT"),
        (f"{GAQL} LIMIT 10", "with no WHERE, ORDER BY or LIMIT"),
        (f"{GAQL}\nORDER BY segments.date", "with no WHERE, ORDER BY or LIMIT"),
        (f"{GAQL} PARAMETERS include_drafts=true", "must read SELECT"),
        (f"{GAQL}; SELECT 1", "must read SELECT"),
        (f"{GAQL}, ad_group", "must read SELECT"),
        ("SELECT * FROM campaign", "must read SELECT"),
        ("SELECT FROM campaign", "must read SELECT"),
        ("SELECT segments.date, customer.id", "must read SELECT"),
        ("DELETE segments.date, customer.id FROM campaign", "must read SELECT"),
        ("select segments.date, customer.id from campaign", "must read SELECT"),
        ("SELECT segments.date, customer.id, caf\u00e9.id FROM campaign", "must read SELECT"),
        ("SELECT segments.date, customer.id, \u0661.id FROM campaign", "must read SELECT"),
        ("SELECT segments.date, customer.id FROM\u00a0campaign", "must read SELECT"),
        ("", "must read SELECT"),
        ("SELECT customer.id FROM campaign", "must select segments.date"),
        ("SELECT segments.date FROM campaign", "must select customer.id"),
        ("SELECT segments.date, customer.id, a.b, a.b FROM campaign", "selects a.b twice"),
        ("SELECT segments.date, customer.id, clicks FROM campaign", "'clicks' is not the name of a field"),
        ("SELECT segments.date, customer.id, a..b FROM campaign", "'a..b' is not the name of a field"),
        ("SELECT segments.date, customer.id, 1.b FROM campaign", "'1.b' is not the name of a field"),
        ("SELECT segments.date, customer.id, a.b c.d FROM campaign", "'a.b c.d' is not the name of a field"),
        ("SELECT segments.date, customer.id, FROM campaign", "'' is not the name of a field"),
    ],
)
def test_a_query_that_no_partition_can_complete_is_refused(file: Path, gaql: str, problem: str) -> None:
    """A query names fields of one resource, its day and customer among them, and leaves the days to the partition."""
    document = yaml.safe_load(DOCUMENT)
    document["queries"]["campaign_daily"]["gaql"] = gaql
    (said,) = said_of(file, yaml.safe_dump(document, sort_keys=False))
    assert re.match(r"file:7 queries\.campaign_daily\.gaql: ", said)
    assert problem in said


def test_a_query_is_put_on_one_line(file: Path) -> None:
    """However a query is laid out, what is sent and hashed is one spelling of it."""
    laid_out = "|\n      SELECT\n        segments.date ,\n\n        customer.id\n      FROM\tcampaign\n"
    file.write_text(changed(GAQL, laid_out))
    assert read_settings({QUERIES: str(file)}).query("campaign_daily").gaql == GAQL


@pytest.mark.parametrize(
    "name", ["Campaign", "", "campaign_daily\n", "../x", "a" * 65, None, 7, ["campaign_daily"]], ids=ascii
)
def test_a_malformed_query_name_is_refused(name: Any) -> None:
    """A query is asked for by a name that could be one."""
    with pytest.raises(BadName, match=r"^query_name: .* is refused: a-z"):
        read_settings({}).query(name)


def test_an_unknown_query_is_refused_with_the_known_ones(file: Path) -> None:
    """Whoever asks for a query that is not defined learns which are, and where."""
    settings: Settings = read_settings({QUERIES: str(file)})
    with pytest.raises(BadName, match=r"^query_name: 'nope' is refused: ") as caught:
        settings.query("nope")
    assert str(caught.value).endswith(f"{file} defines only campaign_daily")
    with pytest.raises(BadName, match=r"ad_group_daily, campaign_daily, keyword_daily, search_term_daily$"):
        read_settings({}).query("nope")
