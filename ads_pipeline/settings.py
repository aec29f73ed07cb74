"""Reads settings and `config/google_apis.yaml` once, reports every mistake together, freezes them.

Nothing else looks at the environment. What is read here is handed on as values; a room never asks for settings.
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
    "ADS_PIPELINE_LEASE_SECONDS": "how long a run that says nothing keeps its partitions, at least 5 (120)",
    "ADS_PIPELINE_TENANT": "tenant_id in partition_status: whose partitions these are (default)",
    "ADS_PIPELINE_WORKSPACE": "workspace_id in partition_status, one for each source (the source's name)",
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


def _gaql(text: str) -> str:
    """The query on one line, if it is one that a partition can complete with its day."""
    match = _SELECT.fullmatch(re.sub(r"[ \t\r\n]+", " ", text.strip(" \t\r\n")))
    if match is None:
        raise ValueError("must read SELECT field, … FROM resource, with no WHERE, ORDER BY or LIMIT")
    fields = [name.strip() for name in match["fields"].split(",")]
    odd = [name for name in fields if _FIELD.fullmatch(name) is None]
    if odd:
        raise ValueError(f"{quoted(odd[0])} is not the name of a field")
    if len(set(fields)) < len(fields):
        raise ValueError(f"selects {next(name for name in fields if fields.count(name) > 1)} twice")
    for name in _REQUIRED_FIELDS:
        if name not in fields:
            raise ValueError(f"must select {name}: rows are checked against their partition by it")
    return f"SELECT {', '.join(fields)} FROM {match['resource']}"  # noqa: S608 - every part was just matched


def _days(value: object) -> object:
    """The list as YAML gives it, if it is one that a freshness policy takes."""
    if not isinstance(value, list):
        raise ValueError("must be a list of days, such as [3, 30]")  # noqa: TRY004 - pydantic asks for this one
    return FreshnessPolicy(reread_after_days=tuple(value)).reread_after_days


def _minutes(value: object) -> object:
    """The list as YAML gives it, if it is one that a retry policy takes."""
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise ValueError("must be a list of minutes, such as [5, 30, 120]")
    return tuple(each // ONE_MINUTE for each in RetryPolicy(delays=tuple(each * ONE_MINUTE for each in value)).delays)


def _named(field_name: str) -> Callable[[str], str]:
    return lambda value: validate_name(field_name, value)


class _Loader(yaml.SafeLoader):
    """YAML whose dates stay text, so that an impossible one is reported with its place like any other mistake."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class attribute, replaced whole
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Query(_Document):
    """One GAQL query and the version of the rows it gives."""

    schema_version: Annotated[str, AfterValidator(_named("schema_version"))]
    gaql: Annotated[str, AfterValidator(_gaql)]
    reread_after_days: Annotated[tuple[int, ...], BeforeValidator(_days)] = ()

    @property
    def freshness_policy(self) -> FreshnessPolicy:
        return FreshnessPolicy(reread_after_days=self.reread_after_days)


class RetrySettings(_Document):
    """How long to wait after each failure in a row, and when to stop. Parts that are left out are as shipped."""

    delays_minutes: Annotated[tuple[int, ...], BeforeValidator(_minutes)] = (5, 30, 120)
    max_attempts: Annotated[int, Field(ge=1)] = 6
    max_age_days: Annotated[int, Field(ge=1)] = 90

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(
            delays=tuple(each * ONE_MINUTE for each in self.delays_minutes),
            max_attempts=self.max_attempts,
            max_age=timedelta(days=self.max_age_days),
        )


class GoogleApis(_Document):
    """The query file."""

    source: Annotated[str, AfterValidator(_named("source"))]
    api_version: Annotated[str, Field(pattern=r"^v[0-9]{1,3}\z")]
    start_date: Annotated[date, BeforeValidator(parse_date)]
    retries: RetrySettings = Field(default_factory=RetrySettings)
    queries: Annotated[
        Mapping[Annotated[str, AfterValidator(_named("query_name"))], Query],
        Field(min_length=1),
        AfterValidator(MappingProxyType),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the environment decides."""

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
        """How fresh the partitions of each query should be."""
        return {name: query.freshness_policy for name, query in self.google_apis.queries.items()}

    @property
    def retry_policy(self) -> RetryPolicy:
        """When failures are tried again."""
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
        """The query of that name; BadName says which names there are."""
        validate_name("query_name", name)
        try:
            return self.google_apis.queries[name]
        except KeyError:
            known = sorted(self.google_apis.queries)
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise BadName("query_name", name, f"{hint}{self.queries_file} defines only {', '.join(known)}") from None


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings that this environment gives; BadSettings lists every mistake in it and in the query file."""
    mistakes = _unknown_variables(environ)
    home = _home(environ, mistakes)
    postgres_url = _postgres_url(environ, mistakes)
    spark = _spark(environ, mistakes)
    lease = _lease(environ, mistakes)
    space = Tenancy(
        tenant_id=_label("ADS_PIPELINE_TENANT", environ, mistakes) or Tenancy().tenant_id,
        workspace_id=_label("ADS_PIPELINE_WORKSPACE", environ, mistakes),
    )
    queries_file = _expanded(environ.get("ADS_PIPELINE_QUERIES") or str(DEFAULT_QUERIES_FILE))
    google_apis = _google_apis(queries_file, mistakes)
    if mistakes or google_apis is None:
        raise BadSettings(tuple(mistakes))
    return Settings(
        home=home,
        queries_file=queries_file,
        google_apis=google_apis,
        spark=spark,
        postgres_url=postgres_url,
        tenancy=space,
        lease=lease,
    )


def _unknown_variables(environ: Mapping[str, str]) -> list[Mistake]:
    """A misspelt variable would fall back to a default without a word."""
    mistakes = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(VARIABLES)}"
            mistakes.append(Mistake(location=printable(name), problem=f"no such setting; {hint}"))
    return mistakes


def _home(environ: Mapping[str, str], mistakes: list[Mistake]) -> Path:
    text = environ.get("ADS_PIPELINE_HOME")
    if not text:
        return Path.home() / ".ads_pipeline"
    home = _expanded(text)
    if not home.is_absolute() or not text.isprintable():
        problem = f"{quoted(text)} must be an absolute path, or it would mean another folder from each directory"
        mistakes.append(Mistake(location="ADS_PIPELINE_HOME", problem=problem))
    return home


def _expanded(text: str) -> Path:
    """The path with its ~ replaced, if it names somebody who exists."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _postgres_url(environ: Mapping[str, str], mistakes: list[Mistake]) -> str | None:
    """SQLAlchemy would pick another driver for a bare postgresql://, one that Dagster's notifications fail under."""
    url = environ.get("ADS_PIPELINE_DATABASE_URL") or None
    if url is not None and not url.startswith(POSTGRES_PREFIX):
        mistakes.append(Mistake(location="ADS_PIPELINE_DATABASE_URL", problem=f"must start with {POSTGRES_PREFIX}"))
    return url


def _spark(environ: Mapping[str, str], mistakes: list[Mistake]) -> str:
    place = environ.get("ADS_PIPELINE_SPARK") or DEFAULT_SPARK
    if _SPARK.fullmatch(place) is None:
        problem = f"{quoted(place)} must be local, local[…], yarn, spark://…, k8s://… or sc://…"
        mistakes.append(Mistake(location="ADS_PIPELINE_SPARK", problem=problem))
    return place


def _lease(environ: Mapping[str, str], mistakes: list[Mistake]) -> timedelta:
    """Shorter than the shortest, a busy database would take the lease of a run that lives."""
    text = environ.get("ADS_PIPELINE_LEASE_SECONDS")
    if not text:
        return DEFAULT_LEASE
    lease = timedelta(seconds=int(text)) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else timedelta()
    if MIN_LEASE <= lease <= MAX_LEASE:
        return lease
    problem = f"{quoted(text)} must be whole seconds, from 5 to 86400"
    mistakes.append(Mistake(location="ADS_PIPELINE_LEASE_SECONDS", problem=problem))
    return DEFAULT_LEASE


def _label(variable: str, environ: Mapping[str, str], mistakes: list[Mistake]) -> str | None:
    text = environ.get(variable) or None
    pattern, rule = NAME_RULES["label"]
    if text is not None and pattern.fullmatch(text) is None:
        mistakes.append(Mistake(location=variable, problem=f"{quoted(text)} is refused: {rule}"))
    return text


def _google_apis(path: Path, mistakes: list[Mistake]) -> GoogleApis | None:
    try:
        text = path.read_bytes().decode("utf-8")
        document, lines = _yaml_with_lines(text, path, mistakes)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        mistakes.append(Mistake(location=printable(str(path)), problem=f"cannot be read: {printable(str(error))}"))
        return None
    try:
        return GoogleApis.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        mistakes.extend(_mistake_at(path, lines, problem) for problem in problems)
        return None


def _mistake_at(path: Path, lines: Mapping[tuple[str, ...], int], problem: Any) -> Mistake:
    where = tuple(str(part) for part in problem["loc"] if part != "[key]")
    near = next((where[:n] for n in range(len(where), -1, -1) if where[:n] in lines), ())
    cause = problem.get("ctx", {}).get("error")
    said = f"{quoted(cause.value)} is refused: {cause.rule}" if isinstance(cause, BadName) else problem["msg"]
    said = said.removeprefix("Value error, ")
    return Mistake(
        location=printable(f"{path}:{lines.get(near, 1)} {'.'.join(where)}".rstrip()), problem=printable(said)
    )


def _bomb(text: str) -> str | None:
    """What would make a short document cost much to read: an alias may stand for anything, and nesting adds up."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return f"line {line} holds an alias; write out what it stands for"
        if depth > MAX_YAML_DEPTH:
            return f"line {line} is nested deeper than {MAX_YAML_DEPTH}"
    return None


def _yaml_with_lines(text: str, path: Path, mistakes: list[Mistake]) -> tuple[object, dict[tuple[str, ...], int]]:
    """The document, and the line on which each of its parts begins. A key that stands twice is a mistake."""
    problem = _bomb(text)
    if problem:
        raise yaml.YAMLError(problem)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        lines: dict[tuple[str, ...], int] = {}
        if root is None:
            return None, lines
        _note_lines(root, (), lines, path, mistakes)
        return loader.construct_document(root), lines
    except (KeyError, AttributeError, ArithmeticError) as error:  # what a tag that does not fit its value leads to
        raise yaml.YAMLError(f"a value does not fit its tag: {error}") from error
    finally:
        loader.dispose()


def _note_lines(
    node: yaml.Node,
    where: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    path: Path,
    mistakes: list[Mistake],
) -> None:
    lines.setdefault(where, node.start_mark.line + 1)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = (*where, str(key.value))
        if inner in lines:
            place = printable(f"{path}:{key.start_mark.line + 1} {'.'.join(inner)}")
            mistakes.append(Mistake(location=place, problem=f"stands already on line {lines[inner]}"))
        lines.setdefault(inner, key.start_mark.line + 1)
        _note_lines(value, inner, lines, path, mistakes)
