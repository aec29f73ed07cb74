"""Settings from the environment and the query file (`config/google_apis.yaml`), validated together.

Only this module reads the environment. Entry points read the settings once and pass values on.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ads_pipeline.domain.freshness import FreshnessPolicy, Tenancy
from ads_pipeline.domain.partition import NAME_RULES, parse_date, validate_name
from ads_pipeline.domain.retry import RetryPolicy
from ads_pipeline.errors import BadName, BadSettings, Mistake
from ads_pipeline.quoting import printable, quoted

PREFIX = "ADS_PIPELINE_"
VARIABLES: Mapping[str, str] = {
    "ADS_PIPELINE_HOME": "absolute path of the folder for raw runs, the warehouse and SQLite (~/.ads_pipeline)",
    "ADS_PIPELINE_DATABASE_URL": "postgresql+psycopg2://… of the ledger and of Dagster's records (SQLite in home)",
    "ADS_PIPELINE_QUERIES": "path of the query file (the google_apis.yaml that ships with the package)",
    "ADS_PIPELINE_SPARK": "a master (local[2], spark://…, yarn) or sc://… of a Connect server (local[*])",
    "ADS_PIPELINE_LEASE_SECONDS": "seconds after which a silent run loses its partitions, at least 5 (120)",
    "ADS_PIPELINE_TENANT": "tenant_id in partition_status (default)",
    "ADS_PIPELINE_WORKSPACE": "workspace_id in partition_status (the source's name)",
}
DEFAULT_QUERIES_FILE = Path(__file__).parent / "config" / "google_apis.yaml"
MAX_YAML_DEPTH = 100
POSTGRES_PREFIX = "postgresql+psycopg2://"
DEFAULT_SPARK = "local[*]"
ONE_MINUTE = timedelta(minutes=1)
DEFAULT_LEASE, MIN_LEASE, MAX_LEASE = timedelta(seconds=120), timedelta(seconds=5), timedelta(days=1)

_SELECT = re.compile(r"SELECT (?P<fields>[a-z0-9_., ]+) FROM (?P<resource>[a-z_]+)", re.ASCII)
_SPARK = re.compile(r"local|local\[[0-9*, ]+\]|yarn|(spark|k8s|sc)://[!-~]+", re.ASCII)
_FIELD = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+", re.ASCII)
_REQUIRED_FIELDS = ("segments.date", "customer.id")


def _parse_gaql(text: str) -> str:
    """The query on one line; ValueError unless a partition's date can be added to it as a WHERE clause."""
    match = _SELECT.fullmatch(re.sub(r"[ \t\r\n]+", " ", text.strip(" \t\r\n")))
    if match is None:
        raise ValueError("must read SELECT field, … FROM resource, with no WHERE, ORDER BY or LIMIT")
    fields = [name.strip() for name in match["fields"].split(",")]
    invalid = [name for name in fields if _FIELD.fullmatch(name) is None]
    if invalid:
        raise ValueError(f"{quoted(invalid[0])} is not a field name")
    if len(set(fields)) < len(fields):
        raise ValueError(f"selects {next(name for name in fields if fields.count(name) > 1)} twice")
    for name in _REQUIRED_FIELDS:
        if name not in fields:
            raise ValueError(f"must select {name}, which the validator compares with the partition")
    return f"SELECT {', '.join(fields)} FROM {match['resource']}"  # noqa: S608 - every part matched a pattern


def _parse_days(value: object) -> object:
    """The list as a tuple, checked by FreshnessPolicy."""
    if not isinstance(value, list):
        raise ValueError("must be a list of days, such as [3, 30]")  # noqa: TRY004 - pydantic reports only ValueError
    return FreshnessPolicy(reread_after_days=tuple(value)).reread_after_days


def _parse_minutes(value: object) -> object:
    """The list as a tuple, checked by RetryPolicy."""
    if not isinstance(value, list) or not all(type(minutes) is int for minutes in value):
        raise ValueError("must be a list of minutes, such as [5, 30, 120]")
    policy = RetryPolicy(delays=tuple(minutes * ONE_MINUTE for minutes in value))
    return tuple(delay // ONE_MINUTE for delay in policy.delays)


def _name_validator(field_name: str) -> Callable[[str], str]:
    return lambda value: validate_name(field_name, value)


class _Loader(yaml.SafeLoader):
    """A YAML loader that keeps dates as text, so that an invalid date is reported with its line."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - replaces a class attribute of PyYAML
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Query(_Document):
    """One GAQL query and the schema version of its rows."""

    schema_version: Annotated[str, AfterValidator(_name_validator("schema_version"))]
    gaql: Annotated[str, AfterValidator(_parse_gaql)]
    reread_after_days: Annotated[tuple[int, ...], BeforeValidator(_parse_days)] = ()

    @property
    def freshness_policy(self) -> FreshnessPolicy:
        return FreshnessPolicy(reread_after_days=self.reread_after_days)


class RetrySettings(_Document):
    """The `retries` section of the query file. Missing values have defaults."""

    delays_minutes: Annotated[tuple[int, ...], BeforeValidator(_parse_minutes)] = (5, 30, 120)
    max_attempts: Annotated[int, Field(ge=1)] = 6
    max_age_days: Annotated[int, Field(ge=1)] = 90

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(
            delays=tuple(minutes * ONE_MINUTE for minutes in self.delays_minutes),
            max_attempts=self.max_attempts,
            max_age=timedelta(days=self.max_age_days),
        )


class GoogleApis(_Document):
    """The query file."""

    source: Annotated[str, AfterValidator(_name_validator("source"))]
    api_version: Annotated[str, Field(pattern=r"^v[0-9]{1,3}\z")]
    start_date: Annotated[date, BeforeValidator(parse_date)]
    retries: RetrySettings = Field(default_factory=RetrySettings)
    queries: Annotated[
        Mapping[Annotated[str, AfterValidator(_name_validator("query_name"))], Query],
        Field(min_length=1),
        AfterValidator(MappingProxyType),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a deployment."""

    home: Path
    queries_file: Path
    google_apis: GoogleApis
    spark: str = DEFAULT_SPARK
    postgres_url: str | None = field(default=None, repr=False)  # it may hold a password
    tenancy: Tenancy = field(default_factory=Tenancy)
    lease: timedelta = DEFAULT_LEASE

    @property
    def database_url(self) -> str:
        return self.postgres_url or f"sqlite:///{self.home / 'ledger.db'}"

    @property
    def freshness_policies(self) -> dict[str, FreshnessPolicy]:
        """The freshness policy of each query, by query name."""
        return {name: query.freshness_policy for name, query in self.google_apis.queries.items()}

    @property
    def retry_policy(self) -> RetryPolicy:
        return self.google_apis.retries.policy

    @property
    def status_file(self) -> Path:
        return self.home / "partition_status.parquet"

    @property
    def raw_root(self) -> Path:
        return self.home / "raw"

    @property
    def warehouse_root(self) -> Path:
        return self.home / "warehouse"

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


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings; BadSettings lists every mistake in the environment and in the query file."""
    mistakes = _find_unknown_variables(environ)
    home = _read_home(environ, mistakes)
    postgres_url = _read_postgres_url(environ, mistakes)
    spark = _read_spark(environ, mistakes)
    lease = _read_lease(environ, mistakes)
    tenancy = Tenancy(
        tenant_id=_read_label("ADS_PIPELINE_TENANT", environ, mistakes) or Tenancy().tenant_id,
        workspace_id=_read_label("ADS_PIPELINE_WORKSPACE", environ, mistakes),
    )
    queries_file = _expand_user(environ.get("ADS_PIPELINE_QUERIES") or str(DEFAULT_QUERIES_FILE))
    google_apis = _read_google_apis(queries_file, mistakes)
    if mistakes or google_apis is None:
        raise BadSettings(tuple(mistakes))
    return Settings(
        home=home,
        queries_file=queries_file,
        google_apis=google_apis,
        spark=spark,
        postgres_url=postgres_url,
        tenancy=tenancy,
        lease=lease,
    )


def _find_unknown_variables(environ: Mapping[str, str]) -> list[Mistake]:
    """Report misspelt variables, which would otherwise silently leave a default in place."""
    mistakes = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            matches = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {matches[0]}?" if matches else f"known are {', '.join(VARIABLES)}"
            mistakes.append(Mistake(location=printable(name), problem=f"no such setting; {hint}"))
    return mistakes


def _read_home(environ: Mapping[str, str], mistakes: list[Mistake]) -> Path:
    text = environ.get("ADS_PIPELINE_HOME")
    if not text:
        return Path.home() / ".ads_pipeline"
    home = _expand_user(text)
    if not home.is_absolute() or not text.isprintable():
        mistakes.append(Mistake(location="ADS_PIPELINE_HOME", problem=f"{quoted(text)} must be an absolute path"))
    return home


def _expand_user(text: str) -> Path:
    """The path with ~ expanded, unless it names an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _read_postgres_url(environ: Mapping[str, str], mistakes: list[Mistake]) -> str | None:
    """The driver must be named: Dagster's notifications fail with SQLAlchemy's default driver."""
    url = environ.get("ADS_PIPELINE_DATABASE_URL") or None
    if url is not None and not url.startswith(POSTGRES_PREFIX):
        mistakes.append(Mistake(location="ADS_PIPELINE_DATABASE_URL", problem=f"must start with {POSTGRES_PREFIX}"))
    return url


def _read_spark(environ: Mapping[str, str], mistakes: list[Mistake]) -> str:
    spark = environ.get("ADS_PIPELINE_SPARK") or DEFAULT_SPARK
    if _SPARK.fullmatch(spark) is None:
        problem = f"{quoted(spark)} must be local, local[…], yarn, spark://…, k8s://… or sc://…"
        mistakes.append(Mistake(location="ADS_PIPELINE_SPARK", problem=problem))
    return spark


def _read_lease(environ: Mapping[str, str], mistakes: list[Mistake]) -> timedelta:
    """A lease below the minimum could expire while a busy database delays its renewal."""
    text = environ.get("ADS_PIPELINE_LEASE_SECONDS")
    if not text:
        return DEFAULT_LEASE
    lease = timedelta(seconds=int(text)) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else timedelta()
    if MIN_LEASE <= lease <= MAX_LEASE:
        return lease
    problem = f"{quoted(text)} must be whole seconds, from 5 to 86400"
    mistakes.append(Mistake(location="ADS_PIPELINE_LEASE_SECONDS", problem=problem))
    return DEFAULT_LEASE


def _read_label(variable: str, environ: Mapping[str, str], mistakes: list[Mistake]) -> str | None:
    text = environ.get(variable) or None
    pattern, rule = NAME_RULES["label"]
    if text is not None and pattern.fullmatch(text) is None:
        mistakes.append(Mistake(location=variable, problem=f"{quoted(text)} is refused: {rule}"))
    return text


def _read_google_apis(path: Path, mistakes: list[Mistake]) -> GoogleApis | None:
    try:
        text = path.read_bytes().decode("utf-8")
        document, lines = _load_yaml(text, path, mistakes)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        mistakes.append(Mistake(location=printable(str(path)), problem=f"cannot be read: {printable(str(error))}"))
        return None
    try:
        return GoogleApis.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        mistakes.extend(_locate_mistake(path, lines, problem) for problem in problems)
        return None


def _locate_mistake(path: Path, lines: Mapping[tuple[str, ...], int], problem: Any) -> Mistake:
    path_in_file = tuple(str(part) for part in problem["loc"] if part != "[key]")
    nearest = next((path_in_file[:n] for n in range(len(path_in_file), -1, -1) if path_in_file[:n] in lines), ())
    cause = problem.get("ctx", {}).get("error")
    text = f"{quoted(cause.value)} is refused: {cause.rule}" if isinstance(cause, BadName) else problem["msg"]
    location = f"{path}:{lines.get(nearest, 1)} {'.'.join(path_in_file)}".rstrip()
    return Mistake(location=printable(location), problem=printable(text.removeprefix("Value error, ")))


def _find_excess(text: str) -> str | None:
    """An alias or deep nesting, with which a short document could use much memory; None when there is neither."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return f"line {line} has an alias; write the value in full"
        if depth > MAX_YAML_DEPTH:
            return f"line {line} is nested deeper than {MAX_YAML_DEPTH}"
    return None


def _load_yaml(text: str, path: Path, mistakes: list[Mistake]) -> tuple[object, dict[tuple[str, ...], int]]:
    """The document, and the line of each of its parts. A duplicate key is a mistake."""
    if problem := _find_excess(text):
        raise yaml.YAMLError(problem)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        lines: dict[tuple[str, ...], int] = {}
        if root is None:
            return None, lines
        _collect_lines(root, (), lines, path, mistakes)
        return loader.construct_document(root), lines
    except (KeyError, AttributeError, ArithmeticError) as error:  # a tag does not fit its value
        raise yaml.YAMLError(f"a value does not fit its tag: {error}") from error
    finally:
        loader.dispose()


def _collect_lines(
    node: yaml.Node,
    path_in_file: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    path: Path,
    mistakes: list[Mistake],
) -> None:
    lines.setdefault(path_in_file, node.start_mark.line + 1)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = (*path_in_file, str(key.value))
        if inner in lines:
            location = printable(f"{path}:{key.start_mark.line + 1} {'.'.join(inner)}")
            mistakes.append(Mistake(location=location, problem=f"duplicate key, first on line {lines[inner]}"))
        lines.setdefault(inner, key.start_mark.line + 1)
        _collect_lines(value, inner, lines, path, mistakes)
