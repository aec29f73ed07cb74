"""Settings from the environment, validated together with the query file, which `query_file` reads.

Only this module reads the environment. Entry points read the settings once and pass values on. No message shows the
value of a variable, because it may be a secret.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.domain.days.materialization_status import Tenancy
from ads_pipeline.domain.errors import BadName, BadSettings, Mistake
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import NAME_RULES, validate_name
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.storage.open_store import is_bucket
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, GoogleApis, Query, read_query_file

PREFIX: Final = "ADS_PIPELINE_"
STEP_WAIT_VARIABLE: Final = "ADS_PIPELINE_STEP_WAIT_SECONDS"
VARIABLES: Final[Mapping[str, str]] = {
    "ADS_PIPELINE_HOME": "absolute path of the folder for SQLite and Dagster's files (~/.ads_pipeline)",
    "ADS_PIPELINE_LAKE": "s3://…, gs://…, abfss://… or a path: raw, warehouse, partition_status.parquet (home)",
    "ADS_PIPELINE_DATABASE_URL": "postgresql+psycopg2://… of the ledger and of Dagster's records (SQLite in home)",
    "ADS_PIPELINE_GOOGLE_ADS": "off, env (the client reads GOOGLE_ADS_…), or the path of a google-ads.yaml (off)",
    "ADS_PIPELINE_QUERIES": "path of the query file (google_apis.yaml in home; without it, the one of the package)",
    "ADS_PIPELINE_SPARK": "a master (local[2], spark://…, yarn), sc://… (Connect), or module:function (local[*])",
    "ADS_PIPELINE_FILE_ACCESS": "who may open new files below home: owner, or umask to let the umask decide (owner)",
    "ADS_PIPELINE_LEASE_SECONDS": "seconds after which a silent run loses its partitions, at least 5 (120)",
    STEP_WAIT_VARIABLE: "seconds that a run waits for its next step, if steps are processes, at least 5 (600)",
    "ADS_PIPELINE_ARRIVAL_SECONDS": "seconds between searches for sealed runs, at least 5 (5; with a bucket 15)",
    "ADS_PIPELINE_SAMPLE_TEXT": "yes: reasons of rejections quote texts of payloads, not only their length (no)",
    "ADS_PIPELINE_WEBHOOK": "https://… that the sensor notifications sends messages to; a secret (none)",
    "ADS_PIPELINE_LOG": "text or json: log records on standard error (none; the log of a Dagster run has them)",
    "ADS_PIPELINE_TENANT": "tenant_id in partition_status (default)",
    "ADS_PIPELINE_WORKSPACE": "workspace_id in partition_status (the source's name)",
}
DAGSTER_SETTINGS: Final = Path(__file__).parent / "config" / "dagster.yaml"  # for every instance of Dagster
POSTGRES_PREFIX: Final = "postgresql+psycopg2://"
POSTGRES_FORM: Final = (
    f"{POSTGRES_PREFIX}user:password@host:port/database, with reserved characters percent-encoded, such as %40 for @"
)
SPARK_FORM: Final = (
    "local, local[2], yarn, spark://host:port, k8s://host:port, sc://host:port/;name=value "
    "with reserved characters in a value percent-encoded, or module:function"
)
WEBHOOK_FORM: Final = "https://host/path or http://host/path, without a user name"
PATH_FORM: Final = "an absolute path without % or a backslash"
HOME_FORM: Final = "an absolute path without %, ? or a backslash, with which Dagster would open other files"
LAKE_FORM: Final = (
    "s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix, with letters, "
    f"digits and ._=- in the prefix, or {PATH_FORM}"
)
MIN_LEASE_SECONDS: Final = 5  # a shorter lease could expire while a busy database delays its renewal
MAX_LEASE_SECONDS: Final = 86_400
MIN_ARRIVAL_SECONDS: Final = 5  # Dagster evaluates no sensor more often
ARRIVAL_SECONDS_OF_A_BUCKET: Final = 15  # each search lists objects, which the provider bills

# Reserved characters must be encoded. Otherwise libraries disagree where a password ends, and show a part of it.
_TEXT = r"(?:[^\s@/:?#%\[\]]|%(?!00)[0-9A-Fa-f]{2})"
_PORT = r"(?::[0-9]{1,5})?"
_HOST = rf"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]){_PORT}"
_POSTGRES_URL = re.compile(
    # Dagster's notifications fail with SQLAlchemy's default driver, so the driver must be named.
    rf"{re.escape(POSTGRES_PREFIX)}(?:{_TEXT}+(?::{_TEXT}*)?@)?(?:{_HOST})?(?:/{_TEXT}*)?"
    r"(?:\?(?:[^\s@#%]|%(?!00)[0-9A-Fa-f]{2})*)?"
)
_SPARK = re.compile(
    rf"local|local\[[0-9*, ]+\]|yarn|spark://{_HOST}(?:,{_HOST})*|k8s://(?:https?://)?{_HOST}"
    r"|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"
    r"|sc://" + _HOST + r"(?:/(?:;[A-Za-z0-9_-]+=(?:[^\s;=/?#%]|%[0-9A-Fa-f]{2})*)*)?"
)
_WEBHOOK = re.compile(rf"https?://{_HOST}(?:[/?][^\s#@\\]*)?")
_PATH = re.compile(r"[^\\%]+")  # Delta's libraries decode % in paths and read a backslash as a slash: other files
_BUCKET = re.compile(
    r"(?:(?:s3|gs)://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]|abfss://[a-z0-9-]{1,63}@[a-z0-9.-]{3,200})"
    r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._=-]{1,200}){0,20}/?"
)
_LABEL, _LABEL_FORM = NAME_RULES["label"]


def _expand_user(text: str) -> Path:
    """The path with ~ expanded, unless it names an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def is_postgres_url(text: str) -> bool:
    """True if every library reads this URL alike, and finds nothing to complain about that it would quote."""
    return text.isprintable() and _POSTGRES_URL.fullmatch(text) is not None


def _is_path(text: str) -> bool:
    return text.isprintable() and _PATH.fullmatch(text) is not None and _expand_user(text).is_absolute()


def _is_home(text: str) -> bool:
    return _is_path(text) and "?" not in text  # it begins the options of an address of SQLite


# The form of each variable's value, and its check.
_FORMS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "ADS_PIPELINE_HOME": (HOME_FORM, _is_home),
    "ADS_PIPELINE_LAKE": (LAKE_FORM, lambda text: _BUCKET.fullmatch(text) or _is_path(text)),
    "ADS_PIPELINE_DATABASE_URL": (POSTGRES_FORM, is_postgres_url),
    "ADS_PIPELINE_GOOGLE_ADS": (
        "off, env or an absolute path",
        lambda text: text in {"off", "env"} or _expand_user(text).is_absolute(),
    ),
    "ADS_PIPELINE_SPARK": (SPARK_FORM, _SPARK.fullmatch),
    "ADS_PIPELINE_FILE_ACCESS": ("owner or umask", {"owner", "umask"}.__contains__),
    "ADS_PIPELINE_LEASE_SECONDS": (
        f"whole seconds, from {MIN_LEASE_SECONDS} to {MAX_LEASE_SECONDS}",
        lambda text: re.fullmatch(r"[0-9]{1,6}", text) and MIN_LEASE_SECONDS <= int(text) <= MAX_LEASE_SECONDS,
    ),
    STEP_WAIT_VARIABLE: (
        f"whole seconds, from {MIN_LEASE_SECONDS} to {MAX_LEASE_SECONDS}",
        lambda text: re.fullmatch(r"[0-9]{1,6}", text) and MIN_LEASE_SECONDS <= int(text) <= MAX_LEASE_SECONDS,
    ),
    "ADS_PIPELINE_ARRIVAL_SECONDS": (
        f"whole seconds, from {MIN_ARRIVAL_SECONDS} to {MAX_LEASE_SECONDS}",
        lambda text: re.fullmatch(r"[0-9]{1,6}", text) and MIN_ARRIVAL_SECONDS <= int(text) <= MAX_LEASE_SECONDS,
    ),
    "ADS_PIPELINE_SAMPLE_TEXT": ("yes or no", lambda text: text in {"yes", "no"}),
    "ADS_PIPELINE_WEBHOOK": (WEBHOOK_FORM, _WEBHOOK.fullmatch),
    "ADS_PIPELINE_LOG": ("text or json", {"text", "json"}.__contains__),
    "ADS_PIPELINE_TENANT": (_LABEL_FORM, _LABEL.fullmatch),
    "ADS_PIPELINE_WORKSPACE": (_LABEL_FORM, _LABEL.fullmatch),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a deployment."""

    home: Path
    lake: str  # a path, or a location in a bucket
    queries_file: Path
    google_apis: GoogleApis
    spark: str = field(default="local[*]", repr=False)  # may hold a token
    postgres_url: str | None = field(default=None, repr=False)  # may hold a password
    webhook: str | None = field(default=None, repr=False)  # whoever knows it can write to it
    log_format: str | None = None
    tenancy: Tenancy = field(default_factory=Tenancy)
    lease: timedelta = timedelta(seconds=120)
    step_wait: timedelta = timedelta(seconds=600)  # of a run whose steps are processes of their own
    arrival_interval: timedelta = timedelta(seconds=MIN_ARRIVAL_SECONDS)
    google_ads: str | None = field(default=None, repr=False)  # env or a path; None: extractors run elsewhere
    sample_text: bool = False  # whether reasons quote texts of payloads, which may be personal data
    access_by_umask: bool = False
    invocation: str = ""  # before each command that is printed: variables, where the environment has none

    def command(self, text: str) -> str:
        """A command of `ads-pipeline` as it works in any shell; empty for none."""
        return f"{self.invocation}{text}" if text else ""

    @property
    def database_url(self) -> str:
        return self.postgres_url or sqlite_url(self.home / "ledger.db")

    @property
    def retry_policy(self) -> RetryPolicy:
        return self.google_apis.retries.policy

    @property
    def status_file(self) -> str:
        return f"{self.lake}/partition_status.parquet"

    @property
    def raw_location(self) -> str:
        return f"{self.lake}/raw"

    @property
    def warehouse_location(self) -> str:
        return f"{self.lake}/warehouse"

    def query(self, name: str) -> Query:
        """The query with this name; BadName lists the known names."""
        validate_name("query_name", name)
        try:
            return self.google_apis.queries[name]
        except KeyError:
            known = sorted(self.google_apis.queries)
            matches = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {matches[0]}? " if matches else ""
            raise BadName("query_name", name, f"{hint}{self.queries_file} defines only {', '.join(known)}") from None


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file, whose path may contain any character."""
    import sqlalchemy as sa  # noqa: PLC0415 - takes longer to load than all settings; a command's help needs none

    return sa.URL.create("sqlite", database=str(path)).render_as_string()


def has_ledger(settings: Settings) -> bool:
    """True if a ledger in SQLite exists. One in Postgres is taken to exist, because only a connection can tell."""
    return settings.postgres_url is not None or (settings.home / "ledger.db").exists()


def abbreviate_home(path: Path) -> str:
    """The path as a person writes it: with ~ for the home directory of the user."""
    with suppress(RuntimeError, ValueError):
        return str("~" / path.relative_to(Path.home()))
    return str(path)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings; BadSettings lists every mistake in the environment and in the query file."""
    values = {name: environ[name] for name in VARIABLES if environ.get(name)}
    mistakes = _find_unknown_variables(environ) + [
        Mistake(location=name, problem=f"must be {form}")
        for name, (form, is_valid) in _FORMS.items()
        if name in values and not (values[name].isprintable() and is_valid(values[name]))
    ]
    home = find_home(values)
    if "ADS_PIPELINE_HOME" not in values and not _is_home(str(home)):
        has_home = home.is_absolute()
        reason = "the default cannot be used" if has_home else "this user has no home directory for the default"
        problem = f"is not set, and {reason}; set it to {HOME_FORM}"
        mistakes.append(Mistake(location="ADS_PIPELINE_HOME", problem=problem))
    lake = _find_lake(values.get("ADS_PIPELINE_LAKE"), home)
    searches = ARRIVAL_SECONDS_OF_A_BUCKET if is_bucket(lake) else MIN_ARRIVAL_SECONDS
    if is_bucket(lake) and "ADS_PIPELINE_DATABASE_URL" not in values:
        problem = f"a lake in a bucket needs a ledger in Postgres: set it to {POSTGRES_FORM}"
        mistakes.append(Mistake(location="ADS_PIPELINE_DATABASE_URL", problem=problem))
    queries_file = _find_query_file(values.get("ADS_PIPELINE_QUERIES"), home)
    google_apis = read_query_file(queries_file, mistakes)
    if mistakes or google_apis is None:
        raise BadSettings(tuple(mistakes))
    return Settings(
        home=home,
        lake=lake,
        queries_file=queries_file,
        google_apis=google_apis,
        spark=values.get("ADS_PIPELINE_SPARK", "local[*]"),
        postgres_url=values.get("ADS_PIPELINE_DATABASE_URL"),
        log_format=find_log_format(environ),
        webhook=values.get("ADS_PIPELINE_WEBHOOK"),
        tenancy=Tenancy(
            tenant_id=values.get("ADS_PIPELINE_TENANT", Tenancy().tenant_id),
            workspace_id=values.get("ADS_PIPELINE_WORKSPACE"),
        ),
        lease=timedelta(seconds=int(values.get("ADS_PIPELINE_LEASE_SECONDS", "120"))),
        step_wait=timedelta(seconds=int(values.get(STEP_WAIT_VARIABLE, "600"))),
        arrival_interval=timedelta(seconds=int(values.get("ADS_PIPELINE_ARRIVAL_SECONDS", searches))),
        google_ads=_find_extraction(values.get("ADS_PIPELINE_GOOGLE_ADS", "off")),
        sample_text=values.get("ADS_PIPELINE_SAMPLE_TEXT") == "yes",
        access_by_umask=has_access_by_umask(environ),
    )


def find_home(environ: Mapping[str, str]) -> Path:
    """The folder of SQLite and Dagster's files. `read_settings` tells whether it can be used."""
    return _expand_user(environ.get("ADS_PIPELINE_HOME") or "~/.ads_pipeline")


def _find_lake(value: str | None, home: Path) -> str:
    if value is None:
        return str(home)
    return value.rstrip("/") if is_bucket(value) else str(_expand_user(value))


def _find_extraction(value: str) -> str | None:
    return {"off": None, "env": "env"}.get(value, str(_expand_user(value)))


def _find_query_file(named: str | None, home: Path) -> Path:
    """The named query file, or else that of the home, or else that of the package."""
    if named is not None:
        return _expand_user(named)
    with suppress(OSError, ValueError):  # a home that cannot be opened is reported by whoever needs it
        if (own := home / DEFAULT_QUERIES_FILE.name).is_file():
            return own
    return DEFAULT_QUERIES_FILE


def has_access_by_umask(environ: Mapping[str, str]) -> bool:
    """True if the umask alone decides who may open new files. Entry points pass it to `leave_access_to_umask`."""
    return environ.get("ADS_PIPELINE_FILE_ACCESS") == "umask"


def find_log_format(environ: Mapping[str, str]) -> str | None:
    """The form of log records on standard error. Entry points pass it to `configure_logging`."""
    value = environ.get("ADS_PIPELINE_LOG")
    return value if value in {"text", "json"} else None


def _find_unknown_variables(environ: Mapping[str, str]) -> list[Mistake]:
    """Report misspelt variables, which would otherwise silently leave a default in place."""
    mistakes = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            matches = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {matches[0]}?" if matches else f"known are {', '.join(VARIABLES)}"
            mistakes.append(Mistake(location=printable(name), problem=f"no such setting; {hint}"))
    return mistakes
