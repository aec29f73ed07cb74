"""Settings: the environment, the query file, and the report of every mistake at once."""

import re
import time
import traceback
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from hypothesis import assume, example, given
from hypothesis.strategies import integers, sampled_from, text
from pydantic import ValidationError
from typer.testing import CliRunner

from ads_pipeline.domain.days.materialization_status import FreshnessPolicy, Tenancy
from ads_pipeline.domain.errors import BadName, BadSettings
from ads_pipeline.domain.fetching.quota import QuotaLimits
from ads_pipeline.domain.quoting import printable
from ads_pipeline.operations.cli.main import app
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.settings import environment as settings_module
from ads_pipeline.settings.environment import (
    HOME_FORM,
    POSTGRES_FORM,
    VARIABLES,
    Settings,
    is_postgres_url,
    read_settings,
)
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE

HOME, URL, QUERIES = "ADS_PIPELINE_HOME", "ADS_PIPELINE_DATABASE_URL", "ADS_PIPELINE_QUERIES"
LAKE = "ADS_PIPELINE_LAKE"
TENANT, WORKSPACE = "ADS_PIPELINE_TENANT", "ADS_PIPELINE_WORKSPACE"
GOOGLE_ADS = "ADS_PIPELINE_GOOGLE_ADS"
ARRIVAL = "ADS_PIPELINE_ARRIVAL_SECONDS"
LEASE, SPARK = "ADS_PIPELINE_LEASE_SECONDS", "ADS_PIPELINE_SPARK"
STEP_WAIT = "ADS_PIPELINE_STEP_WAIT_SECONDS"
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


POSTGRES_TEMPLATES = (
    "postgresql+psycopg2://ads:x@{}@db/ledger",
    "postgresql+psycopg2://ads:{}/@db:port/ledger",
    "postgresql://ads:{}@db/ledger",
    "postgresql+psycopg2://ads:{} @db/ledger",
)
TEMPLATES = {
    URL: POSTGRES_TEMPLATES,
    SPARK: ("sc://host:1/path;token={}", "sc://host:1/;token=x={}", "sc://{}:x:1", "spark://user:{}@host:1/"),
    "--to": POSTGRES_TEMPLATES,
}
COMMON_TEXT = "\n".join(
    [
        f"{VARIABLES}{POSTGRES_FORM}",
        *(path.read_text() for path in Path(settings_module.__file__).parent.glob("*.py")),
    ]
)


@pytest.fixture(scope="module", autouse=True)
def _user_without_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The person who runs the tests may use the product: no test reads the query file in their home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("user")))
        yield


def parts(password: str) -> list[str]:
    """Every four characters in a row, as a message would show them."""
    return [printable(password[start : start + 4]) for start in range(len(password) - 3)]


def ledger_copy_message(url: str) -> str:
    done = CliRunner().invoke(app, ["ledger", "copy", "--to", url])
    assert done.exit_code == 64
    return done.output


def settings_message(variable: str, value: str) -> str:
    """The text of the settings, or the traceback of their refusal."""
    try:
        return repr(read_settings({variable: value}))
    except BadSettings as error:
        return "".join(traceback.format_exception(error))


@pytest.fixture
def query_file(tmp_path: Path) -> Path:
    """A valid query file."""
    path = tmp_path / "google_apis.yaml"
    path.write_text(DOCUMENT)
    return path


def read_mistakes(query_file: Path, **variables: str) -> list[str]:
    """The mistakes that reading reports, with the query file's path replaced."""
    with pytest.raises(BadSettings) as caught:
        read_settings({QUERIES: str(query_file), **variables})
    first, *lines = str(caught.value).split("\n")
    assert lines == [f"  {mistake}" for mistake in caught.value.mistakes]
    assert all(line.isprintable() for line in (first, *lines))
    return [str(mistake).replace(str(query_file), "file") for mistake in caught.value.mistakes]


def mistakes_in(query_file: Path, content: str | bytes) -> list[str]:
    query_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_mistakes(query_file)


def change_document(old: str, new: str) -> str:
    assert DOCUMENT.count(old) == 1
    return DOCUMENT.replace(old, new)


def test_empty_environment_gives_defaults() -> None:
    """Without variables: a directory in the user's home, SQLite in it, and the shipped queries."""
    for environ in ({}, dict.fromkeys(VARIABLES, "")):
        settings = read_settings(environ)
        assert settings.home == Path.home() / ".ads_pipeline"
        assert settings.database_url == f"sqlite:///{settings.home}/ledger.db"
        assert settings.raw_location == f"{settings.home}/raw"
        assert settings.warehouse_location == f"{settings.home}/warehouse"
        assert settings.queries_file == DEFAULT_QUERIES_FILE


def test_query_file_of_the_home_is_used(query_file: Path, tmp_path: Path) -> None:
    """Unless the variable names another one. Its mistakes are reported with their lines."""
    home = tmp_path / "home"
    home.mkdir()
    own = home / DEFAULT_QUERIES_FILE.name
    own.write_text(DOCUMENT.replace("2024-01-01", "2026-11-12"))
    settings = read_settings({HOME: str(home)})
    assert (settings.queries_file, settings.google_apis.start_date) == (own, date(2026, 11, 12))
    assert read_settings({HOME: str(home), QUERIES: str(query_file)}).queries_file == query_file
    own.write_text(DOCUMENT.replace("2024-01-01", "2026-11-31"))
    with pytest.raises(BadSettings, match=re.escape(f"{own}:3 start_date")):
        read_settings({HOME: str(home)})


def test_each_variable_is_used(query_file: Path, tmp_path: Path) -> None:
    """Home, database and query file come from the environment."""
    url = "postgresql+psycopg2://ads@db/ledger"
    settings = read_settings({HOME: str(tmp_path), URL: url, QUERIES: str(query_file), "PATH": "/bin", "ADS": "1"})
    assert (settings.home, settings.database_url, settings.queries_file) == (tmp_path, url, query_file)
    assert settings.google_apis.start_date == date(2024, 1, 1)
    assert settings.query("campaign_daily").gaql == GAQL
    assert read_settings({HOME: "~/ads"}).home == Path.home() / "ads"


@pytest.mark.parametrize(
    "lake",
    [
        "s3://lake",
        "s3://my-lake.eu/ads/v_1/a=b",
        "gs://my_lake/ads",
        "abfss://lake@account.dfs.core.windows.net/ads",
        "abfss://lake@account.dfs.core.windows.net",
    ],
)
def test_lake_may_be_a_bucket(query_file: Path, tmp_path: Path, lake: str) -> None:
    """Raw, warehouse and the status file are in the lake; the home stays local. A final slash changes nothing."""
    postgres = "postgresql+psycopg2://ads@db/ledger"
    for written in (lake, f"{lake}/"):
        settings = read_settings({HOME: str(tmp_path), LAKE: written, URL: postgres, QUERIES: str(query_file)})
        assert (settings.home, settings.lake) == (tmp_path, lake)
        assert settings.raw_location == f"{lake}/raw"
        assert settings.warehouse_location == f"{lake}/warehouse"
        assert settings.status_file == f"{lake}/partition_status.parquet"


def test_lake_in_a_bucket_needs_postgres(query_file: Path) -> None:
    """SQLite is on one machine, and a bucket is for several: the settings say which variable is missing."""
    (mistake,) = read_mistakes(query_file, **{LAKE: "s3://lake/ads"})
    assert mistake.startswith("ADS_PIPELINE_DATABASE_URL: a lake in a bucket needs a ledger in Postgres: set it to ")


def test_lake_may_be_a_path(query_file: Path, tmp_path: Path) -> None:
    """A path needs no Postgres, and may begin with the user's home."""
    settings = read_settings({HOME: str(tmp_path), LAKE: "~/lake/", QUERIES: str(query_file)})
    assert settings.raw_location == f"{Path.home()}/lake/raw"
    assert settings.database_url == f"sqlite:///{tmp_path}/ledger.db"


@pytest.mark.parametrize(
    "lake",
    [
        "lake",
        "s3://",
        "s3:///ads",
        "s3://Lake",
        "s3://lake//ads",
        "s3://lake/../other",
        "s3://lake/./ads",
        "s3://lake/a b",
        "s3://lake/%2e",
        "s3://lake/ads?versionId=1",
        "s3://key:secret@lake/ads",
        "s3a://lake/ads",
        "https://lake.s3.amazonaws.com/ads",
        "abfss://lake/ads",
        "abfss://lake@/ads",
        "/lake/100%",
    ],
)
def test_invalid_lake_is_refused(query_file: Path, lake: str) -> None:
    """A relative path, credentials in a location, and a scheme that the product does not know, are refused."""
    (mistake,) = read_mistakes(query_file, **{LAKE: lake, URL: "postgresql+psycopg2://ads@db/ledger"})
    assert mistake.startswith("ADS_PIPELINE_LAKE: must be s3://bucket/prefix, gs://bucket/prefix, ")
    assert "secret" not in mistake


def test_shipped_queries_are_valid() -> None:
    """The four shipped queries are valid; each selects its fields once, with date and customer."""
    apis = read_settings({}).google_apis
    assert apis.source == "google_ads"
    assert set(apis.queries) == {"campaign_daily", "ad_group_daily", "keyword_daily", "search_term_daily"}
    for query in apis.queries.values():
        selected = query.gaql.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
        assert len(set(selected)) == len(selected)
        assert {"segments.date", "customer.id"} < set(selected)
        assert query.gaql.isprintable()


def test_settings_are_immutable(query_file: Path) -> None:
    """No part of the settings can be changed after reading."""
    settings = read_settings({QUERIES: str(query_file)})
    with pytest.raises(FrozenInstanceError):
        settings.home = Path("/")  # type: ignore[misc]
    for document, name in ((settings.google_apis, "source"), (settings.query("campaign_daily"), "gaql")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(document, name, "other")


def test_queries_are_immutable(query_file: Path) -> None:
    """No query can be added to or removed from the settings."""
    queries: Any = read_settings({QUERIES: str(query_file)}).google_apis.queries
    with pytest.raises((TypeError, AttributeError)):
        queries["unchecked"] = "DELETE"


def test_reread_days_are_the_freshness_policy(query_file: Path) -> None:
    """`reread_after_days` is the freshness policy of its query; without it nothing becomes stale by age."""
    assert read_settings({QUERIES: str(query_file)}).query("campaign_daily").freshness_policy == FreshnessPolicy()
    for written, days in (("[3, 30]", (3, 30)), ("[]", ()), ("[1]", (1,)), ("\n      - 7\n      - 90", (7, 90))):
        query_file.write_text(change_document('"1"', f'"1"\n    reread_after_days: {written}'))
        policy = read_settings({QUERIES: str(query_file)}).query("campaign_daily").freshness_policy
        assert policy == FreshnessPolicy(reread_after_days=days)


@pytest.mark.parametrize(
    ("days", "problem"),
    [
        ("30", "must be a list of days, such as [3, 30]"),
        ('"3, 30"', "must be a list of days"),
        ("{a: 3}", "must be a list of days"),
        ("null", "must be a list of days"),
        ("[30, 3]", "reread_after_days: (30, 3) must be whole days in ascending order"),
        ("[3, 3]", "reread_after_days: (3, 3) must be whole days"),
        ("[0]", "reread_after_days: (0,) must be whole days"),
        ("[-1, 3]", "reread_after_days: (-1, 3) must be whole days"),
        ("[1.5]", "reread_after_days: (1.5,) must be whole days"),
        ("[true]", "reread_after_days: (True,) must be whole days"),
        ('["3"]', "reread_after_days: ('3',) must be whole days"),
        ("[[3]]", "reread_after_days: ([3],) must be whole days"),
        ("[null]", "reread_after_days: (None,) must be whole days"),
        (r'["\x1b[31m"]', r"reread_after_days: ('\x1b[31m',) must be whole days"),
    ],
)
def test_invalid_reread_days_are_refused(query_file: Path, days: str, problem: str) -> None:
    """An invalid list of days is reported with its line."""
    (mistake,) = mistakes_in(query_file, change_document('"1"', f'"1"\n    reread_after_days: {days}'))
    assert mistake.startswith(f"file:7 queries.campaign_daily.reread_after_days: {problem}")


def test_due_after_hours_is_the_deadline_of_its_query(query_file: Path) -> None:
    """Without it, a day is due twelve hours after its end."""
    default = read_settings({QUERIES: str(query_file)}).google_apis.due_after
    assert default["campaign_daily"] == timedelta(hours=12)
    query_file.write_text(change_document('"1"', '"1"\n    due_after_hours: 30'))
    assert read_settings({QUERIES: str(query_file)}).google_apis.due_after == default | {
        "campaign_daily": timedelta(hours=30)
    }


@pytest.mark.parametrize("hours", ["-1", "73", "1.5", '"12"', "null", "true"])
def test_invalid_due_after_hours_are_refused(query_file: Path, hours: str) -> None:
    """An invalid number is reported with its line. After three days an absent day is missing, not late."""
    (mistake,) = mistakes_in(query_file, change_document('"1"', f'"1"\n    due_after_hours: {hours}'))
    assert mistake.startswith("file:7 queries.campaign_daily.due_after_hours: Input should be ")


def test_tenancy_comes_from_environment(query_file: Path, tmp_path: Path) -> None:
    """Tenant and workspace come from the environment; by default the tenant is "default"."""
    assert read_settings({QUERIES: str(query_file)}).tenancy == Tenancy(tenant_id="default", workspace_id=None)
    named = read_settings({QUERIES: str(query_file), TENANT: "acme-1", WORKSPACE: "ads_eu", HOME: str(tmp_path)})
    assert named.tenancy == Tenancy(tenant_id="acme-1", workspace_id="ads_eu")
    assert read_settings({QUERIES: str(query_file), TENANT: "", WORKSPACE: ""}).tenancy == Tenancy()
    assert named.status_file == f"{tmp_path}/partition_status.parquet"


@pytest.mark.parametrize("variable", ["ADS_PIPELINE_TENANT", "ADS_PIPELINE_WORKSPACE"])
@pytest.mark.parametrize(
    "name", [" ", "a b", "a|b", "a/b", "../x", "a\n", "\x1b[31m", "ü", "-a", "a" * 97, "a,b", "\u0661"], ids=ascii
)
def test_invalid_tenancy_is_refused(query_file: Path, variable: str, name: str) -> None:
    """An invalid tenant or workspace is refused with its variable."""
    (mistake,) = read_mistakes(query_file, **{variable: name})
    assert mistake.startswith(f"{variable}: must be a letter or digit, then up to 95 of ")


@pytest.mark.parametrize(("text", "seconds"), [("", 120), ("5", 5), ("0900", 900), ("86400", 86400)])
def test_lease_comes_from_environment(query_file: Path, text: str, seconds: int) -> None:
    """A lease is whole seconds from five to a day, by default two minutes."""
    assert read_settings({QUERIES: str(query_file), LEASE: text}).lease == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["4", "0", "-5", "86401", "9" * 5000, "7.5", "1e2", " 60", "60s", "\u0661\u0662", "\n"]
)
def test_invalid_lease_is_refused(query_file: Path, text: str) -> None:
    """A lease that is too short, too long or not a number is refused."""
    (mistake,) = read_mistakes(query_file, **{LEASE: text})
    assert mistake == f"{LEASE}: must be whole seconds, from 5 to 86400"


def test_all_mistakes_are_reported_with_locations(query_file: Path) -> None:
    """One failed start names every wrong variable and every wrong line."""
    invalid = change_document("v26", "26").replace("2024-01-01", "2024-02-30").replace('"1"', "1")
    query_file.write_text(f"{invalid}colour: blue\n")
    mistakes = read_mistakes(query_file, **{HOME: "here", URL: "mysql://x", "ADS_PIPELINE_HOEM": "/x"})
    assert [line.partition(": ")[0] for line in mistakes] == [
        *("ADS_PIPELINE_HOEM", HOME, URL, "file:2 api_version", "file:3 start_date"),
        *("file:6 queries.campaign_daily.schema_version", "file:8 colour"),
    ]


def test_misspelt_variable_is_refused_with_suggestion(query_file: Path) -> None:
    """An unknown variable with our prefix is refused, with the most similar name."""
    assert read_mistakes(query_file, ADS_PIPELINE_HOEM="/x") == [
        f"ADS_PIPELINE_HOEM: no such setting; did you mean {HOME}?"
    ]
    assert read_mistakes(query_file, ADS_PIPELINE_DATABASE="x")[0].endswith(f"did you mean {URL}?")
    assert r"ADS_PIPELINE_\n\x1b[31m: no such" in read_mistakes(query_file, **{"ADS_PIPELINE_\n\x1b[31m": "x"})[0]


@pytest.mark.parametrize("home", ["here", "./here", "../here", "a/~", "/a%41", "/srv/100%", "/a?b", "/a\\b", "/a\nb"])
def test_unusable_home_is_refused(query_file: Path, home: str) -> None:
    """A relative home depends on the working directory. The Delta libraries and Dagster change others."""
    (mistake,) = read_mistakes(query_file, **{HOME: home})
    assert mistake == f"{HOME}: must be {HOME_FORM}"


def test_home_of_unknown_user_is_refused(query_file: Path) -> None:
    """The home directory of an unknown user is refused."""
    assert read_mistakes(query_file, **{HOME: "~no-such-user-here/ads"})[0].startswith(f"{HOME}: ")


@pytest.mark.parametrize("scheme", ["postgresql://", "postgres://", "postgresql+psycopg://", "mysql://", "", " "])
def test_other_driver_is_refused_without_showing_url(query_file: Path, scheme: str) -> None:
    """Only the driver psycopg2 is accepted, and the message shows nothing of the URL."""
    url = f"{scheme}ads:{SECRET}@db/ledger"
    assert read_mistakes(query_file, **{URL: url}) == [f"{URL}: must be {POSTGRES_FORM}"]


def test_no_secret_is_shown(query_file: Path) -> None:
    """No message, traceback or text of the settings contains a secret from the environment."""
    invalid = {name: SECRET for name in VARIABLES if name not in {TENANT, WORKSPACE}} | {"ADS_PIPELINE_PW": SECRET}
    with pytest.raises(BadSettings) as caught:
        read_settings({**invalid, TENANT: f"{SECRET}!", WORKSPACE: f"{SECRET}!", "DB_PASSWORD": SECRET})
    shown = [
        str(caught.value),
        repr(caught.value),
        repr(caught.value.mistakes),
        *traceback.format_exception(caught.value),
    ]
    assert {mistake.location for mistake in caught.value.mistakes} == {*VARIABLES, "ADS_PIPELINE_PW"}
    url, spark = f"postgresql+psycopg2://ads:{SECRET}@db/ledger", f"sc://spark:15002/;token={SECRET}"
    settings = read_settings({QUERIES: str(query_file), URL: url, SPARK: spark})
    shown += [str(settings), repr(settings), f"{settings}"]
    assert not [text for text in shown if SECRET in text]
    assert (settings.database_url, settings.spark) == (url, spark)


@pytest.mark.invariant("X1")
@given(text(min_size=4), sampled_from([URL, SPARK, "--to"]), integers(0, 3))
@example("p@ss", URL, 0)
@example("1234x:y", URL, 0)
@example("a%zz", URL, 0)
@example("x;abcd", SPARK, 0)
@example("ab=cd", SPARK, 0)
@example("to/ken", SPARK, 1)
def test_no_part_of_a_malformed_url_is_shown(password: str, variable: str, template: int) -> None:
    """No four characters of a password or token stand in a message, whatever breaks the form of its URL."""
    assume(not any(part in COMMON_TEXT for part in parts(password)))
    url = [*TEMPLATES[variable]][template % len(TEMPLATES[variable])].format(password)
    shown = ledger_copy_message(url) if variable == "--to" else settings_message(variable, url.replace("\0", ""))
    assert [part for part in parts(password) if part in shown] == []


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg2://db/ledger",
        "postgresql+psycopg2://ads@db/ledger",
        "postgresql+psycopg2://ads:p%40ss%3Aw%2Ford@db-1.example.org:5432/ledger",
        "postgresql+psycopg2://ads:pässwörd!$&'()*+,;=@db/ledger?sslmode=require&options=-c%20a%3Db",
        "postgresql+psycopg2://postgres:@/postgres?host=/tmp/pg/data",
        "postgresql+psycopg2://ads:x@[::1]:5432/ledger",
    ],
)
def test_valid_postgres_urls_are_accepted(url: str) -> None:
    """Encoded characters, sockets, options and IPv6 addresses are accepted, and SQLAlchemy reads the same parts."""
    assert is_postgres_url(url)
    assert read_settings({URL: url}).database_url == url
    assert sa.make_url(url).host in {"db", "db-1.example.org", "::1", None}


@pytest.mark.parametrize(
    "spark",
    [
        *("local", "local[*]", "local[2, 3]", "yarn", "spark://a:7077,b:7077", "k8s://https://host:6443"),
        *("sc://host", "sc://host:15002/", "sc://host:1/;token=a.b-c%3D;user_id=me;use_ssl=true"),
        "our_project.sessions:databricks",
    ],
)
def test_valid_spark_urls_are_accepted(spark: str) -> None:
    """Masters, Connect endpoints with parameters, and functions that return a session are accepted."""
    assert read_settings({SPARK: spark}).spark == spark


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
        ("queries: &a\n  b: *a\n", "file: cannot be read: line 2 has an alias"),
        ("&a [*a]", "file: cannot be read: line 1 has an alias"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_invalid_query_file_is_reported(query_file: Path, content: str | bytes, problem: str) -> None:
    """Any other content than queries is reported as a mistake with its location."""
    assert mistakes_in(query_file, content)[0].startswith(problem)


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
def test_invalid_yaml_scalar_is_reported(query_file: Path, value: str) -> None:
    """A scalar that contradicts its tag, or exceeds a number's limits, is reported and not raised."""
    assert mistakes_in(query_file, change_document("2024-01-01", value))[0].startswith("file")


def test_nested_aliases_are_refused_quickly(query_file: Path) -> None:
    """A short file that expands to millions of values is refused quickly."""
    levels = [f"a{n}: &a{n} {{{', '.join(f'k{m}: *a{n - 1}' for m in range(10))}}}" for n in range(1, 9)]
    started = time.thread_time()  # unlike wall time, other processes do not lengthen it
    assert mistakes_in(query_file, "\n".join(["a0: &a0 {k: 1}", *levels]))[0].startswith("file")
    assert time.thread_time() - started < 5


@pytest.mark.parametrize(
    "name", ["absent.yaml", "", "line\nbreak.yaml", "\x1b[31mred.yaml", "nul\x00.yaml"], ids=ascii
)
def test_unreadable_query_file_is_reported(tmp_path: Path, name: str) -> None:
    """A missing file, a directory and a strange file name are reported on one line."""
    assert "cannot be read" in read_mistakes(tmp_path / name)[0]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("google_ads", "Google", ["file:1 source: 'Google' is refused: a-z, then"]),
        ("google_ads", "[a]", ["file:1 source: "]),
        ("google_ads", "!!binary Z29vZ2xlX2Fkcw==", ["file:1 source: "]),
        ("source: google_ads", "sauce: google_ads", ["file:1 source: ", "file:1 sauce: "]),
        ("v26", "26", ["file:2 api_version: "]),
        ("v26", '"v26\\n"', ["file:2 api_version: "]),
        ("v26", "v26\napi_version: v27", ["file:3 api_version: duplicate key, first on line 2"]),
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
            ["file:7 queries.campaign_daily.schema_version: duplicate key, first on line 6"],
        ),
        (f"    gaql: {GAQL}\n", "", ["file:5 queries.campaign_daily.gaql: "]),
        (f"gaql: {GAQL}", "gaql: [SELECT]", ["file:7 queries.campaign_daily.gaql: "]),
    ],
)
def test_wrong_value_is_reported_with_line(query_file: Path, old: str, new: str, expected: list[str]) -> None:
    """A wrong name, type, date or key is reported with its line, and nothing else is reported."""
    mistakes = mistakes_in(query_file, change_document(old, new))
    assert len(mistakes) == len(expected)
    assert all(mistake.startswith(start) for mistake, start in zip(mistakes, expected, strict=True))


def test_query_file_without_queries_is_refused(query_file: Path) -> None:
    """A query file without queries is refused."""
    (mistake,) = mistakes_in(query_file, DOCUMENT.partition("queries:")[0] + "queries: {}\n")
    assert mistake.startswith("file:4 queries: ")


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
        (
            "SELECT segments.date, customer.id, recommendation.type, segments.recommendation_type FROM campaign",
            "segments.recommendation_type, which both become the column recommendation_type; keep one",
        ),
        (
            "SELECT segments.date, customer.id, metrics.customer_id FROM campaign",
            "selects customer.id and metrics.customer_id, which both become the column customer_id; keep one",
        ),
        ("SELECT segments.date, customer.id, clicks FROM campaign", "'clicks' is not a field name"),
        ("SELECT segments.date, customer.id, a..b FROM campaign", "'a..b' is not a field name"),
        ("SELECT segments.date, customer.id, 1.b FROM campaign", "'1.b' is not a field name"),
        ("SELECT segments.date, customer.id, a.b c.d FROM campaign", "'a.b c.d' is not a field name"),
        ("SELECT segments.date, customer.id, FROM campaign", "'' is not a field name"),
        *(
            (f"SELECT segments.date, customer.id, {field} FROM campaign", f"{field}: the column name")
            for field in ("metrics.run_id", "segments.is_current", "logical.date", "schema.version", "currency.code")
        ),
    ],
)
def test_unsupported_gaql_is_refused(query_file: Path, gaql: str, problem: str) -> None:
    """A query selects fields of one resource, with date and customer, and has no other clauses."""
    document = yaml.safe_load(DOCUMENT)
    document["queries"]["campaign_daily"]["gaql"] = gaql
    (mistake,) = mistakes_in(query_file, yaml.safe_dump(document, sort_keys=False))
    assert re.match(r"file:7 queries\.campaign_daily\.gaql: ", mistake)
    assert problem in mistake


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *((name, "reserved for a view") for name in ("days", "accounts", "restatements", "loads")),
        *((f"campaign{end}", f"end in {end}") for end in ("_current", "_latest", "_history", "_settled")),
    ],
)
def test_query_name_of_a_view_is_refused(query_file: Path, name: str, problem: str) -> None:
    """A query cannot have the name of a view of the warehouse, or one that a later release may add."""
    document = yaml.safe_load(DOCUMENT)
    document["queries"] = {name: document["queries"]["campaign_daily"]}
    (mistake,) = mistakes_in(query_file, yaml.safe_dump(document, sort_keys=False))
    assert mistake.startswith(f"file:5 queries.{name}: ")
    assert problem in mistake


def test_gaql_is_normalized_to_one_line(query_file: Path) -> None:
    """A query's layout does not change the text that is sent and hashed."""
    laid_out = "|\n      SELECT\n        segments.date ,\n\n        customer.id\n      FROM\tcampaign\n"
    query_file.write_text(change_document(GAQL, laid_out))
    assert read_settings({QUERIES: str(query_file)}).query("campaign_daily").gaql == GAQL


@pytest.mark.parametrize(
    "name", ["Campaign", "", "campaign_daily\n", "../x", "a" * 65, None, 7, ["campaign_daily"]], ids=ascii
)
def test_invalid_query_name_is_refused(name: Any) -> None:
    """An invalid query name is refused with the rule."""
    with pytest.raises(BadName, match=r"^query_name: .* is refused: a-z"):
        read_settings({}).query(name)


def test_unknown_query_is_refused_with_known_names(query_file: Path) -> None:
    """The message for an unknown query lists the known queries and the file."""
    settings: Settings = read_settings({QUERIES: str(query_file)})
    with pytest.raises(BadName, match=r"^query_name: 'nope' is refused: ") as caught:
        settings.query("nope")
    assert str(caught.value).endswith(f"{query_file} defines only campaign_daily")
    with pytest.raises(BadName, match=r"ad_group_daily, campaign_daily, keyword_daily, search_term_daily$"):
        read_settings({}).query("nope")


UNKNOWN_QUERY = "google_ads.customers.3456789012.queries.campain_daily"
SECTION = """\
google_ads:
  daily_operations: 15000
  reserved_for_fresh: 0.5
  close_lag_hours: 5
  reach_days: 1000
  login_customer_ids: [1234567890, "2345678901"]
  customers:
    3456789012:
      login_customer_id: 1234567890
      lookback_days: 60
      queries: {campaign_daily: 90}
"""


def test_extraction_is_off_unless_it_is_set(query_file: Path) -> None:
    """off, env or a file; nothing shows the path of the file."""
    assert read_settings({QUERIES: str(query_file)}).google_ads is None
    for value, expected in (("off", None), ("env", "env"), ("/etc/ads/google-ads.yaml", "/etc/ads/google-ads.yaml")):
        settings = read_settings({QUERIES: str(query_file), GOOGLE_ADS: value})
        assert (settings.google_ads, "google-ads.yaml" in repr(settings)) == (expected, False)
    expected_mistake = f"{GOOGLE_ADS}: must be off, env or an absolute path"
    for wrong in ("on", "google-ads.yaml", SECRET):
        assert read_mistakes(query_file, **{GOOGLE_ADS: wrong}) == [expected_mistake]


def test_extraction_section_is_read(query_file: Path) -> None:
    """Ids may be written as numbers."""
    query_file.write_text(DOCUMENT + SECTION)
    section = read_settings({QUERIES: str(query_file)}).google_apis.google_ads
    assert section.quota == QuotaLimits(daily_operations=15000, reserved_for_fresh=0.5)
    assert (section.close_lag, section.reach_days) == (timedelta(hours=5), 1000)
    assert section.login_customer_ids == ("1234567890", "2345678901")
    assert section.customers["3456789012"].login_customer_id == "1234567890"


@pytest.mark.parametrize(
    ("customer", "query", "of_query", "of_account", "days"),
    [
        ("3456789012", "campaign_daily", 7, 40, 90),
        ("3456789012", "other", 7, 40, 60),
        ("1", "campaign_daily", 7, 40, 7),
        ("1", "campaign_daily", None, 40, 40),
        ("1", "campaign_daily", None, None, 30),
    ],
)
def test_most_specific_lookback_counts(
    query_file: Path, customer: str, query: str, of_query: int | None, of_account: int | None, days: int
) -> None:
    """Customer and query, customer, query, the account's conversion windows, the default."""
    query_file.write_text(DOCUMENT + SECTION)
    section = read_settings({QUERIES: str(query_file)}).google_apis.google_ads
    assert section.find_lookback(customer, query, of_query=of_query, of_account=of_account) == days


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("15000", "0", "file:9 google_ads.daily_operations: Input should be greater than or equal to 1"),
        ("0.5", "0.6", "file:10 google_ads.reserved_for_fresh: Input should be less than or equal to 0.5"),
        ("hours: 5", "hours: -1", "file:11 google_ads.close_lag_hours: Input should be greater than or equal to 0"),
        ("1000", "2000", "file:12 google_ads.reach_days: Input should be less than or equal to 1126"),
        (
            "[1234567890,",
            "[123-456-7890,",
            "file:13 google_ads.login_customer_ids: must be ten digits without hyphens, such as 1234567890",
        ),
        (
            "    3456789012:",
            "    345678901:",
            "file:15 google_ads.customers.345678901: must be ten digits without hyphens, such as 1234567890",
        ),
        (
            "days: 60",
            "days: 91",
            "file:17 google_ads.customers.3456789012.lookback_days: Input should be less than or equal to 90",
        ),
        (
            "{campaign_daily",
            "{campain_daily",
            f"file:18 {UNKNOWN_QUERY}: no such query; did you mean campaign_daily?",
        ),
        ("reach_days", "developer_token", "file:12 google_ads.developer_token: Extra inputs are not permitted"),
    ],
)
def test_mistakes_of_the_extraction_section_have_lines(query_file: Path, old: str, new: str, mistake: str) -> None:
    """Each is reported before anything is called, and no credential is accepted here."""
    assert SECTION.count(old) == 1
    query_file.write_text(DOCUMENT + SECTION.replace(old, new))
    assert read_mistakes(query_file) == [mistake]


@pytest.mark.parametrize(
    ("values", "seconds"),
    [({}, 5), ({ARRIVAL: "30"}, 30), ({LAKE: "s3://bucket/x", URL: "postgresql+psycopg2://h/d"}, 15)],
)
def test_interval_of_searches_for_sealed_runs(values: dict[str, str], seconds: int) -> None:
    """In a bucket each search is billed."""
    read = read_settings({QUERIES: str(DEFAULT_QUERIES_FILE), **values})
    assert read.arrival_interval == timedelta(seconds=seconds)
    sensors = build_location(read).sensors or []
    assert [each.minimum_interval_seconds for each in sensors if each.name == "raw_arrivals"] == [seconds - 1]


@pytest.mark.parametrize("text", ["4", "0", "-5", "5.5", "100000", "five"])
def test_invalid_interval_is_refused(query_file: Path, text: str) -> None:
    """Dagster evaluates no sensor more often than every five seconds."""
    (mistake,) = read_mistakes(query_file, **{ARRIVAL: text})
    assert mistake == f"{ARRIVAL}: must be whole seconds, from 5 to 86400"
